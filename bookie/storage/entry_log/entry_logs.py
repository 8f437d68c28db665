"""Entry logs as files: appends runs, rolls, syncs, reads anywhere, scans, removes.

The core is `bookie.core.entry_log`. A log that was not written by this process is never appended
to: its tail may be torn, and only the index knows what of it counts.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

import trio

from bookie.core.entry_log import (
    FILE_HEADER_BYTES,
    RUN_HEADER_BYTES,
    Run,
    check_file_header,
    check_run_body,
    check_run_lengths,
    decode_run_header,
    encode_file_header,
)
from bookie.storage.disk.disk import Buffer, Disk, File
from bookie.storage.index.index import PlacedRun
from ledger.errors import BookieIoError

LEDGERS_MAX = 50_000
"""A log with entries of more ledgers is full, too: the index's record of it is held in memory, and
written as a whole by each checkpoint."""
_SUFFIX = ".log"
STRAY_SUFFIX = ".stray"
"""The suffix of a log that the index did not know, and that is kept nevertheless."""
_log = logging.getLogger(__name__)


def log_name(log_id: int) -> str:
    return f"{log_id:016x}{_SUFFIX}"


def log_id_of(name: str) -> int | None:
    """Returns None if it is not the name of an entry log."""
    stem = name.removesuffix(_SUFFIX)
    if not name.endswith(_SUFFIX) or len(stem) != 16:
        return None
    try:
        log_id = int(stem, 16)
    except ValueError:
        return None
    return log_id if log_name(log_id) == name else None


def stray_id_of(name: str) -> int | None:
    """Returns the id of a log that was set aside because the index did not know it; None for other
    names."""
    return log_id_of(name.removesuffix(STRAY_SUFFIX)) if name.endswith(STRAY_SUFFIX) else None


class EntryLogCut(BookieIoError):
    """The bytes are certainly not there: the file ends before them, or does not exist."""


class EntryLogs:
    """All entry logs of one directory. One task appends; any task reads.

    OSError of writes and syncs is raised as it is: afterwards the storage must not continue. Reads
    raise BookieIoError.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        log_bytes_max: int,
        write_bytes: int = 1024 * 1024,
        flush_bytes: int = 0,
        files_open_max: int = 200,
    ) -> None:
        """`log_bytes_max`: a log is sealed when the next run would exceed it, or LEDGERS_MAX.
        `write_bytes`: the amount gathered for one write, which is one hop to a thread.
        `flush_bytes`: a log is synced by itself after this much, so that no sync takes long; 0:
        never. `files_open_max`: logs that stay open for reads."""
        self._disk = disk
        self._files_open_max = files_open_max
        self.directory = directory
        self._log_bytes_max = log_bytes_max
        self._write_bytes = write_bytes
        self._flush_bytes = flush_bytes
        self._unflushed_bytes = 0
        self._files: OrderedDict[int, File] = OrderedDict()
        self._next_id = 1
        self._current: File | None = None
        self.current_id: int | None = None
        """The log that takes runs; None until the next append begins one."""
        self.current_ledgers: dict[int, int] = {}
        """Bytes per ledger in the current log, for the index's record of it."""
        self.current_since = 0.0
        """When the current log was begun (trio's clock)."""
        self.sealed_ledgers: dict[int, dict[int, int]] = {}
        """The same for logs sealed since the last `take_sealed`."""
        self._position = 0
        self._pending: list[Buffer] = []
        self._pending_bytes = 0
        self._unsynced: list[File] = []
        self._is_directory_dirty = False
        self._removals = 0
        self.bytes_written = 0
        self.strays_aside = 0
        """Logs under another name that the index did not know, at the start or since."""

    async def start(self) -> list[int]:
        """Creates the directory and returns the ids of the logs in it, in order."""
        await self._disk.make_directory(self.directory)
        names = await self._disk.list_directory(self.directory)
        log_ids = sorted(log_id for name in names if (log_id := log_id_of(name)) is not None)
        aside = [log_id for name in names if (log_id := stray_id_of(name)) is not None]
        self.strays_aside = len(aside)
        # A log that was set aside may get its name back.
        self._next_id = max((*log_ids, *aside), default=0) + 1
        return log_ids

    def skip_ids(self, log_id: int) -> None:
        """Gives new logs ids above `log_id`: an id that the index knows is never used again."""
        self._next_id = max(self._next_id, log_id + 1)

    def take_id(self) -> int:
        """Returns an id for a log that another object writes. Seal the current log before: newer
        entries must be in logs with higher ids."""
        log_id = self._next_id
        self._next_id += 1
        return log_id

    async def append(self, run: Run) -> PlacedRun:
        """Takes a run and returns where it will be stored. It is written at the latest by `sync`;
        until then its pieces must not change."""
        size = run.nbytes
        if self._current is not None and (
            self._position + size > self._log_bytes_max
            or (
                len(self.current_ledgers) >= LEDGERS_MAX
                and run.ledger_id not in self.current_ledgers
            )
        ):
            await self.seal()
        if self._current is None:
            await self._begin()
        assert self.current_id is not None
        offset = self._position + len(run.head)
        self._position += size
        self._pending += (run.head, *run.pieces, run.sums)
        self._pending_bytes += size
        ledgers = self.current_ledgers
        ledgers[run.ledger_id] = ledgers.get(run.ledger_id, 0) + run.body_bytes
        if self._pending_bytes >= self._write_bytes:
            await self._write()
        return PlacedRun(run.ledger_id, run.first, self.current_id, offset, run.lengths)

    async def _begin(self) -> None:
        log_id = self.take_id()
        self._is_directory_dirty = True
        file = await self._disk.open(self.path(log_id), is_new=True)
        self._keep(log_id, file)
        self._current, self.current_id, self.current_ledgers = file, log_id, {}
        self.current_since = trio.current_time()
        self._unsynced.append(file)
        self._position = self._pending_bytes = FILE_HEADER_BYTES
        self._pending = [encode_file_header(log_id)]

    async def _write(self) -> None:
        if not self._pending:
            return
        assert self._current is not None
        views, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        await self._current.write_at(self._position - size, views, drops_cache=True)
        self.bytes_written += size
        self._unflushed_bytes += size
        if 0 < self._flush_bytes <= self._unflushed_bytes:
            self._unflushed_bytes = 0
            await self._current.sync(drops_cache=True)

    async def seal(self) -> None:
        """Seals the current log; the next append begins a new one."""
        if self._current is None:
            return
        await self._write()
        assert self.current_id is not None
        self.sealed_ledgers[self.current_id] = self.current_ledgers
        self._current, self.current_id, self.current_ledgers = None, None, {}

    def take_sealed(self) -> dict[int, dict[int, int]]:
        """Returns the ledgers of the logs sealed since the last call."""
        sealed, self.sealed_ledgers = self.sealed_ledgers, {}
        return sealed

    async def sync(self) -> None:
        """Makes all runs appended so far durable, including the names of new logs."""
        await self._write()
        self._unflushed_bytes = 0
        files, self._unsynced = self._unsynced, []
        for file in files:
            # What is read soon is in our own caches. New pages for each log would cost more than
            # the writing itself (docs/adr/0013).
            await file.sync(drops_cache=True)
        if self._current is not None:
            self._unsynced.append(self._current)
        if self._is_directory_dirty:
            await self._disk.sync_directory(self.directory)
            self._is_directory_dirty = False

    def read_nowait(
        self, log_id: int, offset: int, size: int, *, drops_cache: bool = True
    ) -> bytes | bytearray | None:
        """Returns `size` bytes, or None if that would wait (for the disk, or for opening the log).

        `drops_cache`: the system need not keep them in memory.
        """
        file = self._files.get(log_id)
        if file is None:
            return None
        try:
            data = file.read_nowait(offset, size, drops_cache=drops_cache)
        except OSError as error:
            raise self._read_failed(log_id, offset, size, str(error)) from error
        return data if data is not None and len(data) == size else None

    async def read(self, log_id: int, offset: int, size: int, *, drops_cache: bool = True) -> bytes:
        """Returns exactly `size` bytes. Raises BookieIoError for anything less."""
        return (await self.read_parts(log_id, offset, [size], drops_cache=drops_cache))[0]

    async def read_parts(
        self, log_id: int, offset: int, sizes: Sequence[int], *, drops_cache: bool = True
    ) -> list[bytes]:
        """Returns consecutive parts of exactly these sizes, read at once. Raises BookieIoError for
        anything less."""
        size = sum(sizes)
        try:
            file = await self._open(log_id)
            parts = await file.read_parts(offset, sizes, drops_cache=drops_cache)
        except FileNotFoundError as error:
            raise EntryLogCut(str(self._read_failed(log_id, offset, size, str(error)))) from error
        except OSError as error:
            raise self._read_failed(log_id, offset, size, str(error)) from error
        found = sum(map(len, parts))
        if found != size:
            why = f"only {found} bytes are there"
            raise EntryLogCut(str(self._read_failed(log_id, offset, size, why)))
        return parts

    async def scan(self, log_id: int) -> AsyncIterator[tuple[PlacedRun, bytes]]:
        """Yields whole runs and their bodies in order, up to the first that is torn or damaged.

        For rebuilding an index, and for tools. Raises BookieIoError if the file is no entry log.
        """
        try:
            check_file_header(await self.read(log_id, 0, FILE_HEADER_BYTES), log_id)
        except ValueError as error:
            raise BookieIoError(str(error)) from error
        offset = FILE_HEADER_BYTES
        while True:
            file = await self._open(log_id)
            fixed = await file.read(offset, RUN_HEADER_BYTES)
            try:
                header = decode_run_header(fixed)
                packed = await file.read(offset + RUN_HEADER_BYTES, 4 * header.entries)
                lengths = check_run_lengths(header, fixed, packed)
                offset += RUN_HEADER_BYTES + len(packed)
                body = await file.read(offset, header.body_bytes)
                check_run_body(header, body)
            except ValueError:
                return
            yield PlacedRun(header.ledger_id, header.first, log_id, offset, lengths), body
            offset += header.body_bytes + header.sums_bytes

    async def size(self, log_id: int) -> int:
        """Returns the bytes of a sealed log. Raises OSError, also if it does not exist."""
        file = await self._disk.open(self.path(log_id))
        try:
            return file.size
        finally:
            file.close()

    async def remove(self, log_id: int) -> bool:
        """Removes a sealed log that no run in the durable index points into; returns whether it is
        gone.

        A log that the disk does not remove only wastes space: it is reported, and removed at the
        next start.
        """
        assert log_id != self.current_id, f"entry log {log_id:x} still takes runs"
        self.forget_file(log_id)
        path = self.path(log_id)
        try:
            await self._disk.remove(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            _log.error(
                "entry log cannot be removed, its space is lost path=%s cause=%s", path, error
            )
            return False
        self._is_directory_dirty = True
        # A task that opened it before must not keep it open: its space would not be freed.
        self._removals += 1
        self.forget_file(log_id)
        return True

    async def set_stray_aside(self, log_id: int) -> None:
        """Keeps a log that the index does not know under another name. Durable after `sync_names`.
        Raises OSError."""
        path = self.path(log_id)
        await self._disk.rename(path, path + STRAY_SUFFIX)
        self.strays_aside += 1

    async def sync_names(self) -> None:
        """Makes renames durable. Raises OSError."""
        await self._disk.sync_directory(self.directory)

    def forget_file(self, log_id: int) -> None:
        """Closes the log's file; the next read opens it again, with the size it has then."""
        file = self._files.pop(log_id, None)
        if file is not None:
            if file in self._unsynced:
                self._unsynced.remove(file)
            file.close()

    def close(self) -> None:
        """Closes all files; nothing is written."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    async def _open(self, log_id: int) -> File:
        file = self._files.get(log_id)
        if file is not None:
            self._files.move_to_end(log_id)
            return file
        while True:
            removals = self._removals
            file = await self._disk.open(self.path(log_id))
            if removals == self._removals:
                break
            file.close()  # a log was removed meanwhile, perhaps this one: then it is not found
        other = self._files.get(log_id)
        if other is not None:  # two tasks opened it at once
            file.close()
            return other
        self._keep(log_id, file)
        return file

    def _keep(self, log_id: int, file: File) -> None:
        self._files[log_id] = file
        for old_id in list(self._files):
            if len(self._files) <= self._files_open_max:
                break
            old = self._files[old_id]
            if old_id not in (self.current_id, log_id) and old not in self._unsynced:
                del self._files[old_id]
                old.close()

    def path(self, log_id: int) -> str:
        """Returns the path of the log's file."""
        return f"{self.directory}/{log_name(log_id)}"

    def _read_failed(self, log_id: int, offset: int, size: int, why: str) -> BookieIoError:
        return BookieIoError(
            f"entry log {self.path(log_id)}: reading {size} bytes at {offset} failed: {why}"
        )
