"""Reads a journal file from its beginning to its end, one piece ahead of who uses it.

Used for replay: while one piece is taken into the caches, and checkpoints are made of what they
hold, the disk is busy with the next.

The last groups of a journal that is replayed: those that none after them says were durable.

After a failed sync the system takes them for written. They are read, and a sync says nothing, but
only writing them again puts them on the disk; and a checkpoint's mark behind groups that are not
there would be taken for damage. Writing the same bytes leaves each sector as it should be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from bookie.core.journal_scan import Group
from bookie.storage.disk.disk import Disk, File

PIECE_BYTES: Final = 4 << 20


@asynccontextmanager
async def reading_ahead() -> AsyncIterator[trio.Nursery]:
    """Where pieces are read. An error of the body leaves as it is, in no group."""
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:  # noqa: BLE001 - raised below, when no read is under way
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class _Piece:
    """Bytes from `offset` on that are being read, or are here."""

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
            except OSError as error:  # of who asks for these bytes, if anybody does
                self.error = error
            self.arrived.set()

    def give_up(self) -> None:
        """Nobody will ask, and the file may be closed."""
        self._is_wanted = False
        self._scope.cancel()


class ReadAhead:
    """Answers reads of one file that go forward. Holds two pieces, or more if more is asked."""

    def __init__(self, file: File, nursery: trio.Nursery | None) -> None:
        """`nursery`: of `reading_ahead`, around all reads; None reads nothing ahead."""
        self._file = file
        self._nursery = nursery
        self._last = b""
        self._last_at = 0
        self._next: _Piece | None = None  # begins where the last one ends

    async def read(self, offset: int, size: int) -> bytes:
        """`size` bytes or more, fewer only at the end of the file. Raises OSError."""
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
        """Before the file is closed: a scan may end before the file does."""
        if self._next is not None:
            self._next.give_up()
            self._next = None


class UnsyncedTail:
    """`add` each group that is read, then `write_again`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = ""
        self._groups: deque[Group] = deque()
        """One after the other, all in one file: it was durable before the next one was begun. One
        group, or as many as a journal that syncs late may have written without a sync."""

    def add(self, path: str, group: Group) -> None:
        while self._groups and self._groups[0].sequence <= group.synced_sequence:
            self._groups.popleft()
        assert not self._groups or path == self._path, f"{self._path} was not durable before {path}"
        self._groups.append(group)
        self._path = path

    async def write_again(self) -> None:
        """Makes them durable, whatever syncs before said. Raises OSError."""
        if not self._groups:
            return
        file = await self._disk.open(self._path)
        try:
            wholes = [group.whole for group in self._groups]
            await file.write_at_synced(self._groups[0].offset, wholes)
        finally:
            file.close()
        self._groups.clear()
