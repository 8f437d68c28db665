"""Reads a journal from a mark to its end, before it runs: for replay.

While one piece is applied to the caches, and checkpoints are made of them, the disk reads the next.
Must never yield a group twice, or groups out of order.

The last groups, those that no later group proves durable, are written again at the end. After a
failed sync the system takes them for written: they can be read, and another sync does nothing, so
only writing them again puts them on the disk; and a checkpoint's mark after groups that are not
there would be taken for damage. Writing the same bytes leaves each sector as it should be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from bookie.core.journal import BEGINNING, Mark, file_name
from bookie.core.journal_scan import FileScanner, Group
from bookie.storage.disk.disk import Disk, File
from bookie.storage.journal.files import JournalFiles

PIECE_BYTES: Final = 4 << 20


@asynccontextmanager
async def reading_ahead() -> AsyncIterator[trio.Nursery]:
    """Opens a nursery in which pieces are read. An error of the body is raised as it is, in no
    group."""
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:  # noqa: BLE001 - raised below, when no read is in progress
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Piece:
    """Bytes from `offset` on that are being read, or have been read."""

    __slots__ = ("_is_wanted", "_scope", "arrived", "data", "error", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.data = b""
        self.error: OSError | None = None
        self.arrived = trio.Event()
        self._scope = trio.CancelScope()
        self._is_wanted = True

    async def read(self, file: File) -> None:
        if not self._is_wanted:
            return
        with self._scope:
            try:
                self.data = await file.read(self.offset, PIECE_BYTES, drops_cache=True)
            except OSError as error:  # raised to the caller that needs these bytes, if there is one
                self.error = error
            self.arrived.set()

    def give_up(self) -> None:
        """Drops the piece: no caller will need it, and the file may be closed."""
        self._is_wanted = False
        self._scope.cancel()


class ReadAhead:
    """Reads one file in ascending order. Holds two pieces, or more if a larger read is
    requested."""

    def __init__(self, file: File, nursery: trio.Nursery | None) -> None:
        """`nursery`: of `reading_ahead`, around all reads; None reads nothing ahead."""
        self._file = file
        self._nursery = nursery
        self._last = b""
        self._last_at = 0
        self._next: _Piece | None = None  # begins where the last one ends

    async def read(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes or more, fewer only at the end of the file. Raises OSError."""
        data, piece = b"", self._next
        if piece is not None and self._last_at <= offset <= piece.offset:
            await piece.arrived.wait()
            if piece.error is not None:
                raise piece.error
            data = b"".join((memoryview(self._last)[offset - self._last_at :], piece.data))
        if len(data) < size:
            more = await self._file.read(offset + len(data), size - len(data), drops_cache=True)
            data = data + more if data else more
        self._last, self._last_at, self._next = data, offset, None
        end = offset + len(data)
        if self._nursery is not None and end < self._file.size:
            self._next = _Piece(end)
            self._nursery.start_soon(self._next.read, self._file)
        return data

    def close(self) -> None:
        """Drops the next piece. Call it before the file is closed: a scan may end before the file
        does."""
        if self._next is not None:
            self._next.give_up()
            self._next = None


class UnsyncedTail:
    """The last groups that no later group proves durable. `add` each group, then `write_again`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = ""
        self._groups: deque[Group] = deque()
        """Adjacent groups, all in one file, because a file is durable before the next one is begun.
        One group, or as many as a journal that syncs late may have written without a sync."""

    def add(self, path: str, group: Group) -> None:
        while self._groups and self._groups[0].sequence <= group.synced_sequence:
            self._groups.popleft()
        assert not self._groups or path == self._path, f"{self._path} was not durable before {path}"
        self._groups.append(group)
        self._path = path

    async def write_again(self) -> None:
        """Makes the groups durable, whatever earlier syncs reported. Raises OSError."""
        if not self._groups:
            return
        file = await self._disk.open(self._path)
        try:
            wholes = [group.whole for group in self._groups]
            await file.write_at_synced(self._groups[0].offset, wholes)
        finally:
            file.close()
        self._groups.clear()


class JournalReader:
    """Reads one journal from a mark on, once: `payloads`, then `Journal.begin`."""

    def __init__(self, disk: Disk, files: JournalFiles, from_mark: Mark) -> None:
        """`files`: of the journal, not yet searched for."""
        self.position = self.end = from_mark
        """The end of the group that was yielded last, and the end of the files that were read."""
        self.last_sequence: int | None = 0 if from_mark == BEGINNING else None
        """The sequence of the last group that was read; None if it is unknown."""
        self.is_done = False
        """Everything was read, and the end of the journal is durable."""
        self._disk = disk
        self._files = files
        self._from_mark = from_mark
        self._tail = UnsyncedTail(disk)

    async def payloads(
        self, nursery: trio.Nursery | None = None
    ) -> AsyncGenerator[memoryview, None]:
        """Yields the payload of each group after the mark, in order: frames one after the other.

        Holds two reads of 4 MiB or a group; the second only with a `nursery` to read ahead in.
        Raises JournalCorrupt or OSError: the bookie must not start.
        """
        await self._files.find(self._from_mark)
        for file_id in self._files.ids:
            path = self._files.path(file_name(file_id))
            file = await self._disk.open(path)
            ahead = ReadAhead(file, nursery)
            try:
                start = self._from_mark.offset if file_id == self._from_mark.file_id else 0
                scanner = FileScanner(
                    path,
                    file_id,
                    file.size,
                    last_sequence=self.last_sequence,
                    start=start,
                    is_next=file_id != self._files.ids[0],
                )
                while (wanted := scanner.wanted) is not None:
                    for group in scanner.feed(await ahead.read(*wanted)):
                        self._tail.add(scanner.name, group)
                        self.position = Mark(file_id, group.end)
                        yield group.payload
                if scanner.end > start:
                    # It may have come from the page cache of a process that was killed.
                    await file.sync()
                    self.end = Mark(file_id, scanner.end)
                self.last_sequence = scanner.last_sequence
            finally:
                ahead.close()
                file.close()
        await self._tail.write_again()
        self.is_done = True
