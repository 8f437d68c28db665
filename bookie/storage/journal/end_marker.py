"""The file `END` of a journal directory: up to where the journal has told somebody.

Written after each group, when it is durable, and never synced, so it costs a write of 28 bytes into
the page cache. It never says more than was there: what it says and replay does not find is lost.
A process that is killed leaves it as it was; a loss of power may bring back an older one, which
says less.
"""

from __future__ import annotations

import logging
from functools import partial

from bookie.core.journal import Mark, decode_end, encode_end
from bookie.storage.disk.disk import Disk, File

_log = logging.getLogger(__name__)

END_FILE = "END"


async def read_end_marker(disk: Disk, directory: str) -> Mark | None:
    """None if nothing is known. Raises OSError."""
    try:
        return decode_end(await disk.read_file(f"{directory}/{END_FILE}"))
    except FileNotFoundError:
        return None


class EndMarker:
    """Of a journal that runs. A journal works without it, so what fails here fails nothing."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.lost: Mark | None = None
        """Up to here was acknowledged, and it is not all there any more."""
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{END_FILE}"
        self._file: File | None = None
        self._has_failed = False

    async def compare(self, found: Mark) -> None:
        """With the end of what is there. Raises OSError."""
        told = await read_end_marker(self._disk, self._directory)
        self.lost = told if told is not None and told > found else None

    async def begin(self, end: Mark) -> None:
        """From now on `end` is what it says."""
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
        """To be called, in any thread, when all up to `end` is as durable as was promised."""
        if self._file is None or self._has_failed:
            return None
        return partial(self._record, self._file, end)

    def _record(self, file: File, end: Mark) -> None:
        try:
            file.write_now(0, encode_end(end))
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self._has_failed = True  # what it says already stays true
        _log.warning(
            "the end of a journal is not noted any more path=%s cause=%s. If its last groups are "
            "lost one day, the bookie will not notice",
            self._path,
            error,
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
