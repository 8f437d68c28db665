"""Scans the records of an entry log, without reading bodies that are not needed.

It trusts nothing that no checksum protects, and reads no more bytes than the file may hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from bookie.core.entry_log import (
    FILE_HEADER_BYTES,
    RUN_HEADER_BYTES,
    RunHeader,
    check_run_body,
    check_run_lengths,
    decode_run_header,
)
from bookie.storage.disk.disk import Readable
from bookie.storage.index.index import PlacedRun
from ledger.errors import BookieIoError

WINDOW_BYTES = 128 * 1024
"""The size of a read that finds headers: large enough that short records are not a hop to a thread
each, small against a long body that is not needed, the rest of which is then skipped."""


class LogRecord(NamedTuple):
    """One run record: `head` is its bytes up to the first entry's."""

    run: PlacedRun
    header: RunHeader
    head: bytes


class LogScanner:
    """One pass over one log.

    Args:
        file: the log; closed by the caller.
        on_read: awaited before each read with the bytes it will take, to bound the rate.
    """

    def __init__(
        self, file: Readable, log_id: int, *, on_read: Callable[[int], Awaitable[None]]
    ) -> None:
        self._file = file
        self._log_id = log_id
        self._on_read = on_read
        self._window = memoryview(b"")
        self._begin = 0
        self.position = FILE_HEADER_BYTES
        """Where the next record begins. The file's header is not needed: every record has checksums
        of its own, and the index names the log it has to be in."""
        self.end_reason = ""
        """Why there is no further record."""

    async def next(self) -> LogRecord | None:
        """Returns the next record, or None at the end or at one that is torn or damaged. Raises
        OSError."""
        fixed = await self._bytes(self.position, RUN_HEADER_BYTES)
        try:
            header = decode_run_header(fixed)
            at = self.position + RUN_HEADER_BYTES
            packed = await self._bytes(at, 4 * header.entries)
            lengths = check_run_lengths(header, fixed, packed)
        except ValueError as error:
            why = str(error) if fixed else "the file ends there"
            self.end_reason = f"at {self.position} ({why})"
            return None
        at += len(packed)
        run = PlacedRun(header.ledger_id, header.first, self._log_id, at, lengths)
        self.position = at + header.body_bytes + header.sums_bytes
        return LogRecord(run, header, fixed + packed)

    async def body(self, record: LogRecord) -> bytes:
        """Returns the entries of a record. Raises BookieIoError if they are damaged, and
        OSError."""
        body = await self._bytes(record.run.offset, record.header.body_bytes)
        try:
            check_run_body(record.header, body)
        except ValueError as error:
            raise BookieIoError(f"at {record.run.offset}: {error}") from error
        return body

    async def _bytes(self, offset: int, size: int) -> bytes:
        """Returns fewer bytes at the end of the file."""
        begin = offset - self._begin
        if begin < 0 or begin + size > len(self._window):
            wanted = max(size, WINDOW_BYTES)
            await self._on_read(wanted)
            data = await self._file.read(offset, wanted, drops_cache=True)
            self._window, self._begin, begin = memoryview(data), offset, 0
        return bytes(self._window[begin : begin + size])
