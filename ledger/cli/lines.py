"""Records and entries as lines of a file or of stdin: the bytes of a line without its newline.

Complete lines are passed on at once, so that the line of a slow producer does not wait for the next
one. Memory is bounded by one chunk and one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from ledger.errors import InvalidArgument

FileOrStdin = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]
"""An argument that may be "-"."""

_CHUNK_BYTES = 1 << 20


class LineSplitter:
    """Cuts chunks of bytes into lines. A line may span chunks, up to `line_bytes_max`."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._lines = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that `chunk` completes. Raises InvalidArgument for one over the
        limit."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun.clear()
            self._begun_bytes = 0
        if rest:
            self._begun.append(rest)
            self._begun_bytes += len(rest)
        longest = max(map(len, lines), default=0)
        if longest > self._line_bytes_max or self._begun_bytes > self._line_bytes_max:
            number = (
                self._lines
                + 1
                + next(
                    (i for i, line in enumerate(lines) if len(line) > self._line_bytes_max),
                    len(lines),
                )
            )
            raise InvalidArgument(
                f"line {number} is longer than {self._line_bytes_max} bytes, the most one record "
                f"may have; the lines before it were accepted"
            )
        self._lines += len(lines)
        return lines

    def end(self) -> list[bytes]:
        """Returns the last line, if the input does not end with a newline."""
        last, self._begun = b"".join(self._begun), []
        return [last] if last else []


@asynccontextmanager
async def opened(source: Path | None) -> AsyncIterator[int]:
    """Opens a descriptor to read `source`; None or "-" is stdin."""
    if source is None or str(source) == "-":
        yield sys.stdin.fileno()
        return
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def size_of(descriptor: int) -> int | None:
    """Returns the bytes to read for a progress bar; None if that is unknown."""
    size = os.fstat(descriptor).st_size
    return size or None


async def line_batches(descriptor: int, line_bytes_max: int) -> AsyncGenerator[list[bytes], None]:
    """Yields the lines of a file or pipe, those of one read together."""
    splitter = LineSplitter(line_bytes_max)
    while True:
        chunk = await trio.to_thread.run_sync(
            os.read, descriptor, _CHUNK_BYTES, abandon_on_cancel=True
        )
        if not chunk:
            break
        lines = splitter.feed(chunk)
        if lines:
            yield lines
    last = splitter.end()
    if last:
        yield last
