"""Copies from bookies whose copies are damaged at random, compared with a look at every copy."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import trio

from ledger.autorecovery.copier import Copier, CopierOptions, CopyReport
from ledger.core.copies import DOUBTFUL, CopyState
from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import write_set
from ledger.errors import Status
from ledger.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
)
from tests.effort import scaled
from tests.ledger.autorecovery.copies import entries_of, lacking, other_bookie, written
from tests.ledger.scripted_bookie import Hangup, ScriptedBookie, scripted_cluster

STATUS_OF_STATE = {
    CopyState.MISSING: Status.NO_SUCH_ENTRY,
    CopyState.UNREADABLE: Status.IO_ERROR,
    CopyState.UNKNOWN: Status.UNKNOWN_LEDGER_STATE,
}
SIZES = [(2, 2, 2), (3, 3, 2), (3, 2, 2), (1, 1, 1)]
WORDS = {
    CopyState.MISSING: "missing on",
    CopyState.CORRUPT: "corrupt on",
    CopyState.UNREADABLE: "cannot read it",
    CopyState.UNREACHABLE: "does not answer",
    CopyState.UNKNOWN: "may have lost it",
}


class DamagedCopies:
    """The copies of one bookie: their states, and its answers."""

    def __init__(self, bookie: ScriptedBookie, rng: random.Random, states: dict[int, CopyState]):
        self.bookie = bookie
        self.states = states
        self.has_batches = rng.random() < 0.7
        self.finds_damage = rng.random() < 0.5
        """It compares checksums of its own, and returns the bytes with an I/O error."""
        self.rng = rng

    def state(self, entry_id: int) -> CopyState:
        return self.states.get(entry_id, CopyState.MISSING)

    def corrupt(self, ledger_id: int, entry_id: int) -> None:
        body = bytearray(self.bookie.entries[ledger_id, entry_id])
        body[self.rng.randrange(len(body))] ^= 1 << self.rng.randrange(8)
        self.bookie.entries[ledger_id, entry_id] = bytes(body)

    def answer(self, request: Request) -> ResponseBody | None:
        body = request.body
        if isinstance(body, ReadRequest):
            state = self.state(body.entry_id)
            status = STATUS_OF_STATE.get(state)
            if status is not None:
                return ReadResponse(status, body.ledger_id, body.entry_id)
            if state is CopyState.CORRUPT and self.finds_damage:
                data = self.bookie.entries[body.ledger_id, body.entry_id]
                return ReadResponse(Status.IO_ERROR, body.ledger_id, body.entry_id, data)
        if isinstance(body, BatchReadRequest):
            return self.answer_batch(body)
        return None

    def answer_batch(self, body: BatchReadRequest) -> BatchReadResponse:
        if not self.has_batches:
            raise Hangup
        bodies: list[bytes] = []
        size, limit = 36, self.rng.choice([100, 1000, body.size_max])
        ends = {*STATUS_OF_STATE, *([CopyState.CORRUPT] if self.finds_damage else [])}
        status = Status.OK
        for entry_id in range(body.entry_id, body.entry_id + body.count_max):
            state = self.state(entry_id)
            if state in ends:
                if not bodies:
                    status = STATUS_OF_STATE.get(state, Status.IO_ERROR)
                break
            data = self.bookie.entries[body.ledger_id, entry_id]
            size += len(data) + 4
            if bodies and size > limit:
                break
            bodies.append(data)
        return BatchReadResponse(status, body.ledger_id, body.entry_id, tuple(bodies))


def random_state(rng: random.Random, share: float) -> CopyState:
    if rng.random() >= share:
        return CopyState.WHOLE
    return rng.choice([CopyState.WHOLE, CopyState.CORRUPT, *STATUS_OF_STATE])


def holders_of(metadata: LedgerMetadata, entry_id: int, target: str) -> list[str]:
    bookies = metadata.fragment_of(entry_id).bookies
    sizes = metadata.ensemble_size, metadata.write_quorum
    return [bookies[i] for i in write_set(entry_id, *sizes) if bookies[i] != target]


def check_failures(
    report: CopyReport,
    lost: set[int],
    states_of: Callable[[int], dict[str, set[CopyState]]],
) -> None:
    """Checks that each lost entry is in a failure that names each of its holders with one of the
    states that it may report, and that a doubt is called one."""
    assert report.entries_failed == len(lost)
    assert sum(one.entries for one in report.failures) == len(lost)
    for entry_id in lost:
        states = states_of(entry_id)
        fitting = [
            one
            for one in report.failures
            if one.first_entry <= entry_id <= one.last_entry
            and all(
                name in one.reason and any(WORDS[state] in one.reason for state in options)
                for name, options in states.items()
            )
        ]
        assert fitting, (entry_id, states, report.failures)
        if any(options <= set(DOUBTFUL) for options in states.values()):
            assert any(one.is_doubt for one in fitting)
        if all(not options & set(DOUBTFUL) for options in states.values()):
            assert any(not one.is_doubt for one in fitting)


@pytest.mark.parametrize("seed", range(scaled(ci=40, night=1000)))
async def test_what_some_source_has_is_copied_and_the_rest_is_reported(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice(SIZES)
    wire_version = rng.choice([2, 2, 3])
    batch_bytes = rng.choice([2000, 1 << 20])
    payloads = [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 200))]
    async with (
        scripted_cluster(sizes[0] + 1) as cluster,
        cluster.client(
            wire_version=wire_version, read_timeout_s=0.4, batch_read_bytes=batch_bytes
        ) as client,
    ):
        digest_type = rng.choice([DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
        metadata = await written(client, payloads, sizes, digest_type)
        ledger_id = metadata.ledger_id
        target = await other_bookie(client, metadata)
        whole: dict[int, bytes] = {}
        damaged: dict[str, DamagedCopies] = {}
        share = rng.choice([0.02, 0.3, 1.0])
        names = metadata.fragments[0].bookies
        silent = {rng.choice(names)} if rng.random() < 0.25 else set()
        for name in names:
            bookie = cluster.bookie(name)
            ids = [e for i, e in bookie.entries if i == ledger_id]
            states = {e: random_state(rng, share) for e in ids}
            whole |= {e: bookie.entries[ledger_id, e] for e in states}
            copies = damaged[name] = DamagedCopies(bookie, rng, states)
            for entry_id, state in states.items():
                if state is CopyState.CORRUPT:
                    copies.corrupt(ledger_id, entry_id)
            bookie.script = copies.answer
            if name in silent:
                never = trio.Event()
                bookie.hold = lambda request, never=never: never  # type: ignore[misc]
        wanted = lacking(metadata)
        async with Copier(client, CopierOptions(bytes_per_s=0)) as copier:
            report = await copier.copy(metadata, target, wanted)
        ids = entries_of(wanted)

        def states_of(entry_id: int) -> dict[str, set[CopyState]]:
            found: dict[str, set[CopyState]] = {}
            for name in holders_of(metadata, entry_id, target):
                state = damaged[name].state(entry_id)
                # v2 has one code for an I/O error and for a ledger that the bookie may have lost.
                options = {state}
                if state is CopyState.UNKNOWN and wire_version == 2:
                    options = {CopyState.UNREADABLE}
                found[name] = {CopyState.UNREACHABLE} if name in silent else options
            return found

        readable = {e for e in ids if any(CopyState.WHOLE in s for s in states_of(e).values())}
        stored = cluster.bookie(target).entries
        assert {e for i, e in stored if i == ledger_id} == readable
        assert all(stored[ledger_id, e] == whole[e] for e in readable)
        assert report.entries == len(readable)
        assert report.payload_bytes == sum(len(payloads[e]) for e in readable)
        assert not report.target_error
        check_failures(report, set(ids) - readable, states_of)


def reads_of(bookie: ScriptedBookie) -> int:
    return sum(isinstance(r.body, BatchReadRequest | ReadRequest) for r in bookie.requests)


async def test_a_slow_source_gives_less_than_a_fast_one() -> None:
    async with scripted_cluster(4) as cluster, cluster.client(batch_read_bytes=2000) as client:
        metadata = await written(client, [b"x" * 5000 for _ in range(600)], (3, 3, 2))
        target = await other_bookie(client, metadata)
        slow, *fast = metadata.fragments[0].bookies
        async with trio.open_nursery() as nursery:

            def hold(request: Request) -> trio.Event | None:
                if not isinstance(request.body, BatchReadRequest):
                    return None
                due = trio.Event()

                async def release() -> None:
                    await trio.sleep(0.1)
                    due.set()

                nursery.start_soon(release)
                return due

            cluster.bookie(slow).hold = hold
            limits = CopierOptions(bytes_per_s=0, source_bytes_max=256 << 10)
            async with Copier(client, limits) as copier:
                report = await copier.copy(metadata, target, lacking(metadata))
        assert report.is_complete
        batches = {name: reads_of(cluster.bookie(name)) for name in (slow, *fast)}
        assert min(batches[name] for name in fast) > 2 * batches[slow]


async def test_bookies_without_the_ledger_are_asked_once() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        metadata = await written(client, [b"x" * 100] * 3000)
        target = await other_bookie(client, metadata)
        first, second = metadata.fragments[0].bookies

        def refuse(request: Request) -> ResponseBody | None:
            if isinstance(request.body, BatchReadRequest):
                first_id = request.body.entry_id
                return BatchReadResponse(Status.NO_SUCH_LEDGER, metadata.ledger_id, first_id)
            return None

        cluster.bookie(first).script = refuse
        async with Copier(client) as copier:
            report = await copier.copy(metadata, target, lacking(metadata))
            assert report.is_complete
            assert reads_of(cluster.bookie(first)) <= 6  # what was in flight
            cluster.bookie(second).script = refuse
            report = await copier.copy(metadata, target, lacking(metadata))
        (failure,) = report.failures
        assert (failure.first_entry, failure.last_entry, failure.entries) == (0, 2999, 3000)
        assert failure.reason in (f"missing on {first}, {second}", f"missing on {second}, {first}")
        assert not failure.is_doubt


async def test_the_given_sources_are_used_and_no_others() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        metadata = await written(client, [b"x" * 10] * 300)
        target = await other_bookie(client, metadata)
        first, second = metadata.fragments[0].bookies
        async with Copier(client) as copier:
            report = await copier.copy(
                metadata, target, lacking(metadata), sources=lambda entry_id: [target, second]
            )
        assert report.is_complete
        assert reads_of(cluster.bookie(first)) == 0
        assert reads_of(cluster.bookie(second)) >= 1


async def test_the_holders_share_the_work() -> None:
    async with scripted_cluster(4) as cluster, cluster.client(batch_read_bytes=65536) as client:
        metadata = await written(client, [b"x" * 1000] * 3000, (3, 3, 2))
        target = await other_bookie(client, metadata)
        async with Copier(client) as copier:
            assert (await copier.copy(metadata, target, lacking(metadata))).is_complete
        counts = [reads_of(cluster.bookie(name)) for name in metadata.fragments[0].bookies]
        assert min(counts) > sum(counts) / 6


async def test_a_bookie_that_is_not_registered_is_asked_last() -> None:
    async with scripted_cluster(3) as cluster, cluster.client() as client:
        metadata = await written(client, [b"x" * 1000] * 500)
        target = await other_bookie(client, metadata)
        gone, there = metadata.fragments[0].bookies
        await client.store.delete(f"/ledgers/available/{gone}")
        async with Copier(client) as copier:
            assert (await copier.copy(metadata, target, lacking(metadata))).is_complete
        assert reads_of(cluster.bookie(gone)) == 0
        assert reads_of(cluster.bookie(there)) >= 1


async def test_a_silent_source_costs_two_timeouts_for_all_ledgers_together() -> None:
    async with (
        scripted_cluster(3) as cluster,
        cluster.client(read_timeout_s=0.5) as client,
    ):
        ledgers = [await written(client, [b"x" * 100] * 50, (1, 1, 1)) for _ in range(12)]
        silent = ledgers[0].fragments[0].bookies[0]
        never = trio.Event()
        cluster.bookie(silent).hold = lambda request: never
        of_silent = [one for one in ledgers if one.fragments[0].bookies[0] == silent]
        target = await other_bookie(client, ledgers[0])
        began_s = trio.current_time()
        async with Copier(client) as copier:
            for metadata in of_silent:
                report = await copier.copy(metadata, target, lacking(metadata))
                (failure,) = report.failures
                assert failure.is_doubt
                assert f"{silent} does not answer" in failure.reason
                assert failure.entries == 50
        assert len(of_silent) >= 2
        assert trio.current_time() - began_s < 2.5
