"""The flags of `Capacity` equal, after each step of each task, what asking every part returns."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio
import trio.testing

from bookie.core.caches import SharedSegment
from bookie.core.journal import FlushPolicy
from bookie.server.backpressure import RESERVE
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.options import StorageFailed
from tests.bookie.core.test_caches import make_frame
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.effort import scaled, seeds

BYTES_MAX = 1500
CALLBACKS_MAX = 12
STEPS = scaled(ci=250, night=1500)


class Twin:
    """Asks every part, as connections did before there were flags."""

    def __init__(self, storage: BookieStorage) -> None:
        self._storage = storage

    @staticmethod
    def is_due(directory: LedgerStorage) -> bool:
        cache, states = directory.cache, directory._states
        filled = max(cache.nbytes, cache.released_bytes) / cache.bytes_max
        return filled >= 1 or len(states._dirty) >= states._states_max

    def is_directory_full(self, directory: LedgerStorage) -> bool:
        task = directory.task
        if not self.is_due(directory):
            return False
        return task._is_checkpointing or task.is_waiting_for_disk or task.failure is not None

    @staticmethod
    def are_states_over(directory: LedgerStorage) -> bool:
        states = directory._states
        return len(states._dirty) >= 2 * states._states_max

    def is_full(self) -> bool:
        storage = self._storage
        is_full = any(map(self.is_directory_full, storage.directories))
        return is_full and not (storage.gate.is_shut and storage.failure is None)

    def is_limited(self) -> bool:
        return self.is_full() or any(
            journal.queued_bytes > BYTES_MAX for journal in self._storage.journals
        )

    def is_critical(self) -> bool:
        for journal in self._storage.journals:
            if journal.queued_bytes > BYTES_MAX * RESERVE:
                return True
            if journal.queued_callbacks > CALLBACKS_MAX:
                return True
        return any(map(self.are_states_over, self._storage.directories))


class Comparison(trio.abc.Instrument):
    """Compares flags and twin after each step of a task, and counts what the flags said."""

    def __init__(self, storage: BookieStorage) -> None:
        self.seen: set[tuple[str, bool]] = set()
        self.failure: AssertionError | None = None
        self._storage = storage
        self._twin = Twin(storage)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        # trio switches off an instrument that raises, so the error is kept for `check`.
        try:
            self.compare()
        except AssertionError as error:
            error.add_note(f"after a step of {task.name}")
            self.failure = self.failure or error

    def compare(self) -> None:
        storage, twin = self._storage, self._twin
        capacity = storage.capacity
        for name, flag, asked in (
            ("full", capacity.is_full, twin.is_full()),
            ("limited", capacity.is_limited, twin.is_limited()),
            ("critical", capacity.is_critical, twin.is_critical()),
        ):
            assert flag is asked, name
            self.seen.add((name, flag))
        for directory in storage.directories:
            assert directory.capacity.is_due is twin.is_due(directory)
            assert directory.is_full is twin.is_directory_full(directory)
            assert directory.capacity.are_states_over is twin.are_states_over(directory)
        for journal in storage.journals:
            assert journal.capacity.is_limited is (journal.queued_bytes > BYTES_MAX)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure


class Load:
    """One random change after the other, of all kinds that fill or free."""

    def __init__(
        self, simulated: SimulatedStorage, rng: random.Random, nursery: trio.Nursery
    ) -> None:
        self.simulated, self.rng, self.nursery = simulated, rng, nursery
        self.has_space = True

    async def grants(self, _: int) -> bool:
        await trio.lowlevel.checkpoint()
        return self.has_space

    async def step(self) -> None:
        changes = (
            self.add, self.add, self.add, self.add_as_received, self.share_a_segment, self.fence,
            self.write_lac, self.wait, self.wait_for_group, self.checkpoint, self.change_gate,
            self.change_disk, self.pass_time, self.delete,
        )  # fmt: skip
        await self.rng.choice(changes)()

    async def add(self) -> None:
        for _ in range(self.rng.randrange(8)):
            size = self.rng.choice([0, 100, 900])
            self.simulated.add(self.rng.randrange(12), self.rng.randrange(1000), bytes(size))

    async def add_as_received(self) -> None:
        """As `AddIntake` does it: straight from a receive buffer, which is then released."""
        storage, ledger_id = self.simulated.storage, self.rng.randrange(12)
        state = storage.state(ledger_id) or storage.create(ledger_id, b"key")
        if state.is_fenced:
            return
        cache = storage.directory_of(ledger_id).cache
        frame = make_frame(ledger_id, entry_id := self.rng.randrange(1000), bytes(300))
        number = cache.add_segment(memoryview(bytearray(frame)))
        cache.active.setdefault(ledger_id, {})[entry_id] = number << 32
        cache.count(len(frame))
        storage.journal_of(ledger_id).queue(
            frame, 1, lambda: None, overhead_bytes=self.rng.choice([0, 500])
        )
        cache.release_segment(number)

    async def share_a_segment(self) -> None:
        shared, caches = SharedSegment(3000), [d.cache for d in self.simulated.storage.directories]
        numbers = [cache.add_segment(memoryview(bytearray(3000))) for cache in caches]
        for cache, number in zip(caches, numbers, strict=True):
            cache.release_segment(number, shared=shared)

    async def fence(self) -> None:
        self.simulated.fence(self.rng.randrange(12, 60))

    async def delete(self) -> None:
        """As garbage collection does, of ledgers that were fenced and have no entries."""
        storage, first = self.simulated.storage, self.rng.randrange(12, 50)
        for ledger_id in range(first, first + 10):
            state, directory = storage.state(ledger_id), storage.directory_of(ledger_id)
            if state is not None and not state.is_deleted:
                async with directory.task.writing():
                    directory._states.deleted(state)

    async def write_lac(self) -> None:
        for ledger_id in range(first := self.rng.randrange(60, 90), first + 4):
            self.simulated.write_lac(ledger_id, self.rng.randrange(100))

    async def wait(self) -> None:
        for _ in range(self.rng.randrange(20)):
            self.rng.choice(self.simulated.storage.journals).when_durable(lambda: None)

    async def wait_for_group(self) -> None:
        journal = self.rng.choice(self.simulated.storage.journals)
        for _ in range(self.rng.randrange(20)):
            journal.with_group(on_accepted=lambda: None, on_durable=lambda: None)

    async def checkpoint(self) -> None:
        self.nursery.start_soon(self.rng.choice(self.simulated.storage.directories).checkpoint)

    async def change_gate(self) -> None:
        is_read_only, takes_recovery = self.rng.random() < 0.5, self.rng.random() < 0.5
        self.simulated.storage.gate.set(is_read_only=is_read_only, takes_recovery=takes_recovery)

    async def change_disk(self) -> None:
        self.has_space = self.rng.random() < 0.3

    async def pass_time(self) -> None:
        await trio.sleep(self.rng.choice([0, 0.001, 2]))


async def _compared(seed: int, flush: FlushPolicy | None, *, fails: bool) -> Comparison:
    rng = random.Random(seed)
    options = replace(SimulatedStorage().options, write_cache_bytes=12_000, states_max=24)
    simulated = SimulatedStorage(options=options, journals=2, directories=3, flush=flush)
    storage = simulated.storage
    for journal in storage.journals:
        journal.capacity.bound(
            bytes_max=BYTES_MAX,
            critical_bytes_max=BYTES_MAX * RESERVE,
            callbacks_max=CALLBACKS_MAX,
        )
    comparison = Comparison(storage)
    trio.lowlevel.add_instrument(comparison)
    try:
        async with simulated.running(), trio.open_nursery() as nursery:
            load = Load(simulated, rng, nursery)
            for directory in storage.directories:
                directory.task.has_space = load.grants
            for _ in range(STEPS):
                await load.step()
                comparison.compare()
                comparison.check()
            if fails:
                rng.choice(storage.directories).task.poison(StorageFailed("by the test"))
                for _ in range(20):
                    await rng.choice((load.add, load.change_gate, load.pass_time))()
            nursery.cancel_scope.cancel()
    except* StorageFailed:
        assert fails
    finally:
        trio.lowlevel.remove_instrument(comparison)
    comparison.check()
    return comparison


LATE = FlushPolicy(flush_interval_ms=100, flush_bytes=2000)


@pytest.mark.parametrize("seed", seeds(ci=3, night=40))
@pytest.mark.parametrize("flush", [None, LATE], ids=["synced", "late"])
@pytest.mark.parametrize("fails", [False, True])
async def test_the_flags_equal_the_answers_of_all_parts_at_every_step(
    seed: int, flush: FlushPolicy | None, fails: bool, autojump_clock: trio.testing.MockClock
) -> None:
    comparison = await _compared(seed, flush, fails=fails)
    names = ("full", "limited", "critical")
    assert comparison.seen == {(name, value) for name in names for value in (False, True)}
