"""Deleted ledgers give their space back and take nothing more; living ones lose nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.garbage import GarbageOptions, TombstoneSweep, is_droppable, should_seal
from bookie.storage.options import StorageOptions
from ledger.errors import InvalidArgument, MetadataUnavailable, NoSuchLedger, Status
from tests.bookie.storage.simulated_storage import SimulatedStorage

OPTIONS = StorageOptions(
    write_cache_bytes=8000,
    entry_log_bytes_max=2000,
    checkpoint_interval_s=1000,
    garbage=GarbageOptions(seal_age_s=0, asks_per_s_max=1e6, ledgers_per_round_max=3),
)


class Metadata:
    """Answers who is deleted, and remembers who was asked about."""

    def __init__(self, *deleted: int) -> None:
        self.deleted = deleted
        self.asked: list[int] = []

    async def is_deleted(self, ledger_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        self.asked.append(ledger_id)
        return ledger_id in self.deleted


def logs(simulated: SimulatedStorage) -> list[str]:
    return [name for name in simulated.disk.names if name.endswith(".log")]


async def test_a_deleted_ledger_gives_its_space_back() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for ledger in (1, 2):
            for i in range(40):
                simulated.add(ledger, i, b"x" * 100)
            await simulated.settle()
            await simulated.storage.checkpoint()
        before = len(logs(simulated))
        simulated.deleted[1] = None
        [collected] = await simulated.storage.collect_garbage(Metadata(1).is_deleted)
        assert (collected.ledgers_asked, collected.ledgers_deleted) == (2, 1)
        assert collected.logs_removed == before - len(logs(simulated)) == 1
        await simulated.check()
        with pytest.raises(NoSuchLedger):
            await simulated.storage.read(1, 0)
        with pytest.raises(NoSuchLedger):
            await simulated.storage.read_batch(1, 0, 0, 1000)
        assert simulated.storage.last_entry_id(1) == -1
        assert simulated.add(1, 40) is Status.FENCED
        assert simulated.add(1, 40, is_recovery=True) is Status.NO_SUCH_LEDGER


async def test_the_current_log_is_sealed_when_it_holds_deleted_entries() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0, b"only")
        await simulated.storage.checkpoint()
        assert len(logs(simulated)) == 1
        [collected] = await simulated.storage.collect_garbage(Metadata(1).is_deleted)
        assert collected.logs_removed == 1
        assert logs(simulated) == []
        simulated.add(2, 0, b"next")
        await simulated.settle()
        await simulated.storage.checkpoint()
        assert len(logs(simulated)) == 1
    successor = simulated.reopened()
    successor.deleted[1] = None
    async with successor.running():
        await successor.check()
        assert successor.storage.statistics().entry_logs_missing == 0
        assert successor.storage.statistics().entry_logs_stray == 0


async def test_an_error_is_not_an_answer() -> None:
    async def unavailable(_: int) -> bool:
        await trio.lowlevel.checkpoint()
        raise MetadataUnavailable("no connection")

    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
        [collected] = await simulated.storage.collect_garbage(unavailable)
        assert (collected.asks_failed, collected.ledgers_deleted) == (1, 0)
        await simulated.check()


async def test_nobody_is_asked_for_long_who_does_not_answer() -> None:
    asked: list[int] = []

    async def unavailable(ledger_id: int) -> bool:
        await trio.lowlevel.checkpoint()
        asked.append(ledger_id)
        raise MetadataUnavailable("no connection")

    garbage = GarbageOptions(asks_per_s_max=1e6, failures_max=2)
    simulated = SimulatedStorage(options=replace(OPTIONS, garbage=garbage))
    async with simulated.running():
        for ledger in range(5):
            simulated.add(ledger, 0)
        await simulated.storage.checkpoint()
        for is_forced in (False, False, True):
            await simulated.storage.collect_garbage(unavailable, is_forced=is_forced)
    assert asked == [0, 1, 2, 3, 0, 1]


async def test_rounds_go_on_where_the_last_one_ended() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    metadata = Metadata(2)
    async with simulated.running():
        for ledger in range(5):
            simulated.add(ledger, 0)
        await simulated.storage.checkpoint()
        for _ in range(3):
            await simulated.storage.collect_garbage(metadata.is_deleted)
        assert metadata.asked == [0, 1, 2, 3, 4, 0, 1, 3]


async def test_entries_still_in_memory_go_with_their_ledger() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0)
        await simulated.storage.checkpoint()
        simulated.add(1, 1)
        simulated.add(2, 0)
        await simulated.settle()
        simulated.deleted[1] = None
        await simulated.storage.collect_garbage(Metadata(1).is_deleted)
        await simulated.storage.checkpoint()
        await simulated.check()
        assert simulated.storage.last_entry_id(1) == -1


async def test_replay_does_not_bring_a_deleted_ledger_back() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        simulated.add(1, 0)
        await simulated.storage.checkpoint()  # the mark is still before the frame
        await simulated.storage.collect_garbage(Metadata(1).is_deleted)
    successor = simulated.reopened()
    async with successor.running():
        assert successor.storage.statistics().frames_replayed == 1
        state = successor.storage.state(1)
        assert state is not None
        assert state.is_deleted
        assert not successor.storage.directories[0].cache.active


async def test_waiting_long_polls_learn_that_the_ledger_is_gone() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    woken: list[bool] = []
    async with simulated.running():
        simulated.add(1, 0)
        await simulated.storage.checkpoint()
        state = simulated.storage.state(1)
        assert state is not None
        state.watch(-1, lambda: woken.append(True))
        await simulated.storage.collect_garbage(Metadata(1).is_deleted)
        assert woken == [True]


async def test_memory_does_not_keep_what_is_deleted() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for ledger in (1, 2, 3):
            simulated.add(ledger, 0)
        await simulated.storage.checkpoint()
        states = simulated.storage.directories[0].states
        watched = simulated.storage.state(3)
        assert watched is not None

        def watch_again() -> None:
            watched.watch(-1, watch_again)

        watch_again()
        await simulated.storage.collect_garbage(Metadata(1, 3).is_deleted)
        assert list(states) == [2, 3], "the only state must notify the waiters"
        state = simulated.storage.state(1)
        assert state is not None
        assert state.is_deleted
        assert simulated.storage.state(3) is watched


async def test_old_tombstones_are_forgotten() -> None:
    garbage = GarbageOptions(seal_age_s=0, asks_per_s_max=1e6, tombstones_max=1)
    simulated = SimulatedStorage(options=StorageOptions(garbage=garbage))
    async with simulated.running():
        for ledger in (1, 2):
            simulated.add(ledger, 0)
        await simulated.storage.checkpoint()
        await simulated.storage.collect_garbage(Metadata(1, 2).is_deleted)
        assert [simulated.storage.state(ledger) is None for ledger in (1, 2)] == [True, False]


@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_a_log_with_a_living_ledger_is_never_dropped(held: list[int], alive: set[int]) -> None:
    assert is_droppable(held, alive.__contains__) == (not set(held) & alive)
    sizes = dict.fromkeys(held, 1)
    assert should_seal(sizes, 10.0, alive.__contains__, 10.0) == bool(set(held) - alive)
    assert not should_seal(sizes, 9.9, alive.__contains__, 10.0)


@given(st.lists(st.integers(0, 100)), st.integers(0, 100), st.integers(0, 20), st.integers(0, 120))
def test_tombstones_kept_are_young_and_few(
    minutes: list[int], age_max: int, count_max: int, now: int
) -> None:
    sweep = TombstoneSweep(age_max * 60_000, count_max)
    tombstones = list(enumerate(minutes))
    forgotten: list[int] = []
    is_more = True
    while is_more:
        kept = [
            (ledger, minute)
            for ledger, minute in tombstones
            if not sweep.forgets(minute * 60_000, now * 60_000)
        ]
        forgotten += [minute for ledger, minute in tombstones if (ledger, minute) not in kept]
        tombstones = kept
        is_more = sweep.end_pass()
    young = [minute for minute in minutes if now - minute <= age_max]
    assert all(now - minute <= age_max for _, minute in tombstones)
    assert len(tombstones) == min(len(young), count_max)
    if tombstones:
        assert max(forgotten, default=0) <= min(minute for _, minute in tombstones)


async def test_a_damaged_record_of_a_deleted_ledger_stops_no_collection() -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for ledger in (1, 2):
            simulated.add(ledger, 0)
            await simulated.settle()
            await simulated.storage.checkpoint()
    simulated.deleted.update({1: None, 2: None})
    successor = simulated.reopened()
    async with successor.running():
        await successor.storage.checkpoint()
        pairs = successor.pairs["ledgers/index"]
        storage = successor.storage.directories[0]
        for ledger in (1, 2):
            storage._states.forget(ledger)
        [(key, value), _] = pairs.items(b"L", b"M")
        pairs.write([(key, value[:3])])
        [collected] = await successor.storage.collect_garbage(Metadata(1, 2).is_deleted)
        assert (collected.ledgers_deleted, logs(successor)) == (2, [])
        for ledger in (1, 2):
            state = successor.storage.state(ledger)
            assert state is not None
            assert state.is_deleted
            assert successor.add(ledger, 1) is not Status.OK


async def test_a_file_that_cannot_be_removed_stops_neither_collection_nor_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    simulated = SimulatedStorage(options=OPTIONS)
    async with simulated.running():
        for ledger in (1, 2, 3):
            for i in range(20):
                simulated.add(ledger, i, b"x" * 100)
            await simulated.settle()
            await simulated.storage.checkpoint()
        [stubborn, *others] = sorted(logs(simulated))
        really_remove = simulated.disk.remove

        async def remove(path: str) -> None:
            if path == stubborn:
                raise OSError(5, "Input/output error", path)
            await really_remove(path)

        simulated.disk.remove = remove  # type: ignore[method-assign]
        simulated.deleted.update({1: None, 2: None})
        [collected] = await simulated.storage.collect_garbage(Metadata(1, 2).is_deleted)
        assert collected.logs_removed >= 2
        assert len(others) - len(logs(simulated)) == collected.logs_removed - 2
        simulated.add(3, 20)
        await simulated.settle()
        await simulated.storage.checkpoint()
        await simulated.check()
    assert stubborn in caplog.text
    successor = simulated.reopened()
    async with successor.running():  # the disk refuses once more
        await successor.check()
        assert stubborn in logs(successor)
    successor.disk.remove = really_remove  # type: ignore[method-assign]
    last = successor.reopened()
    async with last.running():
        await last.check()
        assert stubborn not in logs(last)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ledgers_per_round_max": 0},
        {"tombstones_per_round_max": 0},
        {"asks_per_s_max": 0},
        {"seal_age_s": -1},
        {"failures_max": 0},
    ],
)
def test_settings_of_garbage_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        GarbageOptions(**wrong)  # type: ignore[arg-type]
