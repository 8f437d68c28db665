"""An entry log for what compaction keeps. Its format is that of every entry log.

It is a file of its own, so that a checkpoint's runs stay together and in order. The index may point
into it only as far as it was synced. Nothing in it is the only copy before the log it came from is
removed.
"""

from __future__ import annotations

from bookie.core.entry_log import FILE_HEADER_BYTES, Run, encode_file_header
from bookie.storage.disk.disk import Buffer, Disk, File
from bookie.storage.entry_log.entry_logs import LEDGERS_MAX, log_name


class CompactionLog:
    """One log, appended to by one task. OSError is raised as it is: then it takes no more, and what
    was synced before stays valid."""

    WRITE_BYTES = 1024 * 1024

    def __init__(self, disk: Disk, directory: str, log_id: int, *, log_bytes_max: int) -> None:
        self.log_id = log_id
        self.ledgers: dict[int, int] = {}
        """Bytes by ledger, for the index's record of this log."""
        self.bytes_written = 0
        self._disk = disk
        self._directory = directory
        self._log_bytes_max = log_bytes_max
        self._file: File | None = None
        self._pending: list[Buffer] = []
        self._pending_bytes = 0

    async def begin(self) -> None:
        path = f"{self._directory}/{log_name(self.log_id)}"
        self._file = await self._disk.open(path, is_new=True)
        self._put(encode_file_header(self.log_id))
        await self._disk.sync_directory(self._directory)

    def has_space(self, size: int) -> bool:
        """Returns whether a run of `size` bytes with its header fits. Any run fits into an empty
        log."""
        end = self.bytes_written + self._pending_bytes
        is_small = end + size <= self._log_bytes_max and len(self.ledgers) < LEDGERS_MAX
        return is_small or end <= FILE_HEADER_BYTES

    async def append(self, run: Run) -> int:
        """Returns the offset of the first entry's bytes. Written at the latest by `sync`."""
        offset = self.bytes_written + self._pending_bytes + len(run.head)
        self._put(run.head, *run.pieces, run.sums)
        self.ledgers[run.ledger_id] = self.ledgers.get(run.ledger_id, 0) + run.body_bytes
        if self._pending_bytes >= self.WRITE_BYTES:
            await self._write()
        return offset

    async def sync(self) -> None:
        """Makes all runs appended so far durable."""
        assert self._file is not None, "the log was not begun"
        await self._write()
        await self._file.sync(drops_cache=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, *views: Buffer) -> None:
        self._pending += views
        self._pending_bytes += sum(map(len, views))

    async def _write(self) -> None:
        if not self._pending:
            return
        assert self._file is not None
        views, size = self._pending, self._pending_bytes
        await self._file.write_at(self.bytes_written, views, drops_cache=True)
        self._pending, self._pending_bytes = [], 0
        self.bytes_written += size
