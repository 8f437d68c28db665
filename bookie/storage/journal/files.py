"""The files of one journal directory: the next to write, those still needed, the backups, and those
to recycle.

Used by `Journal` and its reader alone. Must never remove a file that a replay may need, begin a
file under an id used before, or return a file whose name and header are not durable. On a full disk
it waits for space: until a file is named it contains nothing that could be lost.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from typing import Final

import trio

from bookie.core.journal import (
    BEGINNING,
    FIRST_GROUP_OFFSET,
    FileHeader,
    JournalCorrupt,
    Mark,
    encode_file_header,
    file_id_of,
    file_name,
)
from bookie.core.marks import first_of_last_files
from bookie.storage.disk.disk import Disk, File
from bookie.storage.disk.reserved_space import is_no_space

_log = logging.getLogger(__name__)

ASK_DISK_S: Final = 0.5
"""How often a disk without space for the next file is checked: no event announces free space."""
_SPARE_PREFIX: Final = "spare-"
_ZEROS: Final = bytes(1 << 20)


class JournalFiles:
    """Call `find` first, then `begin_next` whenever a file is full. `prepare_spares` is a task."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        rng: random.Random,
        file_bytes_max: int,
        files_recycled: int,
        backups_max: int = 0,
    ) -> None:
        assert file_bytes_max >= 2 * FIRST_GROUP_OFFSET, f"file_bytes_max {file_bytes_max}"
        assert files_recycled >= 0, f"files_recycled {files_recycled}"
        assert backups_max >= 0, f"backups_max {backups_max}"
        self.ids: list[int] = []
        """The ids of files that a replay may need, in order, without a gap."""
        self._disk = disk
        self._directory = directory
        self._rng = rng
        self._file_bytes_max = file_bytes_max
        self._files_recycled = files_recycled
        self._last_id = 0
        self._current_id = 0
        self._backups_max = backups_max
        self._backups: deque[str] = deque()  # trimmed and kept as they are, oldest first
        self._leftovers: list[str] = []
        self._free: deque[str] = deque()  # names of files to write again
        self._spares_made = 0
        self._spare_lock = trio.Lock()
        self._spare_wanted = trio.Event()
        self._is_spare_asked = False  # since the last file was begun

    def path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    async def find(self, from_mark: Mark) -> None:
        """Fills `ids` with the files from the mark on. Raises JournalCorrupt if one is missing."""
        await self._disk.make_directory(self._directory)
        first = max(from_mark.file_id, 1)
        for name in await self._disk.list_directory(self._directory):
            file_id = file_id_of(name)
            if file_id is not None and file_id >= first:
                self.ids.append(file_id)
            elif file_id is not None or name.startswith(_SPARE_PREFIX):
                self._leftovers.append(name)
        for place, file_id in enumerate(self.ids):
            if file_id != first + place:
                self._missing(first + place, f"the next file there is {file_name(file_id)}")
        if not self.ids and from_mark != BEGINNING:
            self._missing(first, f"the checkpoint's mark is at its offset {from_mark.offset}")
        self._last_id = self.ids[-1] if self.ids else 0

    def _missing(self, file_id: int, why: str) -> None:
        path = self.path(file_name(file_id))
        raise JournalCorrupt(path, 0, 0, f"the file is missing ({why})")

    async def first_id(self) -> int:
        """Returns the first file of an unbroken sequence up to the last one; 0 if there is none.
        Raises OSError."""
        await self._disk.make_directory(self._directory)
        ids = map(file_id_of, await self._disk.list_directory(self._directory))
        return first_of_last_files(one for one in ids if one is not None)

    async def free_leftovers(self) -> None:
        """Recycles or removes what `find` saw and no replay needs. Not allowed before it
        succeeded."""
        while self._leftovers:
            name = self._leftovers.pop(0)  # in order, because the newest are kept as backups
            if name.startswith(_SPARE_PREFIX):
                await self._disk.remove(self.path(name))
            else:
                await self._release(name)

    async def begin_next(self, first_sequence: int, group_size: int) -> tuple[File, FileHeader]:
        """Returns the next file, durably named and begun, with space for a group of `group_size`
        bytes.

        Waits while the disk has no space for it. Raises OSError for anything else.
        """
        file_id = self._last_id + 1
        path = self.path(file_name(file_id))
        file_bytes = max(self._file_bytes_max, FIRST_GROUP_OFFSET + group_size)
        async with self._spare_lock:
            await self._name_next(path, file_bytes)
            self._is_spare_asked = False
        self._last_id = file_id
        await self._disk.sync_directory(self._directory)
        file = await self._disk.open(path, has_own_thread=True)
        try:
            if file.size > file_bytes:
                await file.truncate(file_bytes)
            header = FileHeader(file_id, self._rng.getrandbits(64), first_sequence)
            await file.write_at_synced(0, [encode_file_header(header)])
        except BaseException:
            file.close()
            raise
        self.ids.append(file_id)
        self._current_id = file_id
        return file, header

    async def _name_next(self, path: str, file_bytes: int) -> None:
        waits_since = None
        while True:
            try:
                if not self._free:
                    await self._make_spare()
                name = self._free[0]
                await self._grow(name, file_bytes)
                await self._disk.rename(self.path(name), path)
                break
            except OSError as error:
                if not is_no_space(error):
                    raise
                if waits_since is None:
                    waits_since = trio.current_time()
                    _log.warning(
                        "journal waits for space for its next file directory=%s file_bytes=%d "
                        "cause=%s. Adds and fences wait, reads continue. Cure: free space on the "
                        "disk; it then continues by itself",
                        self._directory,
                        file_bytes,
                        error,
                    )
            # Meanwhile a checkpoint may trim a file, or someone may free space.
            await trio.sleep(ASK_DISK_S)
        self._free.popleft()
        if waits_since is not None:
            waited_s = trio.current_time() - waits_since
            _log.info("journal continues directory=%s waited_s=%.1f", self._directory, waited_s)

    async def _grow(self, name: str, file_bytes: int) -> None:
        """Extends a recycled file, which may be of an earlier setting, or too small for a group."""
        file = await self._disk.open(self.path(name))
        try:
            if file.size < file_bytes:
                await _fill_with_zeros(file, file_bytes)
        except OSError:
            # What a failed sync left is unknown: nothing is ever written to this file again.
            self._free.popleft()
            await self._disk.remove(self.path(name))
            raise
        finally:
            file.close()

    async def trim_before(self, mark: Mark) -> None:
        """Trims files that end before `mark`; never the one being written."""
        released: list[str] = []
        while self.ids and self.ids[0] < mark.file_id and self.ids[0] != self._current_id:
            released.append(file_name(self.ids.pop(0)))
        for name in released:
            await self._release(name)

    async def _release(self, name: str) -> None:
        self._backups.append(name)
        while len(self._backups) > self._backups_max:
            await self._set_free(self._backups.popleft())

    async def _set_free(self, name: str) -> None:
        if len(self._free) < self._files_recycled:
            self._free.append(name)
        else:
            await self._disk.remove(self.path(name))

    # --- files of zeros

    def ask_spare(self) -> None:
        """Announces that the current file will soon be full. Cheap; may be called often."""
        if not self._is_spare_asked:
            self._is_spare_asked = True
            self._spare_wanted.set()

    async def prepare_spares(self) -> None:
        """A task that prepares a file in advance, so that beginning it does not wait for zeros to
        be written."""
        while True:
            await self._spare_wanted.wait()
            self._spare_wanted = trio.Event()
            async with self._spare_lock:
                if self._is_spare_asked and not self._free:
                    try:
                        await self._make_spare()
                    except OSError:
                        pass  # `begin_next` tries again, and fails if it must

    async def _make_spare(self) -> None:
        """Creates a file of zeros. Writing to blocks that were written before needs no change of
        the file system's own tables at each sync; allocating them alone does not avoid that."""
        self._spares_made += 1
        name = f"{_SPARE_PREFIX}{self._spares_made}"
        file = await self._disk.open(self.path(name), is_new=True)
        try:
            await _fill_with_zeros(file, self._file_bytes_max)
        except OSError:
            await self._disk.remove(self.path(name))
            raise
        finally:
            file.close()
        self._free.append(name)


async def _fill_with_zeros(file: File, size: int) -> None:
    begin = file.size
    await file.allocate(size)
    for offset in range(begin, size, len(_ZEROS)):
        # Synced piece by piece: a group's sync then waits behind one piece, not behind all.
        await file.write_at_synced(offset, [memoryview(_ZEROS)[: size - offset]])
