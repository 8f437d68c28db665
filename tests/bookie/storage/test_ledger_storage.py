"""The storage engine as a bookie sees it: what was acknowledged is read back; doubt is doubt."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from bookie.core.journal import JournalFailed
from bookie.core.ledger_state import LedgerState
from bookie.storage.entry_log.entry_logs import log_name
from bookie.storage.options import StorageFailed, StorageOptions
from ledger.errors import (
    BookieIoError,
    InvalidArgument,
    NoSuchEntry,
    NoSuchLedger,
    Status,
    UnknownLedgerState,
)
from tests.bookie.core.test_caches import KEY, make_entry
from tests.bookie.storage.memory_disk import MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage


async def test_entries_read_back_from_cache_and_from_the_entry_log() -> None:
    simulated = SimulatedStorage(checkpoints_when_due=False)
    async with simulated.running():
        for i in range(50):
            simulated.add(1, i, b"x" * i)
        cached = simulated.storage.read_cached(1, 49)
        assert cached is not None
        assert bytes(cached) == make_entry(1, 49, b"x" * 49)
        await simulated.settle()
        await simulated.check()
        await simulated.storage.checkpoint()
        assert not simulated.storage.directories[0].cache.segments
        assert simulated.storage.read_cached(1, 49) is None
        await simulated.check()
        assert simulated.storage.last_entry_id(1) == 49
        statistics = simulated.storage.statistics()
        assert (statistics.checkpoints, statistics.entries_flushed) == (1, 50)


@pytest.mark.parametrize("has_checkpoint", [False, True])
async def test_everything_is_there_after_a_restart(has_checkpoint: bool) -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        for i in range(30):
            simulated.add(i % 3, i // 3, b"a%d" % i, lac=i // 3 - 1)
        simulated.fence(2)
        simulated.write_lac(1, 9)
        await simulated.settle()
        if has_checkpoint:
            await simulated.storage.checkpoint()
    successor = simulated.reopened()
    async with successor.running():
        assert successor.storage.statistics().frames_replayed == (0 if has_checkpoint else 32)
        await successor.check()
        assert len(successor.acked) == 30
        lacs = [state.lac for i in range(3) if (state := successor.storage.state(i)) is not None]
        assert lacs == [8, 9, 8]
        assert successor.add(2, 10) is Status.FENCED
        assert successor.add(2, 10, is_recovery=True) is Status.OK


async def test_absent_entries_and_ledgers_are_distinguished() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        simulated.add(1, 5)
        for has_checkpoint in (False, True):
            if has_checkpoint:
                await simulated.storage.checkpoint()
            with pytest.raises(NoSuchEntry):
                await simulated.storage.read(1, 4)
            with pytest.raises(NoSuchEntry):
                await simulated.storage.read_batch(1, 6, 0, 1000)
            with pytest.raises(NoSuchLedger):
                await simulated.storage.read(2, 0)
        assert simulated.storage.last_entry_id(2) == -1


async def test_in_limbo_absence_is_unknown_and_stays_so_over_a_restart() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        simulated.add(1, 5)
        state = simulated.storage.state(1)
        assert state is not None
        state.is_limbo = True
        simulated.storage.state_changed(state)
        await simulated.settle()
        await simulated.storage.checkpoint()
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()
        with pytest.raises(UnknownLedgerState):
            await successor.storage.read(1, 4)


async def test_damaged_missing_or_short_entry_logs_are_doubt_not_absence() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        for i in range(3):
            simulated.add(1, i, b"p" * 100)
        await simulated.settle()
        await simulated.storage.checkpoint()
    path = f"ledgers/{log_name(1)}"
    whole = bytes(simulated.disk.names[path].data)
    for damaged in (whole[:-13], whole.replace(make_entry(1, 2)[:16], make_entry(1, 3)[:16]), None):
        if damaged is None:
            del simulated.disk.names[path]
        else:
            simulated.disk.names[path].data[:] = damaged
        successor = SimulatedStorage(simulated.disk, simulated.pairs)
        async with successor.running():
            with pytest.raises(BookieIoError):
                await successor.storage.read(1, 2)
            is_missing = damaged is None
            assert successor.storage.statistics().entry_logs_missing == int(is_missing)


async def test_batch_reads_follow_the_rule_of_sizes() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        entries = [make_entry(1, i, b"p" * (i * 7)) for i in range(40)]
        for i in range(20):
            simulated.add(1, i, b"p" * (i * 7))
        await simulated.storage.checkpoint()
        for i in range(20, 40):
            simulated.add(1, i, b"p" * (i * 7))
        rng = random.Random(2)
        for _ in range(300):
            first, count, size = rng.randrange(40), rng.randrange(-1, 30), rng.randrange(6000)
            expected: list[bytes] = []
            used = 36
            for entry in entries[first:]:
                used += len(entry) + 4
                if expected and (used > size or len(expected) == count):
                    break
                expected.append(entry)
            found = await simulated.storage.read_batch(1, first, count, size)
            assert [bytes(entry) for entry in found] == expected


async def test_an_entry_added_again_replaces_the_stored_one() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        for i in range(20):
            simulated.add(1, i, b"old")
        await simulated.settle()
        await simulated.storage.checkpoint()
        await simulated.check()  # fills the read cache
        simulated.fence(1)
        for i in (4, 5, 11, 19, 20):
            assert simulated.add(1, i, b"renewed", is_recovery=True) is Status.OK
        await simulated.settle()
        await simulated.check()
        batch = await simulated.storage.read_batch(1, 0, 0, 100_000)
        assert [bytes(e) for e in batch] == [simulated.acked[1, i] for i in range(21)]
        await simulated.storage.checkpoint()
        await simulated.check()
        batch = await simulated.storage.read_batch(1, 0, 0, 100_000)
        assert [bytes(e) for e in batch] == [simulated.acked[1, i] for i in range(21)]


async def test_while_a_flush_runs_and_the_other_half_is_full_adds_wait() -> None:
    simulated = SimulatedStorage()
    storage = simulated.storage
    async with simulated.running():
        i = 0
        while not storage.is_full:
            simulated.add(1, i, b"x" * 500)
            i += 1
            await trio.lowlevel.checkpoint()
            assert i < 1000, "never full"
        before = storage.statistics().checkpoints
        await storage.wait_capacity()
        assert storage.read_cached(1, i - 1) is not None
        assert storage.statistics().checkpoints > before
        await simulated.settle()
        await simulated.check()


async def test_states_in_memory_are_bounded_and_there_is_one_per_ledger() -> None:
    simulated = SimulatedStorage()  # keeps three
    async with simulated.running():
        for ledger in range(20):
            simulated.add(ledger, 0)
        kept = simulated.storage.state(7)
        await simulated.storage.checkpoint()
        for ledger in range(20):
            assert simulated.storage.state(ledger) is not None
        assert len(simulated.storage.directories[0].states) <= 3
        assert 7 not in simulated.storage.directories[0].states
        assert simulated.storage.state(7) is kept


async def test_the_state_just_asked_for_is_held() -> None:
    simulated = SimulatedStorage()  # keeps three
    async with simulated.running():
        for ledger in range(5):
            simulated.add(ledger, 0)
        await simulated.storage.checkpoint()
        for ledger in (0, 1, 2):  # busy ones, which may not be let go instead
            simulated.add(ledger, 1)
        assert simulated.storage.state(4) is simulated.storage.directories[0].states[4]


async def test_a_watched_state_is_not_let_go() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        for ledger in range(10):
            simulated.add(ledger, 0)
        state = simulated.storage.state(0)
        assert state is not None
        state.watch(-1, lambda: None)
        await simulated.storage.checkpoint()
        for ledger in range(1, 10):
            simulated.storage.state(ledger)
        assert simulated.storage.directories[0].states[0] is state


async def test_fence_calls_back_only_when_durable_and_for_everyone() -> None:
    simulated = SimulatedStorage()
    calls: list[str] = []

    def fence(state: LedgerState, name: str) -> None:
        simulated.storage.fence(state, lambda: calls.append(name))

    async with simulated.running():
        simulated.disk.gate = trio.Event()
        state = simulated.storage.create(1, KEY)
        fence(state, "first")
        fence(state, "second")
        assert state.is_fenced
        await trio.testing.wait_all_tasks_blocked()
        fence(state, "third")
        await trio.testing.wait_all_tasks_blocked()
        assert calls == []
        assert not state.is_fence_durable
        simulated.disk.gate.set()
        await simulated.settle()
        assert calls == ["first", "second", "third"]
        fence(state, "fourth")
        assert calls[3:] == ["fourth"]


async def test_an_explicit_lac_that_nobody_waits_for_costs_no_sync() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        state = simulated.storage.create(1, KEY)
        syncs = simulated.storage.journals[0].statistics().syncs
        packet = (1).to_bytes(8, "big") + (5).to_bytes(8, "big") + b"crc!"
        simulated.storage.set_explicit_lac(state, 5, packet, None)
        await trio.testing.wait_all_tasks_blocked()
        assert (state.lac, simulated.storage.journals[0].statistics().syncs) == (5, syncs)


async def test_a_lower_explicit_lac_changes_nothing() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        simulated.write_lac(1, 7)
        simulated.write_lac(1, 3)
        state = simulated.storage.state(1)
        assert state is not None
        assert (state.lac, state.explicit_lac_id) == (7, 7)
        assert state.explicit_lac is not None
        assert state.explicit_lac[8:16] == (7).to_bytes(8, "big")


@pytest.mark.parametrize("operation", ["write_at", "sync", "sync_directory", "rename"])
async def test_a_failed_checkpoint_poisons_the_storage(operation: str) -> None:
    simulated = SimulatedStorage()
    with pytest.RaisesGroup(StorageFailed):
        async with simulated.running():
            simulated.add(1, 0)
            await simulated.settle()
            simulated.disk.errors[operation] = OSError(5, "no disk")
            with pytest.raises(StorageFailed):
                await simulated.storage.checkpoint()
            assert isinstance(simulated.storage.failure, StorageFailed)
            with pytest.raises(StorageFailed):
                await simulated.storage.checkpoint()
            simulated.storage.directories[0].task.poison(StorageFailed("again"))
            raise simulated.storage.failure
    del simulated.disk.errors[operation]
    successor = simulated.reopened()
    async with successor.running():
        await successor.check()


async def test_a_failed_journal_ends_the_run_and_wakes_who_waits_for_room() -> None:
    simulated = SimulatedStorage()
    await simulated.storage.start()
    simulated.add(1, 0)
    simulated.disk.errors["write_at_synced"] = OSError(5, "no disk")
    with pytest.raises(JournalFailed):
        await simulated.storage.run()
    assert isinstance(simulated.storage.failure, JournalFailed)
    simulated.storage.directories[0].cache.count(1 << 30)
    with pytest.raises(JournalFailed):
        await simulated.storage.wait_capacity()
    with pytest.raises(JournalFailed):
        await simulated.storage.checkpoint()


async def test_an_index_older_than_the_mark_is_refused() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        simulated.add(1, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
    with pytest.raises(BookieIoError, match="index directory"):
        await SimulatedStorage(simulated.disk).storage.start()
    assert f"ledgers/{log_name(1)}" in simulated.disk.names


async def test_a_damaged_mark_is_refused() -> None:
    simulated = SimulatedStorage()
    async with simulated.running():
        simulated.add(1, 0)
        await simulated.settle()
        await simulated.storage.checkpoint()
    simulated.disk.names["ledgers/lastmark"].data[9] ^= 1
    with pytest.raises(BookieIoError, match="checksum"):
        await simulated.reopened().storage.start()


async def test_replay_of_more_than_the_cache_holds() -> None:
    simulated = SimulatedStorage(
        options=StorageOptions(write_cache_bytes=1 << 20, checkpoint_interval_s=1000)
    )
    async with simulated.running():
        for i in range(200):
            simulated.add(i % 5, i // 5, b"r" * 200)
        await simulated.settle()
        assert simulated.storage.statistics().checkpoints == 0
    successor = simulated.reopened()
    successor.options = StorageOptions(write_cache_bytes=6000)
    successor = successor.reopened()
    async with successor.running():
        await successor.check()
        assert successor.storage.statistics().checkpoints > 5
        assert len(successor.acked) == 200


@pytest.mark.parametrize(
    "wrong",
    [{"write_cache_bytes": 0}, {"read_ahead_bytes": -1}, {"checkpoint_interval_s": 0.0}],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        StorageOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
async def test_reads_are_right_while_checkpoints_move_entries(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read may fall between caches and index, or see an entry from before its re-add."""
    monkeypatch.setattr(MemoryFile, "read_nowait", lambda *_, **__: None)  # every read waits
    rng = random.Random(seed)
    simulated = SimulatedStorage()
    reads = 0

    async def read() -> None:
        nonlocal reads
        while True:
            await trio.lowlevel.checkpoint()
            ledger_id, entry_id = rng.choice(list(simulated.acked))
            entry = simulated.acked[ledger_id, entry_id]
            if rng.random() < 0.5:
                found = bytes(await simulated.storage.read(ledger_id, entry_id))
            else:
                found = bytes((await simulated.storage.read_batch(ledger_id, entry_id, 5, 400))[0])
            later = simulated.attempted[ledger_id, entry_id]
            assert found in [entry, simulated.acked[ledger_id, entry_id], *later]
            reads += 1

    async with simulated.running(), trio.open_nursery() as nursery:
        simulated.add(0, 0)
        await simulated.settle()
        for _ in range(3):
            nursery.start_soon(read)
        for i in range(120):
            simulated.add(i % 3, rng.randrange(60), b"%d" % i * rng.randrange(30))
            if rng.random() < 0.2:
                await simulated.settle()
            if rng.random() < 0.1:
                nursery.start_soon(simulated.storage.checkpoint)
            while simulated.storage.is_full:
                await simulated.storage.wait_capacity()
        await simulated.settle()
        await simulated.storage.checkpoint()
        await simulated.check()
        nursery.cancel_scope.cancel()
    assert reads > 100
    assert simulated.storage.statistics().disk_reads > 10
