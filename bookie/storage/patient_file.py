"""Reading a file of which the disk cannot read some sectors: they read as zeros, and are noted.

For tools that take what they can get. Whoever reads must not believe bytes that no checksum vouches
for: then zeros are found out like any other damage, and what lies before and behind is not lost.
"""

from __future__ import annotations

from typing import Final

from bookie.storage.disk.disk import File

BLOCK_BYTES: Final = 4096
"""Read at once where a larger read failed: a disk's sector, and a page of the system. Each that
cannot be read may cost seconds of the disk's own tries."""


class PatientFile:
    """Reads of one file; who opened it closes it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.unreadable: dict[int, str] = {}
        """By offset: blocks that gave zeros, and why. No more than the file has."""

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._file.size

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        """`size` bytes, or fewer at the end of the file. Never raises OSError."""
        try:
            return await self._file.read(offset, size, drops_cache=drops_cache)
        except OSError:
            end = min(offset + size, self.size)
        pieces: list[bytes] = []
        while offset < end:
            stop = min(end, (offset // BLOCK_BYTES + 1) * BLOCK_BYTES)
            pieces.append(await self._block(offset, stop))
            offset = stop
        return b"".join(pieces)

    async def _block(self, begin: int, end: int) -> bytes:
        if begin // BLOCK_BYTES * BLOCK_BYTES not in self.unreadable:
            try:
                return (await self._file.read(begin, end - begin)).ljust(end - begin, b"\0")
            except OSError as error:
                self.unreadable[begin // BLOCK_BYTES * BLOCK_BYTES] = str(error)
        return bytes(end - begin)

    def __str__(self) -> str:
        """What could not be read, for people."""
        first = min(self.unreadable, default=0)
        return (
            f"{len(self.unreadable)} blocks of {BLOCK_BYTES} bytes cannot be read, the first at "
            f"{first}: {self.unreadable.get(first, '')}"
        )
