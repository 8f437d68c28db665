"""Records and entries as lines of a file or of stdin: the bytes of a line without its newline.

Complete lines are passed on at once, so that the line of a slow producer does not wait for the next
one. Memory is bounded by one chunk and one line.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ledger.cli.output import UsageError

FileOrStdin = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]
"""An argument that may be "-". A mistyped option is taken for a file, too: see `opened`."""

_CHUNK_BYTES = 1 << 20


class LineSplitter:
    """Cuts chunks of bytes into lines. A line may span chunks, up to `line_bytes_max`."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._lines = 0
        self._is_too_long = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that `chunk` completes, up to one over the limit (see `check`)."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun.clear()
            self._begun_bytes = 0
        if rest:
            self._begun.append(rest)
            self._begun_bytes += len(rest)
        if max(map(len, lines), default=0) > self._line_bytes_max:
            self._is_too_long = True
            lines = list(takewhile(lambda line: len(line) <= self._line_bytes_max, lines))
        self._is_too_long |= self._begun_bytes > self._line_bytes_max
        self._lines += len(lines)
        return lines

    def check(self) -> None:
        """Raises InvalidArgument if the line behind those returned is over the limit."""
        from ledger.errors import InvalidArgument

        if self._is_too_long:
            raise InvalidArgument(
                f"line {self._lines + 1} is longer than {self._line_bytes_max} bytes, the most "
                f"that one record may have"
            )

    def end(self) -> list[bytes]:
        """Returns the last line, if the input does not end with a newline."""
        last, self._begun = b"".join(self._begun), []
        return [last] if last else []


@dataclass(frozen=True, slots=True)
class Input:
    """A file or stdin, open for reading."""

    descriptor: int
    path: Path | None
    """None: stdin."""

    def failure(self, error: OSError) -> Exception:
        """Returns an error that names the file, or stdin."""
        from ledger.cli.standard_streams import STDIN_NAME, StandardStreamFailed

        if self.path is None:
            return StandardStreamFailed(STDIN_NAME, error)
        return OSError(error.errno, error.strerror, str(self.path))

    def check(self) -> None:
        """Raises the error that reading would raise, if that is known before."""
        if stat.S_ISDIR(os.fstat(self.descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        access = fcntl.fcntl(self.descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if access == os.O_WRONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    async def read(self) -> bytes:
        """Returns the next bytes, b"" at the end."""
        import trio

        try:
            return await trio.to_thread.run_sync(
                os.read, self.descriptor, _CHUNK_BYTES, abandon_on_cancel=True
            )
        except OSError as error:
            raise self.failure(error) from None


@contextmanager
def opened(source: Path | None) -> Iterator[Input]:
    """Opens `source`; None or "-" is stdin. To be called before anything is made for its records.

    Raises an error that names what cannot be read.
    """
    from ledger.cli.standard_streams import STDIN

    is_stdin = source is None or str(source) == "-"
    path = None if is_stdin else source
    try:
        descriptor = STDIN if path is None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if not str(path).startswith("-"):
            raise
        raise UsageError(f"{path}: there is no such option, and no such file") from None
    try:
        found = Input(descriptor, path)
        try:
            found.check()
        except OSError as error:
            raise found.failure(error) from None
        yield found
    finally:
        if path is not None:
            os.close(descriptor)


def size_of(source: Input) -> int | None:
    """Returns the bytes to read for a progress bar; None if that is unknown."""
    size = os.fstat(source.descriptor).st_size
    return size or None


async def line_batches(source: Input, line_bytes_max: int) -> AsyncGenerator[list[bytes], None]:
    """Yields the lines of a file or pipe, those of one read together.

    Raises InvalidArgument for a line over the limit, after the lines before it were yielded.
    """
    splitter = LineSplitter(line_bytes_max)
    while chunk := await source.read():
        lines = splitter.feed(chunk)
        if lines:
            yield lines
        splitter.check()
    last = splitter.end()
    if last:
        yield last
