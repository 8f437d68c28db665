"""Every bookie hears of the last add confirmed, whatever acks say of its readers meanwhile."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from ledger.connection.pending_calls import OnAnswer
from ledger.core.entry import Digest, DigestType
from ledger.errors import Status
from ledger.options import ClientOptions
from ledger.wire.messages import WriteLacRequest, WriteLacResponse
from ledger.writing.explicit_lac import ConfirmingWriter, ExplicitLac
from ledger.writing.send_loop import SendLoop

NOTHING = cast(Any, None)


class Pool:
    """Bookies that answer at once."""

    def __init__(self) -> None:
        self.notified: list[tuple[str, int]] = []

    def post(self, bookie: str, body: WriteLacRequest, on_answer: OnAnswer) -> None:
        self.notified.append((bookie, body.lac))
        on_answer(WriteLacResponse(Status.OK, body.ledger_id))


def writer_to(*bookies: str) -> Any:
    """A writer with nothing in flight."""
    return SimpleNamespace(
        metadata=SimpleNamespace(last_fragment=SimpleNamespace(bookies=bookies)),
        ledger_id=7,
        error=None,
        digest=Digest(DigestType.CRC32C),
        is_dirty=False,
        core=SimpleNamespace(
            ensemble_size=len(bookies), failed=set(), is_sync_deferred=False,
            last_add_pushed=-1, last_add_confirmed=-1,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("lac_linger_ms", [0, 20])
async def test_a_bookie_that_says_just_before_its_turn_that_nobody_waits_is_notified_later(
    lac_linger_ms: int, autojump_clock: trio.testing.MockClock
) -> None:
    """With an ack quorum of 1: the ack of the other bookie comes when the LAC is scheduled, and
    neither of the two ways to notify that bookie is due."""
    pool = Pool()
    options = ClientOptions(lac_linger_ms=lac_linger_ms)
    async with trio.open_nursery() as nursery:
        loop = SendLoop(cast(Any, pool), NOTHING, NOTHING, NOTHING, options, random.Random(0))
        loop.start(nursery)
        writer = writer_to("polled", "unpolled")
        lac = ExplicitLac(cast(ConfirmingWriter, writer), loop, bytes(20))
        for entry_id in range(2):
            writer.core.last_add_pushed = writer.core.last_add_confirmed = entry_id
            lac.said(0, is_unpolled=False)
            lac.said(1, is_unpolled=False)  # as if it had a reader, which is gone with the next ack
            lac.confirmed_moved()
            lac.said(1, is_unpolled=True)
            await trio.sleep(1)
            assert pool.notified == [("polled", entry_id), ("unpolled", entry_id)]
            pool.notified.clear()
        nursery.cancel_scope.cancel()
