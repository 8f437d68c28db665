"""Random adds, many of entries that are stored, have the results of a naive twin."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import trio

from bookie.core.ledger_state import GAP_ENTRIES_MIN
from bookie.testing.transport import SimTransport
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import AddRequest, ReadRequest, Request
from tests.bookie.server.simulated_server import SimulatedServer, call, run_server, send_all
from tests.bookie.server.test_history import LEDGER, add, stored
from tests.bookie.server.test_recovery_adds import acks
from tests.bookie.server.test_server import KEY


class Twin:
    """The first payload of each entry, in a dict."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.is_fenced = False
        self.end = 1 << 62

    def add(self, entry_id: int, payload: bytes, is_recovery: bool) -> Status:
        if (self.is_fenced and not is_recovery) or entry_id >= self.end:
            return Status.FENCED
        first = self.entries.setdefault(entry_id, payload)
        return Status.OK if first == payload else Status.BAD_REQUEST


@pytest.mark.parametrize("seed", range(12))
def test_random_adds_have_the_results_of_the_twin(seed: int) -> None:
    rng = random.Random(seed)
    twin = Twin()

    def drawn() -> Iterator[AddRequest]:
        """Adds of one entry, or of a stretch, which may leave a gap or reach into one."""
        top = max(twin.entries, default=0)
        skipped = top + 1 + rng.randrange(4) * GAP_ENTRIES_MIN
        first = rng.choice([top + 1, top + 1, top + 2, rng.randrange(top + 3), skipped])
        payload = rng.choice([b"p", b"p", b"q", b"longer"])
        lac, is_recovery = rng.randrange(-1, 5), rng.random() < 0.4
        for entry_id in range(first, first + rng.choice([1, 1, 1, 9, 2 * GAP_ENTRIES_MIN])):
            yield add(entry_id, payload, is_recovery=is_recovery, lac=lac)

    async def scenario(bookie: SimulatedServer) -> None:
        directory = bookie.simulated.storage.directory_of(LEDGER)
        for step in range(60):
            sent: list[AddRequest] = []
            expected: dict[int, Status] = {}
            for _ in range(rng.choice([1, 3, 20])):
                for body in drawn():
                    if body.entry_id not in expected:  # replies name entries only
                        payload = bytes(body.body)[36:]
                        expected[body.entry_id] = twin.add(body.entry_id, payload, body.is_recovery)
                        sent.append(body)
            assert await _answers(bookie, sent, rng.choice([2, 2, 3])) == expected
            event = rng.random()
            if event < 0.2:
                await bookie.flush()
            elif event < 0.3:
                directory.history.end_replay()
            elif event < 0.32 and step > 20:
                async with bookie.peer("fencer") as peer:
                    await call(peer, ReadRequest(LEDGER, -1, KEY, is_fencing=True))
                twin.is_fenced = True
            elif event < 0.34 and step > 40:
                last = max(twin.entries, default=0) + rng.randrange(5)
                await directory.history.closed({LEDGER: last})
                twin.end = last + 1
            bookie.slow_disk.read_s = rng.choice([0.0, 0.01])
        async with bookie.peer("reader") as reader:
            for entry_id, payload in twin.entries.items():
                found = await stored(reader, entry_id)
                assert isinstance(found, bytes)
                assert found[36:] == payload

    run_server(scenario, queued_bytes_max=8 << 20)


async def _answers(
    bookie: SimulatedServer, bodies: Sequence[AddRequest], version: int
) -> dict[int, Status]:
    if version == 3:
        async with bookie.peer("writer", 3) as peer:
            return {body.entry_id: (await call(peer, body)).status for body in bodies}
    transport: SimTransport = await bookie.network.of("writer").connect("bookie", 3181)
    async with trio.open_nursery() as nursery:
        frames = b"".join(v2.encode_request(Request(2, 0, body)) for body in bodies)
        nursery.start_soon(send_all, transport, frames)
        found = await acks(transport, len(bodies))
    transport.close()
    return {one.entry_id: one.status for one in found}
