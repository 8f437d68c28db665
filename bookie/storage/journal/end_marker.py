"""The file `END` of a journal directory: the end of what the journal has acknowledged.

Written after each group, when it is durable, and never synced, so it costs a write of 28 bytes into
the page cache. It never claims more than was there: what it claims and replay does not find is
lost. A process that is killed leaves it as it was; a loss of power may restore an older one, which
claims less.
"""

from __future__ import annotations

import logging
from functools import partial

from bookie.core.journal import Mark, decode_end, encode_end
from bookie.storage.disk.disk import Disk, File

_log = logging.getLogger(__name__)

END_FILE = "END"


async def read_end_marker(disk: Disk, directory: str) -> Mark | None:
    """Returns the recorded end, or None if it is unknown. Raises OSError."""
    try:
        return decode_end(await disk.read_file(f"{directory}/{END_FILE}"))
    except FileNotFoundError:
        return None


class EndMarker:
    """The end marker of a running journal. A journal works without it, so an error here fails
    nothing."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.lost: Mark | None = None
        """The end up to which was acknowledged, if part of that is gone; otherwise None."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{END_FILE}"
        self._file: File | None = None
        self._has_failed = False

    async def compare(self, found: Mark) -> None:
        """Compares the marker with the end that replay found. Raises OSError."""
        recorded = await read_end_marker(self._disk, self._directory)
        self.lost = recorded if recorded is not None and recorded > found else None

    async def begin(self, end: Mark) -> None:
        """Records `end` from now on."""
        try:
            try:
                self._file = await self._disk.open(self._path)
            except FileNotFoundError:
                self._file = await self._disk.open(self._path, is_new=True)
        except OSError as error:
            self._failed(error)
            return
        self._record(self._file, end)

    def recording(self, end: Mark) -> partial[None] | None:
        """Returns what to call, in any thread, when all up to `end` is as durable as promised."""
        if self._file is None or self._has_failed:
            return None
        return partial(self._record, self._file, end)

    def _record(self, file: File, end: Mark) -> None:
        try:
            file.write_now(0, encode_end(end))
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self._has_failed = True  # what it claims already stays true
        _log.warning(
            "the end of a journal is no longer recorded path=%s cause=%s. If its last groups are "
            "lost, the bookie will not notice",
            self._path,
            error,
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
