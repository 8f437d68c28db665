"""A bookie's storage on a disk in memory, driven as the add path drives it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from bookie.core.journal import FlushPolicy
from bookie.core.loop_writes import LoopWrites
from bookie.core.repeated_adds import Presence
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.journal.journal import Journal
from bookie.storage.options import StorageFailed, StorageOptions
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.errors import Status
from tests.bookie.core.test_caches import KEY, make_entry, make_frame
from tests.bookie.storage.memory_disk import MemoryDisk, PowerLost


class CrashingKeyValue(MemoryKeyValue):
    """Writes and flushes are steps of the disk, so a crash may fall on them."""

    disk: MemoryDisk

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        is_after = self.disk.step("write", "index")
        super().write(puts, deletes)
        if is_after:
            self.disk.lose_power()

    async def flush(self) -> None:
        is_after = self.disk.step("flush", "index")
        await super().flush()
        if is_after:
            self.disk.lose_power()


def numbered(name: str, count: int) -> list[str]:
    """Returns the paths of this many directories; a single one has just the name."""
    return [name, *(f"{name}{number}" for number in range(1, count))]


class SimulatedStorage:
    """What outlives a crash (`disk`, `pairs`) and what was promised (`acked`, `fenced`, `lacs`)."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        pairs: Mapping[str, MemoryKeyValue] | None = None,
        *,
        options: StorageOptions | None = None,
        journals: int = 1,
        directories: int = 1,
        flush: FlushPolicy | None = None,
        checkpoints_when_due: bool = True,
        loop_writes: Callable[[], LoopWrites] | None = None,
    ) -> None:
        """`pairs`: the index stores, by path. Options are of all directories together. `flush`:
        for journals that acknowledge before they sync. `checkpoints_when_due`: False leaves
        checkpoints to the test, at whatever points it chooses, except during a replay.
        `loop_writes`: made for each journal."""
        self.disk = disk or MemoryDisk()
        paths = numbered("ledgers", directories)
        self.pairs = dict(pairs or {f"{path}/index": MemoryKeyValue() for path in paths})
        self.counts = journals, directories
        self.options = options or StorageOptions(
            write_cache_bytes=8000,
            read_cache_bytes=20_000,
            read_ahead_bytes=500,
            entry_log_bytes_max=6000,
            checkpoint_interval_s=1000,
            states_max=3,
        )
        self.storage = BookieStorage(
            self.disk,
            paths,
            self.pairs.__getitem__,
            [
                Journal(
                    self.disk,
                    path,
                    rng=random.Random(5),
                    file_bytes_max=32 * 1024,
                    files_recycled=1,
                    flush=flush,
                    loop_writes=None if loop_writes is None else loop_writes(),
                )
                for path in numbered("journal", journals)
            ],
            now_ms=lambda: 1000,
            options=self.options,
        )
        self.is_owing = flush is not None
        self._checkpoints_when_due = checkpoints_when_due
        if not checkpoints_when_due:
            for directory in self.storage.directories:
                directory.capacity.on_due = lambda: None
        self.acked: dict[tuple[int, int], bytes] = {}
        self.attempted: dict[tuple[int, int], list[bytes]] = {}
        """Bytes added after those in `acked`: a crash may leave them in place."""
        self.fenced: dict[int, None] = {}
        self.lacs: dict[int, int] = {}
        self.deleted: dict[int, None] = {}
        self.is_superseded = False
        """The tombstones of `deleted` are durable."""

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        payload: bytes = b"",
        *,
        lac: int = -1,
        is_recovery: bool = False,
    ) -> Status:
        storage = self.storage
        state = storage.state(ledger_id)
        if state is None:
            state = storage.create(ledger_id, KEY)
        status = state.check_add(KEY, is_recovery)
        if status is not Status.OK:
            return status
        entry = make_entry(ledger_id, entry_id, payload, lac)
        frame = make_frame(ledger_id, entry_id, payload, lac)
        storage.directory_of(ledger_id).cache.put_frame(frame)
        state.added(entry_id, entry_id)
        state.advance_lac(lac)
        attempts = self.attempted.setdefault((ledger_id, entry_id), [])
        attempts.append(entry)

        def durable() -> None:
            self.acked[ledger_id, entry_id] = entry
            del attempts[: attempts.index(entry) + 1]

        journal = storage.journal_of(ledger_id)
        journal.queue(frame, on_durable=durable, is_urgent=False)
        journal.commit()  # as at the end of a chunk
        return Status.OK

    async def add_again(
        self, ledger_id: int, entry_id: int, payload: bytes, *, lac: int = -1
    ) -> Presence:
        """Adds an entry as a recovery does, by the bookie's rules for one that is there already."""
        directory, state = self.storage.directory_of(ledger_id), self.storage.state(ledger_id)
        assert state is not None
        entry = make_entry(ledger_id, entry_id, payload, lac)
        directory.history.look_up(state)
        presence = directory.history.presence(state, entry_id, entry)
        if presence is Presence.UNREAD:
            presence = await directory.history.presence_on_disk(ledger_id, entry_id, entry)
        if presence is Presence.ABSENT:
            assert self.add(ledger_id, entry_id, payload, lac=lac, is_recovery=True) is Status.OK
        return presence

    def fence(self, ledger_id: int) -> None:
        state = self.storage.state(ledger_id) or self.storage.create(ledger_id, KEY)
        self.storage.fence(state, lambda: self.fenced.__setitem__(ledger_id, None))

    def write_lac(self, ledger_id: int, lac: int) -> None:
        state = self.storage.state(ledger_id) or self.storage.create(ledger_id, KEY)
        packet = ledger_id.to_bytes(8, "big") + lac.to_bytes(8, "big") + b"crc!"
        self.storage.set_explicit_lac(
            state, lac, packet, lambda: self.lacs.__setitem__(ledger_id, lac)
        )
        self.storage.journal_of(ledger_id).kick()

    async def settle(self) -> None:
        """Waits until all that was queued is durable."""
        for journal in self.storage.journals:
            done = trio.Event()
            journal.open_group.on_durable.append(done.set)
            journal.kick()
            await done.wait()

    async def check(self) -> None:
        """All that was promised holds."""
        for (ledger_id, entry_id), entry in self.acked.items():
            if ledger_id not in self.deleted:
                later = self.attempted.get((ledger_id, entry_id), [])
                assert bytes(await self.storage.read(ledger_id, entry_id)) in [entry, *later]
                assert self.storage.last_entry_id(ledger_id) >= entry_id
        for ledger_id in self.fenced:
            state = self.storage.state(ledger_id)
            assert ledger_id in self.deleted or (state is not None and state.is_fenced)
        for ledger_id, lac in self.lacs.items():
            state = self.storage.state(ledger_id)
            assert ledger_id in self.deleted or (
                state is not None and state.explicit_lac_id >= lac and state.lac >= lac
            )

    def reopened(self) -> SimulatedStorage:
        """A new process on the same disk, after an orderly or a sudden end."""
        journals, directories = self.counts
        return self.promised_by(
            SimulatedStorage(
                self.disk,
                self.pairs,
                options=self.options,
                journals=journals,
                directories=directories,
                checkpoints_when_due=self._checkpoints_when_due,
            )
        )

    def promised_by(self, successor: SimulatedStorage) -> SimulatedStorage:
        """`successor` must now keep the promises of this process."""
        successor.acked, successor.fenced = dict(self.acked), dict(self.fenced)
        successor.lacs, successor.deleted = dict(self.lacs), dict(self.deleted)
        successor.is_superseded = self.is_superseded
        successor.attempted = {key: list(entries) for key, entries in self.attempted.items()}
        return successor

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.storage.start()
        # A crash may lose only what a journal owed the disk; nothing else may look like a loss.
        if not self.is_owing:
            assert all(journal.end.lost is None for journal in self.storage.journals)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.storage.run)
            yield
            nursery.cancel_scope.cancel()


async def is_crashing(
    run: Callable[[SimulatedStorage], Awaitable[None]], simulated: SimulatedStorage
) -> bool:
    """False if `run` came to its end before the crash was due."""
    was_crash = False
    try:
        await run(simulated)
    except* PowerLost:
        was_crash = True
    except* StorageFailed:  # what others see of a checkpoint that the crash broke off
        assert was_crash
    return was_crash
