"""A writer whose process was paused does not blame bookies for responses that it did not read."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import trio

from ledger.wire.messages import AddRequest, Request
from tests.ledger.scripted_bookie import scripted_cluster

ADD_TIMEOUT_S = 0.4


def stop_the_process(seconds: float) -> None:
    """Blocks the process, as a machine does that runs other processes instead."""
    time.sleep(seconds)


@pytest.mark.parametrize("pauses", [1, 3])
async def test_a_pause_of_the_process_is_not_taken_for_silence_of_bookies(pauses: int) -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client(add_timeout_s=ADD_TIMEOUT_S) as client,
        client.create_ledger() as writer,
    ):
        await writer.append(b"first")
        for _ in range(pauses):
            goes_on = trio.Event()
            for bookie in cluster.bookies.values():
                bookie.hold = holding(goes_on)
            entry_id = writer.append_nowait(b"more")
            await trio.sleep(ADD_TIMEOUT_S / 2)  # it is seen waiting, but not for too long
            # All run in this process: the bookies' responses and their check are due at once.
            goes_on.set()
            stop_the_process(2 * ADD_TIMEOUT_S)
            with trio.fail_after(10):
                await writer.wait_confirmed(entry_id)
            assert not writer.core.failed
        assert writer.statistics().ensemble_changes == 0


async def test_a_bookie_that_is_silent_is_given_up_in_time() -> None:
    async with (
        scripted_cluster(4) as cluster,
        cluster.client(add_timeout_s=ADD_TIMEOUT_S) as client,
        client.create_ledger(ack_quorum=3) as writer,
    ):
        silent = writer.metadata.last_fragment.bookies[0]
        cluster.bookie(silent).hold = holding(trio.Event())
        begun_s = trio.current_time()
        await writer.append(b"first")
        assert silent not in writer.metadata.last_fragment.bookies
        assert trio.current_time() - begun_s >= ADD_TIMEOUT_S


def holding(until: trio.Event) -> Callable[[Request], trio.Event | None]:
    return lambda request: until if isinstance(request.body, AddRequest) else None
