"""The journal: gathers frames in a group, writes and syncs it at once, then runs the callbacks. The
bytes and decisions are in `bookie.core.journal`.

Must never run a callback of `on_durable` before its frames are durable, write to a file again after
a failed write or sync, or claim that the groups before a group are durable when they are not
(replay relies on that to distinguish a torn tail from damage). Nothing here is done per entry.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from bookie.core.capacity import QueueCapacity
from bookie.core.journal import (
    BEGINNING,
    COMMIT_NOW,
    FIRST_GROUP_OFFSET,
    Buffer,
    CommitPolicy,
    FileHeader,
    FlushPolicy,
    JournalFailed,
    Mark,
    file_name,
    group_bytes,
    group_views,
)
from bookie.core.journal_scan import SEQUENCE_UNKNOWN
from bookie.core.loop_writes import WINDOW_WRITES, LoopWrites
from bookie.storage.disk.disk import Disk, File
from bookie.storage.journal.end_marker import EndMarker
from bookie.storage.journal.files import JournalFiles
from bookie.storage.journal.metrics import JournalMetrics, JournalStatistics
from bookie.storage.journal.page_cache_flush import PageCacheFlush
from bookie.storage.journal.reader import JournalReader
from bookie.storage.yielding import is_thread_awaited
from ledger.runtime.parking import ParkingSlot


class CommitGroup:
    """Frames gathered for one write and one sync.

    `Journal.queue` fills it: `views` are received bytes (whole frames, unchanged until durable),
    `on_durable` runs in order after the sync. So does `on_accepted`, but after the write if the
    journal syncs later: for acknowledgements of adds. A group is committed once it is kicked:
    frames for which no caller waits cost no sync of their own.
    """

    __slots__ = (
        "entries",
        "is_kicked",
        "nbytes",
        "on_accepted",
        "on_durable",
        "overhead_bytes",
        "queued_at",
        "views",
    )

    def __init__(self) -> None:
        self.views: list[Buffer] = []
        self.nbytes = 0
        self.overhead_bytes = 0
        """Memory that is held with the frames until they are accepted."""
        self.entries = 0
        self.on_accepted: list[Callable[[], None]] = []
        self.on_durable: list[Callable[[], None]] = []
        self.queued_at: float | None = None
        self.is_kicked = False

    @property
    def queued_bytes(self) -> int:
        """The memory that all of it takes."""
        return self.nbytes + self.overhead_bytes


_log = logging.getLogger(__name__)

HANG_S: Final = 1.0
"""A write in the event loop that takes this long is logged."""
_SERVED_AGAIN: Final = (
    "Nothing is lost, and all connections are served again. A thread writes until the disk has "
    f"been fast for {WINDOW_WRITES} writes"
)
FILE_BYTES_MAX: Final = 64 << 20
FILES_RECYCLED: Final = 5


class Journal:
    """The write-ahead log of one journal directory. Read it with a `reader`, `begin`, then `run`:
    once each.

    `open_group` is replaced whenever it is taken: never keep it over an await. The journal
    enforces no bound on what is queued: `capacity` says when to stop reading sockets.
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
        backups_max: int = 0,
        drops_cache: bool = False,
        flush: FlushPolicy | None = None,
        loop_writes: LoopWrites | None = None,
    ) -> None:
        """
        Args:
            rng: draws the salts of files: use `random.SystemRandom()` on a real disk.
            file_bytes_max: size of a file before the next is begun.
            files_recycled: how many trimmed files are kept for reuse, which syncs
                twice as fast as new ones.
            backups_max: how many trimmed files are kept as they are, before that.
            drops_cache: the system need not keep what is durable in memory.
            flush: when to sync what was written and accepted; None: each group is synced
                before it is accepted.
            loop_writes: which groups are written in the event loop; None: the file's thread
                writes all of them. Without effect if `flush` is given.
        """
        self.open_group = CommitGroup()
        self.capacity = QueueCapacity()
        self.mark = BEGINNING
        """The end of what is durable. Read it and swap the cache with no await between."""
        self.failure: BaseException | None = None
        """The error that ended the journal. From then on kicks are ignored."""
        self._disk, self.directory = disk, directory
        self._policy = policy or CommitPolicy()
        self._may_wait = not self._policy.flush_when_queue_empty and self._policy.group_wait_ms > 0
        self._files = JournalFiles(
            disk, directory, rng, file_bytes_max, files_recycled, backups_max
        )
        self.end = EndMarker(disk, directory)
        """After `begin`, check whether its `lost` is set; record that durably before `run`."""
        self._drops_cache = drops_cache
        self._flush: PageCacheFlush | None = None
        if flush is not None:
            self._flush = PageCacheFlush(
                disk, flush, drops_cache=drops_cache, on_synced=self._synced
            )
        self._loop_writes = loop_writes or LoopWrites(0.0)
        self._is_replayed = False
        self._bytes_in_flight = self._entries_in_flight = 0
        self._accepted: deque[CommitGroup] = deque()  # at most two: callbacks not run yet
        self._committer = ParkingSlot()
        self._is_timing = False
        self._acknowledger = ParkingSlot()
        self._running = trio.CancelScope()
        self._file: File | None = None
        self._header = FileHeader(0, 0, 1)
        self._offset = self._file_bytes = 0
        self._sequence = 0  # of the last group written
        self._metrics = JournalMetrics()

    # --- queueing

    @property
    def queued_bytes(self) -> int:
        """The memory of everything that is not accepted yet: frames, and what waits with them."""
        return self.open_group.queued_bytes + self._bytes_in_flight

    @property
    def queued_callbacks(self) -> int:
        """The number of callbacks that wait for the next group, also of callers without a frame in
        it."""
        group, flush = self.open_group, self._flush
        waiting = 0 if flush is None else flush.waiting_callbacks
        return len(group.on_durable) + len(group.on_accepted) + waiting

    @property
    def is_idle(self) -> bool:
        """Whether everything that was ever queued is durable."""
        if self.open_group.views or self._bytes_in_flight:
            return False
        return self._flush is None or self._flush.is_idle

    def queue(
        self,
        frames: Buffer,
        entries: int = 1,
        on_accepted: Callable[[], None] | None = None,
        *,
        on_durable: Callable[[], None] | None = None,
        overhead_bytes: int = 0,
        is_urgent: bool = True,
    ) -> None:
        """Puts whole frames into the open group (hot: called once per chunk of adds).

        Args:
            frames: must not change until they are durable.
            entries: how many `frames` holds.
            on_accepted: called when the frames are written, and synced unless the journal syncs
                later.
            on_durable: called when the frames are synced.
            overhead_bytes: memory that the caller holds until then, beside the frames.
            is_urgent: False: the frames go with the next group that something urgent is in.
        """
        group = self.open_group
        group.views.append(frames)
        group.nbytes += len(frames)
        group.entries += entries
        group.overhead_bytes += overhead_bytes
        if on_accepted is not None:
            group.on_accepted.append(on_accepted)
        if on_durable is not None:
            group.on_durable.append(on_durable)
        capacity = self.capacity
        if (
            self._flush is not None
            or capacity.is_exceeded
            or group.nbytes + group.overhead_bytes + self._bytes_in_flight > capacity.bytes_max
            or len(group.on_accepted) + len(group.on_durable) > capacity.callbacks_max
        ):
            self._report()
        if is_urgent:
            self.kick()

    def when_durable(self, done: Callable[[], None]) -> None:
        """Calls `done` when everything that is queued now is durable; at once if it is."""
        if self.is_idle:
            done()
        else:
            self.with_group(on_durable=done)

    def with_group(
        self,
        *,
        on_accepted: Callable[[], None] | None = None,
        on_durable: Callable[[], None] | None = None,
    ) -> None:
        """Calls one of them as `queue` does, when the open group is accepted or durable, even if it
        has no frames. What is queued later may still become part of this group."""
        if on_accepted is not None:
            self.open_group.on_accepted.append(on_accepted)
        if on_durable is not None:
            self.open_group.on_durable.append(on_durable)
        self._report()
        self.kick()

    def kick(self) -> None:
        """Requests a commit of `open_group`. Cheap; call it once per chunk."""
        group = self.open_group
        group.is_kicked = True
        if group.queued_at is None:
            group.queued_at = trio.current_time()
        if self._is_timing and not self._policy.is_full(group.nbytes, group.entries):
            return
        self._committer.unpark()

    def commit(self) -> None:
        """Like `kick`, at the end of a chunk: the group is written before this returns, and its
        callbacks run, if groups are written in the event loop and nothing prevents it. That
        saves the turn of the loop in which the task would do so. An error leaves `run`."""
        group, file, now = self.open_group, self._file, trio.current_time()
        if (
            self._loop_writes.is_fast
            and not self._committer.is_empty  # it waits for a group, and writes none
            and not (self._is_timing or self._may_wait or self._accepted)
            and self._flush is None
            and file is not None
            and self._offset + (size := group_bytes(group.nbytes)) <= self._file_bytes
            and self._loop_writes.is_in_loop(
                now, size, is_thread_awaited=is_thread_awaited(), has_gathered=False
            )
        ):
            if group.queued_at is None:
                group.queued_at = now
            self._commit_now(group, file, size, now)
        else:
            self.kick()

    def _commit_now(self, group: CommitGroup, file: File, size: int, now: float) -> None:
        """Writes the open group and runs its callbacks. An error ends the journal, as it does in
        the task, and not the caller alone: what the group holds would be in no journal, and those
        that wait for it would wait forever."""
        try:
            self._take_group()
            self._write_in_loop(group, file, size, now)
            self._accept(group)
            self._run_callbacks()
        except BaseException as error:
            self._poison(error)
            if not isinstance(error, Exception):
                raise

    def _report(self) -> None:
        """Reports what is queued. Called after each change, unless all bounds were kept before and
        after."""
        self.capacity.report(self.queued_bytes, self.queued_callbacks)

    def statistics(self) -> JournalStatistics:
        return self._metrics.statistics(
            queued_bytes=self.queued_bytes,
            queued_entries=self.open_group.entries + self._entries_in_flight,
            mark=self.mark,
            unsynced_bytes=0 if self._flush is None else self._flush.unsynced_bytes,
        )

    # --- the task

    async def run(self) -> None:
        """Commits groups until cancelled. Raises JournalFailed after the first OSError, and any
        other error of a commit or a callback as it is.

        Cancellation waits for a write in progress, but does not commit what is still queued: a stop
        is a crash.
        """
        assert self._is_replayed, "replay the journal before running it"
        await self.end.begin(self.mark)
        self._files.ask_spare()
        try:
            async with trio.open_nursery() as nursery:
                self._running = nursery.cancel_scope
                nursery.start_soon(self._acknowledge)
                nursery.start_soon(self._files.prepare_spares)
                if self._flush is not None:
                    nursery.start_soon(self._sync_later, self._flush)
                # A task of its own: otherwise each of its steps would resume every coroutine above
                # it.
                nursery.start_soon(self._commit_groups)
        finally:
            self.end.close()
            if self._file is not None:
                self._file.close()
        if isinstance(self.failure, OSError):
            raise JournalFailed(
                f"journal {self.directory}: writing at offset {self._offset} of "
                f"{file_name(self._header.file_id)} failed: {self.failure}. Nothing more is "
                "acknowledged. Cure: check the disk, then start again; the journal is replayed"
            ) from self.failure
        if self.failure is not None:
            raise self.failure

    async def _sync_later(self, flush: PageCacheFlush) -> None:
        try:
            await flush.run()
        except OSError as error:
            self._poison(error)  # no await from here on: nothing more is accepted
        finally:
            flush.close()

    def _synced(self, mark: Mark, seconds: float) -> None:
        """Records that everything up to `mark`, which had been accepted before, is durable now."""
        self.mark = mark
        self._metrics.synced(seconds)
        self._report()

    async def _commit_groups(self) -> None:
        """Commits groups until the journal is poisoned."""
        while True:
            if not (self.open_group.is_kicked and self._is_due()):
                await self._wait_due()
            elif self._loop_writes.is_fast:
                await trio.lowlevel.checkpoint()  # the write before may have been in the loop
            if self.failure is not None:
                return  # it was kicked before it failed
            group = self.open_group
            self._take_group()
            if group.views:
                try:
                    await self._write(group)
                except OSError as error:
                    self._poison(error)
                    return
            else:
                await trio.lowlevel.checkpoint()  # everything that was queued before is durable
            self._accept(group)
            if self.open_group.is_kicked and self._is_due():
                self._acknowledger.unpark()  # callbacks run while the disk writes the next group
            else:
                self._run_callbacks()

    def _take_group(self) -> None:
        """Begins to write the open group."""
        group, self.open_group = self.open_group, CommitGroup()
        self._bytes_in_flight = group.nbytes + group.overhead_bytes
        self._entries_in_flight = group.entries
        if self.capacity.is_exceeded:
            self._report()

    def _accept(self, group: CommitGroup) -> None:
        """Records that the group which was being written is as durable as promised."""
        self._bytes_in_flight = self._entries_in_flight = 0
        if self.capacity.is_exceeded:
            self._report()
        self._accepted.append(group)

    def _poison(self, error: BaseException) -> None:
        """Ends the journal: nothing more is accepted."""
        self.failure = error
        self._accepted.clear()
        self._running.cancel()

    def _is_due(self) -> bool:
        if not self.open_group.is_kicked:
            return False
        return not self._may_wait or self._due_at() == COMMIT_NOW

    def _due_at(self) -> float:
        group = self.open_group
        now = trio.current_time()
        queued_at = now if group.queued_at is None else group.queued_at
        # The queue is the open group itself: when this task runs, nothing waits to join it.
        return self._policy.decide(now, queued_at, group.nbytes, group.entries, True)

    async def _wait_due(self) -> None:
        """Returns when the open group is due; it must not be due yet."""
        while True:
            if not self.open_group.is_kicked:
                await self._committer.park()
            else:
                with trio.move_on_at(self._due_at()):
                    self._is_timing = True
                    try:
                        await self._committer.park()
                    finally:
                        self._is_timing = False
            if self._is_due():
                return

    async def _write(self, group: CommitGroup) -> None:
        flush, synced_sequence = self._flush, self._sequence
        size = group_bytes(group.nbytes, is_late=flush is not None)
        if flush is not None:
            await flush.wait_capacity()
        if self._file is None or self._offset + size > self._file_bytes:
            await self._roll(size)
        assert self._file is not None
        if flush is not None:
            synced_sequence = flush.synced_sequence
            size = group_bytes(group.nbytes, is_late=synced_sequence != self._sequence)
        started = trio.current_time()
        if (
            flush is None
            and self._loop_writes.is_fast
            and self._loop_writes.is_in_loop(
                started,
                size,
                is_thread_awaited=is_thread_awaited(),
                has_gathered=True,  # this task was woken by what began the group, a turn ago
            )
        ):
            self._write_in_loop(group, self._file, size, started)
            return
        views = self._views_of(group, synced_sequence, size)
        end = Mark(self._header.file_id, self._offset + size)
        then = self.end.recording(end)
        if flush is None:
            disk_s = await self._file.write_at_synced(self._offset, views, then=then)
            self._loop_writes.wrote(started, disk_s)
        else:
            await self._file.write_at(self._offset, views, then=then)
        self._wrote(group, end, started)

    def _write_in_loop(self, group: CommitGroup, file: File, size: int, started: float) -> None:
        views = self._views_of(group, self._sequence, size)
        end = Mark(self._header.file_id, self._offset + size)
        try:
            disk_s = file.write_synced_now(self._offset, views, then=self.end.recording(end))
        except OSError:
            self._report_hang(trio.current_time() - started, "Then it failed, so the bookie ends")
            raise
        self._loop_writes.wrote(started, disk_s)
        self._metrics.loop_groups += 1
        self._wrote(group, end, started)
        if disk_s >= HANG_S:
            self._report_hang(disk_s, _SERVED_AGAIN)

    def _views_of(self, group: CommitGroup, synced_sequence: int, size: int) -> list[Buffer]:
        views = group_views(
            self._header, self._sequence + 1, group.entries, group.views, synced_sequence
        )
        assert sum(map(len, views)) == size, "nbytes of the group is not what its views hold"
        return views

    def _wrote(self, group: CommitGroup, end: Mark, started: float) -> None:
        """Records that a group was written up to `end`."""
        flush, ended, size = self._flush, trio.current_time(), end.offset - self._offset
        self._sequence += 1
        self._offset = end.offset
        assert self._file is not None
        if self._offset * 2 > self._file_bytes:
            self._files.ask_spare()
        if flush is None:
            self.mark = end
        else:
            flush.written(end, self._sequence, size)
        waited_s = ended - (started if group.queued_at is None else group.queued_at)
        trigger = self._policy.trigger(group.nbytes, group.entries)
        sync_s = ended - started if flush is None else None
        self._metrics.group_written(group.entries, size, waited_s, sync_s, trigger)

    def _report_hang(self, waited_s: float, outcome: str) -> None:
        if waited_s >= HANG_S:
            _log.warning(
                "the disk of a journal hung, and the bookie with it directory=%s waited_s=%.1f. "
                "%s. Cure: check the disk; journal_loop_write_ms_max = 0 never writes in the event "
                "loop",
                self.directory,
                waited_s,
                outcome,
            )

    async def _acknowledge(self) -> None:
        """Runs callbacks while the journal task waits for the disk with the next group."""
        while True:
            self._run_callbacks()
            await self._acknowledger.park()

    def _run_callbacks(self) -> None:
        # One deque for both callers: the order is the order of commits.
        while self._accepted and self.failure is None:
            group = self._accepted.popleft()
            for on_accepted in group.on_accepted:
                on_accepted()
            if self._flush is not None:
                self._flush.when_synced(group.on_durable)
                self._report()
                continue
            for on_durable in group.on_durable:
                on_durable()

    async def _roll(self, group_size: int) -> None:
        started = trio.current_time()
        if self._file is not None:
            if self._flush is not None:
                await self._flush.wait_synced()  # the next header names its last group
            elif self._drops_cache:
                await self._file.sync(drops_cache=True)
            self._file.close()
            self._file = None
            self._metrics.rolls += 1
        self._file, self._header = await self._files.begin_next(self._sequence + 1, group_size)
        if self._flush is not None:
            path = self._files.path(file_name(self._header.file_id))
            await self._flush.begin_file(path, self._sequence)
        self._metrics.file_begun(trio.current_time() - started)
        self._offset, self._file_bytes = FIRST_GROUP_OFFSET, self._file.size

    async def trim_before(self, mark: Mark) -> None:
        """Trims files that end before `mark`. Call it when `mark` is durable elsewhere."""
        await self._files.trim_before(mark)

    # --- replay

    async def first_file_id(self) -> int:
        """Returns the first file of an unbroken sequence up to the last one; 0 if there is none.
        Raises OSError."""
        return await self._files.first_id()

    def reader(self, from_mark: Mark) -> JournalReader:
        """Returns a reader of what the journal holds after `from_mark`; pass it to `begin`
        afterwards."""
        return JournalReader(self._disk, self._files, from_mark)

    async def begin(self, reader: JournalReader) -> None:
        """Continues where `reader`, which has read everything, ended. Changes no bytes, but removes
        leftovers. Make a checkpoint of what was read before anything is acknowledged.

        Raises OSError: the bookie must not start.
        """
        assert not self._is_replayed, "the journal was replayed before"
        assert reader.is_done, "the journal was not read to its end"
        self.mark = reader.end
        await self._files.free_leftovers()
        await self.end.compare(self.mark)
        # Unknown only if all before the mark is damaged: then use one that was never used.
        last = reader.last_sequence
        self._sequence = last if last is not None else SEQUENCE_UNKNOWN
        self._is_replayed = True
