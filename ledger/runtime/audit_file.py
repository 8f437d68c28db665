"""A file of lines that grows at its end and is its owner's alone, with or without rotation.

Several processes may append to one file. A file that another program has moved away is made again.
A line is in it as a whole or not at all, unless the file system fails in the middle of one. Nothing
is synced: a power loss costs the last lines.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ledger.runtime.private_files import private_opener


class AuditFile:
    """Appends lines to `path`. Blocks: a bookie calls it in a thread.

    Args:
        path: the newest file; `PATH.1` is the one before.
        bytes_max: a file is not made longer than that, but for a single line; 0: there is no
            rotation.
        files_max: files that are kept, with the newest.
    """

    def __init__(self, path: str, *, bytes_max: int = 0, files_max: int = 1) -> None:
        self.path = path
        self.bytes_max = bytes_max
        self.files_max = files_max
        self._file = -1
        self._size = 0

    def open(self) -> None:
        """Opens the file, or makes it. Raises OSError."""
        self.close()
        self._file = private_opener(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._size = os.fstat(self._file).st_size
        if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
            self._append(b"\n")  # a crash or a full disk has cut off the last line

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)

    def write(self, lines: Sequence[bytes]) -> int:
        """Appends lines, each with its end. Returns how many are in the file now; raises OSError
        if it is none of them. The next call opens the file again after an error."""
        written = 0
        try:
            if self._file < 0 or not self._is_in_place():
                self.open()
            while written < len(lines):
                count = self._fitting(lines, written)
                if not count:
                    self._rotate()
                    continue
                self._append(b"".join(lines[written : written + count]))
                written += count
        except OSError:
            self.close()
            if not written:
                raise
        return written

    def _fitting(self, lines: Sequence[bytes], first: int) -> int:
        """Returns how many lines from `first` on go into the file: at least one into an empty
        one."""
        if not self.bytes_max:
            return len(lines) - first
        size, count = self._size, 0
        for line in lines[first:]:
            size += len(line)
            if size > self.bytes_max and (count or self._size):
                break
            count += 1
        return count

    def _append(self, data: bytes) -> None:
        before = self._size
        try:
            self._size += os.write(self._file, data)
            if self._size - before < len(data):
                # The rest, or the error for which it was cut off.
                self._size += os.write(self._file, data[self._size - before :])
        except OSError:
            with suppress(OSError):
                if os.fstat(self._file).st_size == self._size:  # nobody has written behind it
                    os.ftruncate(self._file, before)
            raise

    def _is_in_place(self) -> bool:
        """Returns whether the open file is still at the path, and looks at its size."""
        mine = os.fstat(self._file)
        self._size = mine.st_size
        try:
            return os.path.samestat(os.stat(self.path), mine)
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        self.close()
        for number in range(self.files_max - 1, 0, -1):
            older = f"{self.path}.{number}"
            newer = f"{self.path}.{number - 1}" if number > 1 else self.path
            with suppress(FileNotFoundError):
                os.replace(newer, older)
        if self.files_max == 1:
            os.unlink(self.path)
        self.open()
