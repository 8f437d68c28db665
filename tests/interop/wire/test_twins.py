"""Both bookies give the same responses to random requests, except for a list of differences."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.golden.conversation import described, normalised
from tests.interop.apache_bookie import DB_LEDGER_STORAGE, SORTED_LEDGER_STORAGE
from tests.interop.conftest import GetApacheBookies
from tests.interop.timeouts import PATIENCE_S
from tests.interop.wire.requests import (
    BATCH_FROM_THE_LAST,
    STRICTER,
    Asked,
    Requests,
    is_longer_batch,
    is_same_list,
)
from tests.real_cluster import real_cluster

pytestmark = pytest.mark.interop

REQUESTS = 2000
SETTINGS = {"garbage_interval_ms": 3_600_000}
APACHE = {
    "journalSyncData": False,
    "journalMaxGroupWaitMSec": 0,
    "gcWaitTime": 3_600_000,
    # After a flush its "last entry" is the highest of the later ones, whatever is stored.
    "flushInterval": 3_600_000,
}


class Peer:
    """One connection, on which each request waits for its response."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = bytearray()

    async def ask(self, frame: bytes) -> bytes:
        await self._stream.send_all(len(frame).to_bytes(4, "big") + frame)
        while True:
            if len(self._data) >= 4:
                end = 4 + int.from_bytes(self._data[:4], "big")
                if len(self._data) >= end:
                    answer = bytes(self._data[4:end])
                    del self._data[:end]
                    return answer
            received = await self._stream.receive_some(1 << 16)
            assert received, "the bookie left"
            self._data += received


class Bookie:
    def __init__(self, peers: dict[int, Peer]) -> None:
        self._peers = peers

    @classmethod
    @asynccontextmanager
    async def at(cls, address: tuple[str, int]) -> AsyncIterator[Bookie]:
        """A bookie, with a connection for each wire version."""
        async with (
            await trio.open_tcp_stream(*address) as first,
            await trio.open_tcp_stream(*address) as second,
        ):
            yield cls({2: Peer(first), 3: Peer(second)})

    async def ask(self, asked: Asked) -> bytes:
        with trio.fail_after(PATIENCE_S):
            answer = await self._peers[asked.wire].ask(asked.frame)
        return normalised(answer, is_request=False, keeps_ids=True)


@pytest.mark.interop_result(
    area="wire", feature="random requests get the same replies", wire="v2, v3"
)
@pytest.mark.parametrize(
    "storage", [DB_LEDGER_STORAGE, SORTED_LEDGER_STORAGE], ids=["db", "sorted"]
)
async def test_random_requests_get_the_same_responses(
    version: str, storage: str, apache_bookies: GetApacheBookies, tmp_path: Path
) -> None:
    apache = apache_bookies(version, count=1, storage=storage, **APACHE).bookies[0]
    requests = Requests(
        random.Random(7),
        has_batch_reads=not version.startswith("4.16."),
        is_sorted=storage == SORTED_LEDGER_STORAGE,
    )
    differences: list[str] = []
    stricter: Counter[str] = Counter()
    longer_batches = 0
    async with (
        real_cluster(tmp_path, 1, **SETTINGS) as cluster,
        Bookie.at(("127.0.0.1", apache.port)) as theirs,
        Bookie.at(cluster.bookies[0].address) as ours,
    ):
        for number in range(REQUESTS):
            asked = requests.next()
            their_answer, our_answer = await theirs.ask(asked), await ours.ask(asked)
            if asked.stricter is not None:
                stricter[asked.stricter] += their_answer != our_answer
            elif is_longer_batch(their_answer, our_answer):
                longer_batches += 1
            elif their_answer != our_answer and not is_same_list(their_answer, our_answer):
                differences.append(
                    f"{number}: {described(asked.frame, is_request=True)}\n"
                    f"  Apache: {described(their_answer, is_request=False)}\n"
                    f"  ours:   {described(our_answer, is_request=False)}"
                )
    assert not differences, f"{len(differences)} differences\n" + "\n".join(differences[:20])
    assert bool(longer_batches) == (version == "4.18.0")
    if requests.is_sorted:
        return  # it was not asked for what we refuse
    known = set(STRICTER) - (set() if requests.has_batch_reads else {BATCH_FROM_THE_LAST})
    assert set(+stricter) == known, "these are no differences any more"
