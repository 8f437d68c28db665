"""Standard input, output and error of every command: they may be closed, full, or not UTF-8.

What fails is named: "standard output: No space left on device" must never read as if the disk of a
bookie were full. A closed stream keeps its descriptor, so that no file or connection of the command
gets its number and is written to by accident.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import re
import select
import sys
from typing import TYPE_CHECKING

from ledger.shown_text import shown_text

if TYPE_CHECKING:
    from typing_extensions import Buffer

STDIN, STDOUT, STDERR = range(3)
STDIN_NAME = "standard input"
_STDOUT_NAME = "standard output"


class OutputClosed(Exception):
    """The reader of our stdout has closed it: this is no error, but the command ends."""


class StandardStreamFailed(Exception):
    """A standard stream cannot be read or written. It is no OSError: no code that handles the
    errors of disks or connections may take it for one of them."""

    def __init__(self, stream: str, error: OSError) -> None:
        is_closed = error.errno == errno.EBADF
        super().__init__(f"{stream}: {'it is closed' if is_closed else error.strerror}")


class _Descriptor(io.RawIOBase):
    """Writes to a standard stream. Closing it closes nothing: others use the descriptor, too."""

    def __init__(self, descriptor: int, *, is_dropped: bool) -> None:
        self._descriptor = descriptor
        self._written: list[int] = []
        self.is_dropped = is_dropped
        """What cannot be written is dropped: nothing could report it, or it was reported."""

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        # Python raises KeyboardInterrupt at the end of a call, when os.write may have written: its
        # result would be lost, and the same bytes written again by the next flush. So the list has
        # it before the interpreter continues, and an interrupted call leaves it for the next one.
        while not self._written:
            try:
                self._written.extend(map(os.write, (self._descriptor,), (view,)))
            except BlockingIOError:  # another process has made the pipe or terminal non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError as error:
                if self.is_dropped:
                    return len(view)
                if isinstance(error, BrokenPipeError):
                    raise OutputClosed from None
                raise StandardStreamFailed(_STDOUT_NAME, error) from None
        written, self._written = self._written, []
        return written[0]


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Escapes what cannot be encoded. In arguments Python has U+DCFF for a byte that is no UTF-8:
    it is shown as \\xff."""
    text, end = codecs.backslashreplace_errors(error)
    return re.sub(r"\\udc([89a-f][0-9a-f])", r"\\x\1", str(text)), end


_ESCAPED = "ledgerstream-escaped"
codecs.register_error(_ESCAPED, _escaped)


def open_standard_streams() -> None:
    """Makes the standard streams usable whatever the caller of the command left of them."""
    for descriptor in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one. Opened the wrong way round, so that its use fails.
            os.open(os.devnull, os.O_WRONLY if descriptor == STDIN else os.O_RDONLY)
    sys.stdout = _text_stream(STDOUT, sys.stdout)
    sys.stderr = _text_stream(STDERR, sys.stderr)


def _text_stream(descriptor: int, found: io.TextIOBase | object) -> io.TextIOWrapper:
    """Returns a stream with the encoding of the one Python has made, if the descriptor was open.

    Characters that the encoding does not have are escaped, and bytes that were no text as well.
    """
    is_stderr = descriptor == STDERR
    raw = _Descriptor(descriptor, is_dropped=is_stderr)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(found, "encoding", None) or "utf-8",
        errors=_ESCAPED,
        line_buffering=is_stderr or raw.isatty(),
    )


def drop_output() -> None:
    """Drops what is left to be written to stdout, whose failure is known: Python would try again at
    the end of the process."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Descriptor):
        raw.is_dropped = True


def announce(text: str) -> None:
    """Prints a line for the process that started this one. Without a reader it is dropped: a server
    must not end because nothing waits until it is ready."""
    try:
        sys.stdout.write(f"{shown_text(text)}\n")
        sys.stdout.flush()
    except (OutputClosed, StandardStreamFailed):
        drop_output()
