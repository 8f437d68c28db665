"""Opening and recovering ledgers on bookie doubles, with trio's clock and lost messages."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import write_set
from ledger.errors import (
    LedgerError,
    NoSuchLedger,
    RecoveryIncomplete,
    Status,
    Unauthorized,
)
from ledger.wire.messages import AddRequest, ReadRequest
from tests.effort import stride
from tests.ledger.bookie_double import PASSWORD, FaultyBookies, make_faulty_bookies


async def test_recovery_closes_an_open_ledger_at_its_last_entry(
    autojump_clock: MockClock,
) -> None:
    async with make_faulty_bookies() as world:
        metadata = await world.create()
        world.put(metadata, 0, 40)
        reader = await world.opener.open_ledger(7, password=PASSWORD)
        assert reader.is_closed
        assert (reader.last_add_confirmed, reader.length) == (40, 41 * 5)
        stored, _ = await world.ledgers.read(7)
        assert stored == reader.metadata
        entries = await reader.read(0, 40)
        assert [e.entry_id for e in entries] == list(range(41))


async def test_an_empty_ledger_is_closed_empty(autojump_clock: MockClock) -> None:
    async with make_faulty_bookies() as world:
        await world.create()
        closed = await world.opener.metadata_for_reading(7, password=PASSWORD)
        assert (closed.last_entry_id, closed.length) == (-1, 0)


async def test_a_closed_ledger_is_opened_without_asking_any_bookie(
    autojump_clock: MockClock,
) -> None:
    async with make_faulty_bookies() as world:
        metadata = await world.create()
        await world.close(metadata, 3)
        reader = await world.opener.open_ledger(7, password=PASSWORD)
        assert reader.last_add_confirmed == 3
        assert not any(b.calls for b in world.bookies.values())


async def test_without_recovery_no_writer_is_fenced(autojump_clock: MockClock) -> None:
    async with make_faulty_bookies() as world:
        metadata = await world.create()
        world.put(metadata, 0, 9)
        reader = await world.opener.open_ledger(7, password=PASSWORD, recover=False)
        assert not reader.is_closed
        assert reader.last_add_confirmed == 8  # the LAC in entry 9
        assert not any(b.ledgers[7].is_fenced for b in world.bookies.values() if b.ledgers)
        assert (await world.ledgers.read(7))[0].state is LedgerState.OPEN


async def test_recovery_fences_every_read_and_flags_every_add(autojump_clock: MockClock) -> None:
    async with make_faulty_bookies() as world:
        metadata = await world.create()
        world.put(metadata, 0, 3)
        await world.opener.metadata_for_reading(7, password=PASSWORD)
        calls = [call for b in world.bookies.values() for call in b.calls]
        assert all(c.is_fencing and c.master_key for c in calls if isinstance(c, ReadRequest))
        assert all(c.is_recovery for c in calls if isinstance(c, AddRequest))
        assert any(isinstance(c, AddRequest) for c in calls)


async def test_a_wrong_password_is_refused_before_anything_happens(
    autojump_clock: MockClock,
) -> None:
    async with make_faulty_bookies() as world:
        await world.create()
        with pytest.raises(Unauthorized):
            await world.opener.open_ledger(7, password=b"guess")
        assert (await world.ledgers.read(7))[0].state is LedgerState.OPEN


async def test_no_such_ledger(autojump_clock: MockClock) -> None:
    async with make_faulty_bookies() as world:
        with pytest.raises(NoSuchLedger):
            await world.opener.open_ledger(7, password=PASSWORD)


async def test_an_unknown_state_leaves_the_ledger_in_recovery_for_the_next_client(
    autojump_clock: MockClock,
) -> None:
    async with make_faulty_bookies() as world:
        metadata = await world.create()
        world.put(metadata, 0, 9)
        for name in ("b1", "b2"):
            world.bookies[name].trouble.read_status = Status.UNKNOWN_LEDGER_STATE
        with pytest.raises(RecoveryIncomplete, match="UNKNOWN_LEDGER_STATE"):
            await world.opener.open_ledger(7, password=PASSWORD)
        assert (await world.ledgers.read(7))[0].state is LedgerState.IN_RECOVERY
        world.bookies["b1"].trouble.read_status = None
        reader = await world.opener.open_ledger(7, password=PASSWORD)
        assert reader.last_add_confirmed == 9


async def test_a_bookie_that_dies_during_recovery_is_replaced(autojump_clock: MockClock) -> None:
    async with make_faulty_bookies(bookies=5) as world:
        metadata = await world.create()
        world.put(metadata, 0, 9)
        # It still answers reads, but refuses adds, and does so before the others answer.
        double = world.bookies["b0"]
        for name in ("b1", "b2"):
            world.bookies[name].trouble.delay_s = 0.05
        double.add = lambda body: Status.IO_ERROR  # type: ignore[method-assign]
        reader = await world.opener.open_ledger(7, password=PASSWORD)
        assert reader.last_add_confirmed == 9
        assert "b0" not in reader.metadata.last_fragment.bookies
        assert reader.metadata.fragments[0].bookies == ("b0", "b1", "b2")
        assert [e.entry_id for e in await reader.read(0, 9)] == list(range(10))


async def test_a_request_to_a_busy_bookie_is_retried(autojump_clock: MockClock) -> None:
    async with make_faulty_bookies() as world:
        metadata = await world.create()
        world.put(metadata, 0, 3)
        for name in ("b0", "b1", "b2"):
            world.bookies[name].trouble.read_status = Status.TOO_MANY_REQUESTS

        async def become_idle() -> None:
            await trio.sleep(0.3)
            for double in world.bookies.values():
                double.trouble.read_status = None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(become_idle)
            closed = await world.opener.metadata_for_reading(7, password=PASSWORD)
        assert closed.last_entry_id == 3


async def test_recovery_may_be_cancelled_at_any_point(autojump_clock: MockClock) -> None:
    for stop_ms in range(0, 60, 4):
        async with make_faulty_bookies(seed=stop_ms) as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            for double in world.bookies.values():
                double.trouble.delay_s = 0.004
            with trio.move_on_after(stop_ms / 1000):
                await world.opener.metadata_for_reading(7, password=PASSWORD)
            closed = await world.opener.metadata_for_reading(7, password=PASSWORD)
            assert closed.last_entry_id == 9


async def write(world: FaultyBookies, metadata: LedgerMetadata, confirmed: list[int]) -> None:
    """Adds entries until one is refused, and records the confirmed ones."""
    for entry_id in range(40):
        request = world.request(metadata, entry_id, entry_id - 1)
        oks: list[str] = []
        enough = trio.Event()

        async def add(
            name: str,
            request: AddRequest = request,
            oks: list[str] = oks,
            enough: trio.Event = enough,
        ) -> None:
            try:
                answer = await world.pool.call(name, request, timeout_s=1.0)
            except LedgerError:
                return
            if answer.status is Status.OK:
                oks.append(name)
                if len(oks) == metadata.ack_quorum:
                    enough.set()

        async with trio.open_nursery() as nursery:
            bookies = metadata.fragment_of(entry_id).bookies
            for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                nursery.start_soon(add, bookies[i])
            with trio.move_on_after(1.5):
                await enough.wait()
            nursery.cancel_scope.cancel()
        if not enough.is_set():
            return
        confirmed.append(entry_id)


async def duel(seed: int) -> None:
    rng = random.Random(seed)
    sizes = rng.choice([(3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (2, 2, 1)])
    async with make_faulty_bookies(bookies=5, seed=seed) as world:
        metadata = await world.create(sizes=sizes)
        for double in world.bookies.values():
            double.trouble.delay_s = rng.choice([0.0001, 0.002, 0.02])
            double.trouble.loss = rng.choice([0.0, 0.0, 0.03])
        confirmed: list[int] = []
        results: list[LedgerMetadata] = []

        async def recover(after_s: float) -> None:
            await trio.sleep(after_s)
            for _ in range(50):
                try:
                    results.append(await world.opener.metadata_for_reading(7, password=PASSWORD))
                except RecoveryIncomplete:
                    await trio.sleep(0.1)
                else:
                    return
            raise AssertionError("recovery never ended")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, world, metadata, confirmed)
            start_s = rng.uniform(0, 0.1)
            nursery.start_soon(recover, start_s)
            nursery.start_soon(recover, start_s + rng.uniform(0, 0.05))
        assert results[0] == results[1]
        assert results[0].last_entry_id >= max(confirmed, default=-1)
        for double in world.bookies.values():
            double.trouble.loss = 0.0
        if results[0].last_entry_id >= 0:
            reader = await world.opener.open_ledger(7, password=PASSWORD)
            entries = await reader.read(0, results[0].last_entry_id)
            assert [e.entry_id for e in entries] == list(range(len(entries)))
            assert entries[-1].length == reader.length


@pytest.mark.parametrize("block", range(3))
def test_two_recoveries_and_an_active_writer_agree(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25, stride(ci=6)):
        trio.run(duel, seed, clock=MockClock(autojump_threshold=0))


async def test_fragments_changed_by_recovery_are_stored_with_the_end(
    autojump_clock: MockClock,
) -> None:
    fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(5, ("b0", "b3", "b2")))
    async with make_faulty_bookies(bookies=5) as world:
        metadata = await world.create(fragments=fragments)
        world.put(metadata, 0, 4)
        reader = await world.opener.open_ledger(7, password=PASSWORD)
        assert (reader.last_add_confirmed, reader.length) == (4, 25)
        assert reader.metadata.fragments == fragments
