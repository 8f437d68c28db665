"""The interface to disks: files whose writes are durable only after `sync`.

The simulator implements the same protocols (`bookie.testing.disk`). Paths are plain strings; the
caller joins them with "/". OSError is raised as it is: storage decides what a failed write or sync
means (a failed sync is never retried).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

Buffer = bytes | bytearray | memoryview


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Returns consecutive parts of `data`; those behind its end are shorter, or empty."""
    ends = list(accumulate(sizes))
    return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]


class Readable(Protocol):
    """What a scan needs of a file."""

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        """See `File.read`."""
        ...


class File(Protocol):
    """An open file. One task at a time may write; reads may overlap."""

    @property
    def size(self) -> int:
        """The number of bytes in the file, written or allocated."""
        ...

    async def write_at(
        self,
        offset: int,
        views: Sequence[Buffer],
        *,
        drops_cache: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Writes all of `views` one after the other at `offset`; not durable yet.

        `drops_cache` as for `sync`. `then` is called when everything is written, before this
        returns, perhaps in another thread; it must not raise. Raises OSError; never leaves a short
        write unreported.
        """
        ...

    async def write_at_synced(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        """Writes and makes durable (fdatasync), in one hop to the file's own thread. Returns how
        long the disk took, in seconds, without the hop.

        `then` as for `write_at`, when it is durable. Not cancellable once begun: returns or raises
        only when the outcome is known.
        """
        ...

    def write_synced_now(
        self, offset: int, views: Sequence[Buffer], *, then: Callable[[], None] | None = None
    ) -> float:
        """Like `write_at_synced`, in the current thread, which waits for the disk meanwhile.

        For a disk that has been fast: the event loop serves no task until it has answered.
        """
        ...

    def write_now(self, offset: int, data: Buffer) -> None:
        """Writes a few bytes in the current thread; not durable. Raises OSError.

        The disk may make it wait, so it is not for the event loop of a bookie that serves, unless
        they replace those at the beginning of the file that the last call wrote, after each write
        to a disk that has just been fast.
        """
        ...

    async def sync(self, *, drops_cache: bool = False) -> None:
        """Makes everything that was written durable (fdatasync). Not cancellable once begun.

        `drops_cache`: the system need not keep it in memory; it will rarely be read.
        """
        ...

    def read_nowait(
        self, offset: int, size: int, *, drops_cache: bool = False
    ) -> bytes | bytearray | None:
        """Returns `size` bytes (fewer at the end of the file), or None if that would wait for a
        disk."""
        ...

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        """Returns `size` bytes, fewer only at the end of the file. `drops_cache` as for `sync`."""
        ...

    async def read_parts(
        self, offset: int, sizes: Sequence[int], *, drops_cache: bool = False
    ) -> list[bytes]:
        """Reads like `read`, in one operation of the disk as far as possible, and returns
        consecutive parts of these sizes, each in memory of its own. Those behind the end of the
        file are shorter, or empty."""
        ...

    async def allocate(self, size: int) -> None:
        """Reserves space and extends the file to `size` bytes, reading as zeros."""
        ...

    async def truncate(self, size: int) -> None: ...

    def close(self) -> None:
        """Closes without syncing. Reads and writes in progress finish first."""
        ...


class Disk(Protocol):
    """A file system, or the part of it that one bookie may use."""

    async def open(self, path: str, *, is_new: bool = False, has_own_thread: bool = False) -> File:
        """Opens for reading and writing. `is_new`: must not exist, is created (the directory
        must still be synced). `has_own_thread`: writes go to a thread of this file's own, for
        the journal. Raises FileNotFoundError, FileExistsError."""
        ...

    async def read_file(self, path: str) -> bytes:
        """Returns the whole file. Raises FileNotFoundError."""
        ...

    async def replace_file(self, path: str, data: bytes) -> None:
        """Replaces a file atomically and durably: temporary file, sync, rename, sync of the
        directory."""
        ...

    async def list_directory(self, path: str) -> list[str]:
        """Returns sorted names; empty if the directory does not exist."""
        ...

    async def make_directory(self, path: str) -> None:
        """Creates a directory and its parents durably; no error if it exists."""
        ...

    async def rename(self, old: str, new: str) -> None: ...

    async def remove(self, path: str) -> None: ...

    async def sync_directory(self, path: str) -> None: ...

    async def space(self, path: str) -> tuple[int, int]:
        """Returns the total and free bytes of the file system that holds `path`."""
        ...

    async def device(self, path: str) -> int:
        """Returns a number of the file system that holds `path`, different for each."""
        ...

    async def lock(self, path: str) -> None:
        """Takes the lock file `path` until the process ends or `close`. Raises BlockingIOError if
        another process holds it; its `strerror` is text that names the process, as far as it is
        known."""
        ...

    def close(self) -> None:
        """Ends threads and locks. Nothing is synced."""
        ...
