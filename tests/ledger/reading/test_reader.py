"""Reading and tailing ledgers on bookie doubles."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from ledger.core.entry import Entry
from ledger.core.metadata import Fragment
from ledger.errors import (
    BookieIoError,
    DigestMismatch,
    InvalidArgument,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    Status,
    UnknownLedgerState,
)
from ledger.options import ClientOptions
from ledger.reading.reader import LedgerReader
from ledger.wire.messages import BatchReadRequest, ReadRequest
from tests.ledger.bookie_double import PASSWORD, FaultyBookies, make_faulty_bookies


async def closed(
    world: FaultyBookies, last: int, size: int = 5, sizes: tuple[int, int, int] = (3, 3, 2)
) -> LedgerReader:
    metadata = await world.create(sizes=sizes)
    world.put(metadata, 0, last, size)
    await world.close(metadata, last, size)
    return await world.opener.open_ledger(7, password=PASSWORD)


async def opened(world: FaultyBookies) -> LedgerReader:
    return await world.opener.open_ledger(7, password=PASSWORD, recover=False)


async def collect(iterator: AsyncIterator[list[Entry]]) -> list[int]:
    return [entry.entry_id async for entries in iterator for entry in entries]


class TestRanges:
    async def test_entries_are_returned_in_order_and_completely(
        self, autojump_clock: MockClock
    ) -> None:
        options = ClientOptions(batch_read_bytes=4000, read_ahead_bytes=20_000)
        async with make_faulty_bookies(options=options) as world:
            for double in world.bookies.values():
                double.trouble.delay_s = 0.01
            reader = await closed(world, 999, size=60)
            assert await collect(reader.entries(0)) == list(range(1000))
            assert await collect(reader.entries(17, 333)) == list(range(17, 334))
            assert [e.payload.rstrip(b"\0") for e in await reader.read(5, 7)] == [b"5", b"6", b"7"]

    async def test_read_ahead_is_bounded_by_bytes(self, autojump_clock: MockClock) -> None:
        options = ClientOptions(batch_read_bytes=4000, read_ahead_bytes=12_000)
        async with make_faulty_bookies(options=options) as world:
            reader = await closed(world, 999, size=100)
            entries = reader.entries(0)
            await entries.__anext__()
            await trio.testing.wait_all_tasks_blocked()
            asked = [c for b in world.bookies.values() for c in b.calls]
            assert all(isinstance(call, BatchReadRequest) for call in asked)
            # One entry is delivered and 12,000 bytes are read ahead, never all 100,000.
            assert 2 <= len(asked) <= 5

    async def test_striped_ledgers_are_read_entry_by_entry(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies() as world:
            reader = await closed(world, 99, sizes=(4, 2, 2))
            assert await collect(reader.entries(0)) == list(range(100))
            assert all(isinstance(c, ReadRequest) for b in world.bookies.values() for c in b.calls)

    async def test_a_range_across_fragments_is_read_from_the_right_bookies(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies(bookies=6) as world:
            fragments = (
                Fragment(0, ("b0", "b1", "b2")),
                Fragment(10, ("b3", "b1", "b2")),
                Fragment(20, ("b3", "b4", "b5")),
            )
            metadata = await world.create(fragments=fragments)
            world.put(metadata, 0, 29)
            await world.close(metadata, 29)
            reader = await world.opener.open_ledger(7, password=PASSWORD)
            assert [e.entry_id for e in await reader.read(0, 29)] == list(range(30))

    async def test_a_bookie_without_batch_reads_is_read_one_by_one(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies() as world:
            for double in world.bookies.values():
                double.trouble.no_batches = True
            reader = await closed(world, 50)
            assert await collect(reader.entries(0)) == list(range(51))
            refused = [
                c
                for b in world.bookies.values()
                for c in b.calls
                if isinstance(c, BatchReadRequest)
            ]
            assert len(refused) == 1

    async def test_a_range_beyond_the_end_is_refused(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies() as world:
            reader = await closed(world, 9)
            for first, last in ((0, 10), (-1, 3), (5, 4), (10, 10)):
                with pytest.raises(InvalidArgument):
                    await reader.read(first, last)
            assert await collect(reader.entries(10)) == []

    async def test_an_iterator_may_be_dropped(self, autojump_clock: MockClock) -> None:
        options = ClientOptions(batch_read_bytes=1000)
        async with make_faulty_bookies(options=options) as world:
            reader = await closed(world, 999)
            async for _ in reader.entries(0):
                break


class TestReplicas:
    @pytest.mark.parametrize(
        ("status", "error"),
        [
            (Status.IO_ERROR, BookieIoError),
            (Status.UNKNOWN_LEDGER_STATE, UnknownLedgerState),
            (Status.NO_SUCH_ENTRY, NoSuchEntry),
            (Status.NO_SUCH_LEDGER, NoSuchLedger),
        ],
    )
    async def test_one_good_replica_is_enough_and_none_is_a_clear_error(
        self, autojump_clock: MockClock, status: Status, error: type[LedgerError]
    ) -> None:
        async with make_faulty_bookies() as world:
            reader = await closed(world, 9)
            for name in ("b0", "b1"):
                world.bookies[name].trouble.read_status = status
            assert len(await reader.read(0, 9)) == 10
            world.bookies["b2"].trouble.read_status = status
            with pytest.raises(error, match="b0: "):
                await reader.read(0, 9)

    async def test_an_entry_is_absent_only_if_all_replicas_lack_it(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies() as world:
            reader = await closed(world, 9)
            world.bookies["b0"].trouble.read_status = Status.NO_SUCH_ENTRY
            world.bookies["b1"].trouble.read_status = Status.NO_SUCH_ENTRY
            world.bookies["b2"].trouble.is_down = True
            with pytest.raises(LedgerError) as caught:
                await reader.read(0, 9)
            assert caught.value.retry_is_safe

    async def test_a_corrupt_entry_is_fetched_from_another_replica(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies() as world:
            reader = await closed(world, 99)
            for name, entry_id in (("b0", 40), ("b1", 60), ("b2", 80)):
                world.bookies[name].trouble.corrupt.add(entry_id)
            assert await collect(reader.entries(0)) == list(range(100))
            assert 1 <= reader.statistics().digest_mismatches <= 4

    async def test_an_entry_corrupt_everywhere_is_never_served(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies() as world:
            reader = await closed(world, 9)
            for double in world.bookies.values():
                double.trouble.corrupt.add(5)
            assert len(await reader.read(0, 4)) == 5
            with pytest.raises(DigestMismatch):
                await reader.read(0, 9)

    async def test_a_slow_replica_is_hedged_and_then_avoided(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies(options=ClientOptions(speculative_read_s=0.2)) as world:
            reader = await closed(world, 9)
            first = reader._fetch.order.order(reader.metadata, 0, 0.0)[0]
            world.bookies[first].trouble.delay_s = 3.0
            began = trio.current_time()
            await reader.read(0, 9)
            assert trio.current_time() - began == pytest.approx(0.2, abs=0.01)
            assert reader.statistics().hedges == 1
            began = trio.current_time()
            await reader.read(0, 9)
            assert trio.current_time() - began < 0.01

    async def test_entries_that_moved_are_found(self, autojump_clock: MockClock) -> None:
        """A long-lived reader must not keep old ensembles (BookKeeper issue 4613)."""
        async with make_faulty_bookies(bookies=6) as world:
            reader = await closed(world, 9)
            metadata, version = await world.ledgers.read(7)
            moved = type(metadata)(
                **{
                    name: getattr(metadata, name)
                    for name in metadata.__dataclass_fields__
                    if name != "fragments"
                },
                fragments=(Fragment(0, ("b3", "b4", "b5")),),
            )
            await world.ledgers.compare_and_put(moved, version)
            world.put(moved, 0, 9)
            for name in ("b0", "b1", "b2"):
                world.bookies[name].ledgers.clear()
            assert len(await reader.read(0, 9)) == 10


class TestLac:
    async def test_the_greater_of_explicit_and_piggybacked_lac_counts(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies() as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            reader = await opened(world)
            assert reader.last_add_confirmed == 8
            world.bookies["b1"].set_lac(7, 9)
            world.bookies["b2"].trouble.is_down = True
            assert await reader.read_last_confirmed() == 9

    async def test_too_many_silent_bookies_are_an_error(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies() as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            reader = await opened(world)
            for name in ("b0", "b1"):
                world.bookies[name].trouble.is_down = True
            with pytest.raises(NotEnoughBookies, match="b0"):
                await reader.read_last_confirmed()
            assert reader.last_add_confirmed == 8

    async def test_waiting_ends_at_the_deadline(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies() as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            reader = await opened(world)
            began = trio.current_time()
            assert await reader.wait_lac_after(8, 5.0) == 8
            assert trio.current_time() - began == pytest.approx(5.0, abs=0.1)
            # It is parked and does not spin.
            assert reader.statistics().long_polls <= 4

    async def test_a_long_poll_returns_the_entry_as_well(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies() as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            reader = await opened(world)

            async def append() -> None:
                await trio.sleep(0.1)
                world.put(metadata, 10, 10)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                assert await reader.wait_lac_after(8, 5.0) == 9
            entry = reader.take_piggybacked(9)
            assert entry is not None
            assert entry.payload.rstrip(b"\0") == b"9"


class TestTail:
    async def follow(self, reader: LedgerReader, seen: list[int]) -> None:
        async for entries in reader.tail(0):
            seen += [entry.entry_id for entry in entries]

    async def test_follows_until_the_ledger_is_closed(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies() as world:
            metadata = await world.create()
            reader = await opened(world)
            seen: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.follow, reader, seen)
                for entry_id in range(60):
                    await trio.sleep(0.01 if entry_id % 7 else 1.0)
                    world.put(metadata, entry_id, entry_id)
                    assert len(seen) <= entry_id  # no unconfirmed entry is ever returned
                await trio.sleep(1)
                assert seen == list(range(59))
                await world.close(metadata, 59)
            assert seen == list(range(60))
            assert reader.is_closed

    async def test_moves_to_the_bookies_of_a_new_ensemble(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies(bookies=6) as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            reader = await opened(world)
            seen: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.follow, reader, seen)
                await trio.sleep(1)
                metadata = await world.ledgers.update(
                    7, lambda m: m.with_ensemble(10, ("b3", "b4", "b5"))
                )
                for name in ("b0", "b1", "b2"):
                    world.bookies[name].trouble.delay_s = 0.01
                world.put(metadata, 10, 20)
                await trio.sleep(1)
                assert seen == list(range(20))
                await world.close(metadata, 20)
            assert seen == list(range(21))

    async def test_a_bookie_that_lags_is_overtaken(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies(options=ClientOptions(speculative_read_s=0.1)) as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            reader = await opened(world)
            lagging = reader._fetch.order.order(metadata, 9, 0.0)[0]
            seen: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.follow, reader, seen)
                await trio.sleep(0.05)
                for entry_id in range(10, 20):
                    for name in ("b0", "b1", "b2"):
                        if name != lagging:
                            world.bookies[name].add(world.request(metadata, entry_id, entry_id - 1))
                    await trio.sleep(0.3)
                assert seen == list(range(19))
                nursery.cancel_scope.cancel()

    async def test_ends_with_an_error_when_the_ledger_is_deleted(
        self, autojump_clock: MockClock
    ) -> None:
        async with make_faulty_bookies() as world:
            await world.create()
            reader = await opened(world)

            async def delete() -> None:
                await trio.sleep(1)
                await world.ledgers.delete(7)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete)
                with pytest.raises(NoSuchLedger):
                    await collect(reader.tail(0))

    async def test_continues_after_an_error_where_it_stopped(
        self, autojump_clock: MockClock
    ) -> None:
        options = ClientOptions(batch_read_bytes=500, read_ahead_bytes=1000)
        async with make_faulty_bookies(options=options) as world:
            reader = await closed(world, 199)
            tail = reader.tail(0)
            seen: list[int] = []

            async def take_all() -> None:
                async for entries in tail:
                    seen.extend(entry.entry_id for entry in entries)
                    for double in world.bookies.values():
                        double.trouble.is_down = len(seen) < 100

            with pytest.raises(LedgerError) as caught:
                await take_all()
            assert caught.value.retry_is_safe
            assert 0 < len(seen) < 100
            for double in world.bookies.values():
                double.trouble.is_down = False
            seen += await collect(tail)
            assert seen == list(range(200))

    async def test_lac_never_decreases(self, autojump_clock: MockClock) -> None:
        async with make_faulty_bookies() as world:
            metadata = await world.create()
            world.put(metadata, 0, 9)
            reader = await opened(world)
            for double in world.bookies.values():
                double.ledgers.clear()
            assert await reader.read_last_confirmed() == 8
