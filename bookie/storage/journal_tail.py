"""The last groups of a journal that is replayed: those that none after them says were durable.

After a failed sync the system takes them for written. They are read, and a sync says nothing, but
only writing them again puts them on the disk; and a checkpoint's mark behind groups that are not
there would be taken for damage. Writing the same bytes leaves each sector as it should be.
"""

from __future__ import annotations

from collections import deque

from bookie.core.journal_scan import Group
from bookie.storage.disk.disk import Disk


class UnprovenTail:
    """`add` each group that is read, then `write_again`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = ""
        self._groups: deque[Group] = deque()
        """One after the other, all in one file: it was durable before the next one was begun. One
        group, or as many as a journal that syncs late may have written without a sync."""

    def add(self, path: str, group: Group) -> None:
        while self._groups and self._groups[0].sequence <= group.synced_sequence:
            self._groups.popleft()
        assert not self._groups or path == self._path, f"{self._path} was not durable before {path}"
        self._groups.append(group)
        self._path = path

    async def write_again(self) -> None:
        """Makes them durable, whatever syncs before said. Raises OSError."""
        if not self._groups:
            return
        file = await self._disk.open(self._path)
        try:
            wholes = [group.whole for group in self._groups]
            await file.write_at_synced(self._groups[0].offset, wholes)
        finally:
            file.close()
        self._groups.clear()
