"""verify_ledger compared with a twin that examines each copy by itself, on bookies in memory.

Faults are planted at random, and the report must list exactly those, for any quorums, ensemble
changes, sizes of batches and versions of the bookies.
"""

from __future__ import annotations

import random
from typing import cast

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.client import LedgerClient
from ledger.connection.pool import BookiePool
from ledger.core.copies import BadCopy, Copy, CopyState, LedgerReport, judge
from ledger.core.entry import Digest, DigestType, Entry
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import write_set
from ledger.errors import BookieUnavailable, OperationTimeout, Status
from ledger.options import ClientOptions
from ledger.verify import verify_ledger
from ledger.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadRequest,
    ReadResponse,
    RequestBody,
    ResponseBody,
)
from tests.effort import scaled

LEDGER = 5
SIZES = [(3, 3, 2), (1, 1, 1), (4, 2, 2), (5, 3, 2), (3, 2, 1)]
STATES = [*CopyState, *[CopyState.WHOLE] * 12]


class World:
    """A closed ledger, its planted copies, and a pool that answers from them."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        ensemble, write, ack = rng.choice(SIZES)
        self.entries = rng.randrange(1, 120)
        starts = sorted({0, *(rng.randrange(self.entries) for _ in range(rng.randrange(3)))})
        names = [f"b{n}" for n in range(ensemble + 2)]
        self.digest = Digest(rng.choice([DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC]))
        self.metadata = LedgerMetadata(
            ledger_id=LEDGER,
            ensemble_size=ensemble,
            write_quorum=write,
            ack_quorum=ack,
            state=LedgerState.CLOSED,
            fragments=tuple(Fragment(s, tuple(rng.sample(names, ensemble))) for s in starts),
            digest_type=self.digest.digest_type,
            last_entry_id=self.entries - 1,
        )
        self.options = ClientOptions(batch_read_bytes=rng.choice([100, 2000, 1 << 20]))
        self.knows_batches = {name: rng.random() < 0.7 for name in names}
        self.down = {name: rng.random() < 0.1 for name in names}
        self.limbo = {name: rng.random() < 0.2 for name in names}
        self.busy = 0.05 if rng.random() < 0.5 else 0.0
        self.planted: dict[int, dict[str, CopyState]] = {}
        self.bodies: dict[tuple[str, int], bytes] = {}
        self.expected: dict[int, dict[str, Copy]] = {}
        is_rough = rng.random() < 0.7
        length = 0
        for entry_id in range(self.entries):
            payload = rng.randbytes(rng.randrange(60))
            length += len(payload)
            self._plant(entry_id, payload, length, is_rough=is_rough)
        self.payload_bytes = length

    def _plant(self, entry_id: int, payload: bytes, length: int, *, is_rough: bool) -> None:
        sizes = self.metadata
        bookies = sizes.fragment_of(entry_id).bookies
        copies = self.expected[entry_id] = {}
        for index in write_set(entry_id, sizes.ensemble_size, sizes.write_quorum):
            bookie = bookies[index]
            state = self.rng.choice(STATES) if is_rough else CopyState.WHOLE
            if state is CopyState.UNREACHABLE:
                state = CopyState.WHOLE  # a bookie has that state, not a single copy
            if state is CopyState.UNREADABLE and self.limbo[bookie]:
                state = CopyState.UNKNOWN
            if state is CopyState.UNKNOWN and not self.limbo[bookie]:
                state = CopyState.UNREADABLE
            reported = self.planted.setdefault(entry_id, {})[bookie] = state
            kept = b"another" if reported is CopyState.DIFFERS else payload
            header, _ = self.digest.encode_entry(LEDGER, entry_id, entry_id - 1, length, kept)
            body = bytearray(header + kept)
            if reported is CopyState.CORRUPT:
                body[self.rng.randrange(len(body))] ^= 1 << self.rng.randrange(8)
            self.bodies[bookie, entry_id] = bytes(body)
            if self.down[bookie]:
                copies[bookie] = BadCopy(CopyState.UNREACHABLE, "")
            elif reported in (CopyState.WHOLE, CopyState.DIFFERS):
                copies[bookie] = Entry(LEDGER, entry_id, entry_id - 1, length, kept)
            else:
                copies[bookie] = BadCopy(reported, "")

    # The methods of a client and its pool that the verifier uses.

    @property
    def pool(self) -> BookiePool:
        return cast(BookiePool, self)

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        await trio.sleep(0.001)
        return self.metadata

    def _status(self, bookie: str, entry_id: int) -> Status:
        state = self.planted.get(entry_id, {}).get(bookie)
        if state is None or state is CopyState.MISSING:
            return Status.NO_SUCH_ENTRY
        # v2 has one code for both states, of unreadable entries and of limbo.
        is_doubt = state in (CopyState.UNREADABLE, CopyState.UNKNOWN)
        return Status.IO_ERROR if is_doubt else Status.OK

    async def call(self, bookie: str, body: RequestBody, *, timeout_s: float) -> ResponseBody:
        await trio.sleep(self.rng.random() * 0.01)
        if self.down[bookie]:
            if self.rng.random() < 0.5:
                raise BookieUnavailable(f"{bookie} is down")
            await trio.sleep(timeout_s)
            raise OperationTimeout(f"{bookie} is silent")
        if isinstance(body, ListEntriesRequest):
            status = Status.UNKNOWN_LEDGER_STATE if self.limbo[bookie] else Status.OK
            return ListEntriesResponse(status, LEDGER)
        assert isinstance(body, ReadRequest)
        status = self._status(bookie, body.entry_id)
        found = self.bodies.get((bookie, body.entry_id)) if status is Status.OK else None
        return ReadResponse(status, LEDGER, body.entry_id, found)

    async def read_batch(
        self, bookie: str, body: BatchReadRequest, *, timeout_s: float
    ) -> ResponseBody | None:
        if not self.knows_batches[bookie]:
            return None
        await trio.sleep(self.rng.random() * 0.01)
        if self.down[bookie]:
            raise BookieUnavailable(f"{bookie} is down")
        if self.rng.random() < self.busy:
            return BatchReadResponse(Status.TOO_MANY_REQUESTS, LEDGER, body.entry_id)
        bodies: list[bytes] = []
        status = self._status(bookie, body.entry_id)
        at, room = body.entry_id, body.size_max
        while (
            len(bodies) < body.count_max
            and room > 0
            and self._status(bookie, at) is Status.OK
            and self.rng.random() > 0.05
        ):
            bodies.append(self.bodies[bookie, at])
            room -= len(bodies[-1])
            at += 1
        if status is Status.OK and not bodies:
            bodies.append(self.bodies[bookie, body.entry_id])
        return BatchReadResponse(status, LEDGER, body.entry_id, tuple(bodies))


def reported_by(report: LedgerReport) -> dict[CopyState, int]:
    """Returns the number of copies by state, summed over the faults of a report."""
    sums: dict[CopyState, int] = {}
    for fault in report.faults:
        sums[fault.state] = sums.get(fault.state, 0) + fault.entries
    return sums


@settings(deadline=None, max_examples=scaled(ci=24, night=600))
@given(st.integers(0, 1 << 32))
def test_the_report_lists_exactly_the_planted_faults(seed: int) -> None:
    world = World(seed)

    async def verify() -> LedgerReport:
        return await verify_ledger(cast(LedgerClient, world), LEDGER)

    report = trio.run(verify, clock=trio.testing.MockClock(autojump_threshold=0))
    ack_quorum = world.metadata.ack_quorum
    judged = [judge(copies, ack_quorum) for copies in world.expected.values()]
    assert report.entries == world.entries
    assert report.verdict == max(verdict for verdict, _ in judged)
    verdicts = [verdict for verdict, _ in judged]
    assert report.verdicts == {v: verdicts.count(v) for v in sorted(set(verdicts))}
    states: dict[CopyState, int] = {}
    for _, bad in judged:
        for copy in bad.values():
            states[copy.state] = states.get(copy.state, 0) + 1
    assert reported_by(report) == states
    whole = sum(map(len, world.expected.values())) - sum(states.values())
    assert report.copies.get(CopyState.WHOLE, 0) == whole
    if not states:
        assert report.payload_bytes == world.payload_bytes
