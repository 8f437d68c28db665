"""The journal task: gathered frames, one write, one sync, then the callbacks. Bytes and
decisions are in its twin `core/journal.py`.

Must never run a callback before its frames are durable, write to a file again after a failed
write or sync, or begin a group before the one before it is durable (replay relies on that to
tell a torn tail from damage). Nothing here is done per entry.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

import trio

from bookie.core.journal import (
    BEGINNING,
    COMMIT_NOW,
    FIRST_GROUP_OFFSET,
    Buffer,
    CommitPolicy,
    FileHeader,
    FileScanner,
    JournalCorrupt,
    JournalFailed,
    Mark,
    encode_file_header,
    file_id_of,
    file_name,
    group_bytes,
    group_views,
)
from bookie.storage.disk import Disk, File

FILE_BYTES_MAX: Final = 64 << 20
FILES_RECYCLED: Final = 5
_SPARE_PREFIX: Final = "spare-"
_ZEROS: Final = bytes(1 << 20)


class CommitGroup:
    """Frames gathered for one write and one sync.

    The hot path appends to `views` received bytes (whole frames, unchanged until durable)
    and counts them in `nbytes` and `entries`; `on_durable` runs in order after the sync.
    """

    __slots__ = ("entries", "nbytes", "on_durable", "queued_at", "views")

    def __init__(self) -> None:
        self.views: list[Buffer] = []
        self.nbytes = 0
        self.entries = 0
        self.on_durable: list[Callable[[], None]] = []
        self.queued_at: float | None = None

    def add(self, frame: Buffer, on_durable: Callable[[], None] | None = None) -> None:
        """One frame, for whoever is not in a hurry."""
        self.views.append(frame)
        self.nbytes += len(frame)
        self.entries += 1
        if on_durable is not None:
            self.on_durable.append(on_durable)


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    groups: int
    entries: int
    bytes: int
    """With headers and padding."""
    syncs: int
    rolls: int
    sync_seconds_total: float
    sync_seconds_max: float


class Journal:
    """The write-ahead log of one journal directory. `replay`, then `run`; once each.

    `open_group` is replaced whenever it is taken: never keep it over an await. The journal
    sets no bound on what is queued; look at `queued_bytes` and stop reading sockets.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        rng: random.Random,
        policy: CommitPolicy | None = None,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_recycled: int = FILES_RECYCLED,
    ) -> None:
        """`rng` gives the salts of files: use `random.SystemRandom()` on a real disk.
        `file_bytes_max`: size of a file before the next is begun. `files_recycled`: how many
        released files are kept to be written again, which syncs twice as fast as new ones."""
        assert file_bytes_max >= 2 * FIRST_GROUP_OFFSET, f"file_bytes_max {file_bytes_max}"
        self.open_group = CommitGroup()
        self.mark = BEGINNING
        """End of what is durable. Read it and swap the cache with no await between."""
        self.failure: OSError | None = None
        """Why the journal is poisoned. From then on kicks are ignored."""
        self._disk = disk
        self._directory = directory
        self._rng = rng
        self._policy = policy or CommitPolicy()
        self._may_wait = not self._policy.flush_when_queue_empty and self._policy.group_wait_ms > 0
        self._file_bytes_max = file_bytes_max
        self._files_recycled = files_recycled
        self._is_replayed = False

        self._bytes_in_flight = 0
        self._durable: deque[CommitGroup] = deque()  # at most two: callbacks not run yet
        self._parked: trio.lowlevel.Task | None = None
        self._is_timing = False
        self._acknowledger: trio.lowlevel.Task | None = None

        self._file: File | None = None
        self._header = FileHeader(0, 0, 1)
        self._offset = 0
        self._sequence = 0  # of the last group written
        self._file_ids: list[int] = []  # of files that may still be needed, in order
        self._free: deque[str] = deque()  # names of files to write again
        self._spares_made = 0
        self._spare_lock = trio.Lock()
        self._spare_wanted = trio.Event()
        self._is_spare_asked = False  # since the last roll

        self._groups = self._entries = self._bytes = self._syncs = self._rolls = 0
        self._sync_seconds_total = self._sync_seconds_max = 0.0

    # --- queueing

    @property
    def queued_bytes(self) -> int:
        """Bytes of frames that are not durable yet."""
        return self.open_group.nbytes + self._bytes_in_flight

    def kick(self) -> None:
        """Says that `open_group` has something. Cheap; call it once per chunk."""
        if self._may_wait:
            group = self.open_group
            if group.queued_at is None:
                group.queued_at = trio.current_time()
            if self._is_timing and not self._policy.is_full(group.nbytes, group.entries):
                return
        task = self._parked
        if task is not None:
            self._parked = None
            trio.lowlevel.reschedule(task)

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            self._groups,
            self._entries,
            self._bytes,
            self._syncs,
            self._rolls,
            self._sync_seconds_total,
            self._sync_seconds_max,
        )

    # --- the task

    async def run(self) -> None:
        """Commits groups until cancelled. Raises JournalFailed after the first OSError.

        Cancelling waits for a write under way, but does not commit what is still queued:
        stopping is crashing.
        """
        assert self._is_replayed, "replay the journal before running it"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acknowledge)
            nursery.start_soon(self._prepare_spares)
            try:
                await self._commit_groups()
                nursery.cancel_scope.cancel()
            finally:
                self._parked = None
                if self._file is not None:
                    self._file.close()
        if self.failure is not None:
            raise JournalFailed(
                f"journal {self._directory}: writing at offset {self._offset} of "
                f"{file_name(self._header.file_id)} failed: {self.failure}. Nothing more is "
                "acknowledged. Cure: see to the disk, then start again; the journal is replayed"
            ) from self.failure

    async def _commit_groups(self) -> None:
        """Returns only when poisoned."""
        while True:
            if not self._is_due():
                await self._wait_due()
            group = self.open_group
            self.open_group = CommitGroup()
            self._bytes_in_flight = group.nbytes
            if group.views:
                try:
                    await self._write(group)
                except OSError as error:
                    self.failure = error
                    self._durable.clear()
                    return
            else:  # only callbacks: all that was queued before them is durable
                await trio.lowlevel.checkpoint()
            self._bytes_in_flight = 0
            self._durable.append(group)
            if self._is_due():
                # Hand the next group to the disk first; the callbacks run meanwhile.
                self._wake_acknowledger()
            else:
                self._run_callbacks()

    def _is_due(self) -> bool:
        group = self.open_group
        if not group.views and not group.on_durable:
            return False
        if not self._may_wait:
            return True
        return self._due_at() == COMMIT_NOW

    def _due_at(self) -> float:
        group = self.open_group
        now = trio.current_time()
        queued_at = now if group.queued_at is None else group.queued_at
        # The queue is the open group itself: when this task runs, nothing waits to join it.
        return self._policy.decide(now, queued_at, group.nbytes, group.entries, True)

    async def _wait_due(self) -> None:
        while not self._is_due():
            if not (self.open_group.views or self.open_group.on_durable):
                await self._park()
            else:
                with trio.move_on_at(self._due_at()):
                    self._is_timing = True
                    try:
                        await self._park()
                    finally:
                        self._is_timing = False

    async def _park(self) -> None:
        assert self._parked is None, "the journal runs twice"
        self._parked = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _write(self, group: CommitGroup) -> None:
        size = group_bytes(group.nbytes)
        if self._file is None or self._offset + size > self._file.size:
            await self._roll(size)
        assert self._file is not None
        views = group_views(self._header, self._sequence + 1, group.entries, group.views)
        assert sum(map(len, views)) == size, "nbytes of the group is not what its views hold"
        started = trio.current_time()
        await self._file.write_at_synced(self._offset, views)
        seconds = trio.current_time() - started

        self._sequence += 1
        self._offset += size
        if not self._is_spare_asked and self._offset * 2 > self._file.size:
            self._is_spare_asked = True
            self._spare_wanted.set()
        self.mark = Mark(self._header.file_id, self._offset)
        self._groups += 1
        self._entries += group.entries
        self._bytes += size
        self._syncs += 1
        self._sync_seconds_total += seconds
        self._sync_seconds_max = max(self._sync_seconds_max, seconds)

    def _wake_acknowledger(self) -> None:
        task = self._acknowledger
        if task is not None:
            self._acknowledger = None
            trio.lowlevel.reschedule(task)

    async def _acknowledge(self) -> None:
        """Runs callbacks while the journal task waits for the disk with the next group."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._acknowledger = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            self._run_callbacks()
            self._acknowledger = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _run_callbacks(self) -> None:
        # One deque for both callers: the order is the order of commits.
        while self._durable:
            for on_durable in self._durable.popleft().on_durable:
                on_durable()

    # --- files

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    async def _roll(self, group_size: int) -> None:
        """Begins the next file, with room for a group of `group_size` bytes."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._rolls += 1
        file_id = self._file_ids[-1] + 1 if self._file_ids else 1
        path = self._path(file_name(file_id))
        async with self._spare_lock:
            if not self._free:
                await self._make_spare()
            spare = self._free.popleft()
            await self._disk.rename(self._path(spare), path)
        await self._disk.sync_directory(self._directory)
        file = await self._disk.open(path, has_own_thread=True)
        self._file = file
        file_bytes = max(self._file_bytes_max, FIRST_GROUP_OFFSET + group_size)
        if file.size > file_bytes:
            await file.truncate(file_bytes)
        elif file.size < file_bytes:
            await _fill_with_zeros(file, file_bytes)
        self._header = FileHeader(file_id, self._rng.getrandbits(64), self._sequence + 1)
        await file.write_at_synced(0, [encode_file_header(self._header)])
        self._syncs += 1
        self._file_ids.append(file_id)
        self._offset = FIRST_GROUP_OFFSET
        self._is_spare_asked = False

    async def _make_spare(self) -> None:
        """A file of zeros. Writing blocks that were written before needs no change of the
        file system's own tables at each sync, which allocating alone does not spare."""
        self._spares_made += 1
        name = f"{_SPARE_PREFIX}{self._spares_made}"
        file = await self._disk.open(self._path(name), is_new=True)
        try:
            await _fill_with_zeros(file, self._file_bytes_max)
        except OSError:
            await self._disk.remove(self._path(name))
            raise
        finally:
            file.close()
        self._free.append(name)

    async def _prepare_spares(self) -> None:
        """Has the next file ready, so that rolling does not wait for zeros to be written."""
        while True:
            await self._spare_wanted.wait()
            self._spare_wanted = trio.Event()
            async with self._spare_lock:
                if not self._free:
                    try:
                        await self._make_spare()
                    except OSError:
                        pass  # rolling tries again, and fails if it must

    async def release_before(self, mark: Mark) -> None:
        """Lets go of files that end before `mark`. Call it when `mark` is durable elsewhere."""
        released: list[str] = []
        while self._file_ids and self._file_ids[0] < mark.file_id:
            if self._file_ids[0] == self._header.file_id and self._file is not None:
                break  # a mark beyond the file being written is a bug, but does no harm
            released.append(file_name(self._file_ids.pop(0)))
        for name in released:
            await self._set_free(name)

    async def _set_free(self, name: str) -> None:
        if len(self._free) < self._files_recycled:
            self._free.append(name)
        else:
            await self._disk.remove(self._path(name))

    # --- replay

    async def replay(self, from_mark: Mark) -> AsyncGenerator[memoryview, None]:
        """The payload of each group after `from_mark`, in order: frames one after the other.

        Holds one read in memory: a mebibyte or one group. Changes no file, but removes
        leftovers. When it ends, `mark` is the end of what was found, made durable. Make a
        checkpoint of what was replayed before you acknowledge anything. Raises
        JournalCorrupt, or OSError, and then the bookie must not start.
        """
        assert not self._is_replayed, "the journal was replayed before"
        await self._disk.make_directory(self._directory)
        last_sequence: int | None = 0 if from_mark == BEGINNING else None
        self.mark = from_mark
        leftovers = await self._find_files(from_mark)
        for file_id in self._file_ids:
            file = await self._disk.open(self._path(file_name(file_id)))
            try:
                start = from_mark.offset if file_id == from_mark.file_id else 0
                scanner = FileScanner(
                    self._path(file_name(file_id)),
                    file_id,
                    file.size,
                    last_sequence=last_sequence,
                    start=start,
                )
                while (wanted := scanner.wanted) is not None:
                    for group in scanner.feed(await file.read(*wanted)):
                        yield group.payload
                if scanner.end > start:
                    # It may have come from the cache of a process that was killed.
                    await file.sync()
                    self.mark = Mark(file_id, scanner.end)
                last_sequence = scanner.last_sequence
            finally:
                file.close()
        for name in leftovers:
            if name.startswith(_SPARE_PREFIX):
                await self._disk.remove(self._path(name))
            else:
                await self._set_free(name)
        # Unknown only if all before the mark is damaged: then go on with one never used.
        self._sequence = last_sequence if last_sequence is not None else 1 << 62
        self._is_replayed = True

    async def _find_files(self, from_mark: Mark) -> list[str]:
        """Sets the ids of the files to replay, without a gap. Returns names not needed."""
        first = max(from_mark.file_id, 1)
        leftovers: list[str] = []
        for name in await self._disk.list_directory(self._directory):
            file_id = file_id_of(name)
            if file_id is not None and file_id >= first:
                self._file_ids.append(file_id)
            elif file_id is not None or name.startswith(_SPARE_PREFIX):
                leftovers.append(name)
        for place, file_id in enumerate(self._file_ids):
            if file_id != first + place:
                self._missing(first + place, f"the next file there is {file_name(file_id)}")
        if not self._file_ids and from_mark != BEGINNING:
            self._missing(first, f"the checkpoint's mark is at its offset {from_mark.offset}")
        return leftovers

    def _missing(self, file_id: int, why: str) -> None:
        path = self._path(file_name(file_id))
        raise JournalCorrupt(path, 0, 0, f"the file is missing ({why})")


async def _fill_with_zeros(file: File, size: int) -> None:
    begin = file.size
    await file.allocate(size)
    for offset in range(begin, size, len(_ZEROS)):
        await file.write_at(offset, [memoryview(_ZEROS)[: size - offset]])
    await file.sync()
