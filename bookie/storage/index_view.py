"""A RocksDB directory seen through links, so that opening it to read changes nothing in it.

RocksDB itself writes nothing then, but its Python package writes a file of its own at each
opening, whatever the access: that fails on a file system that is mounted read-only, and may leave
half a file in the index of a bookie that runs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Final

_CONFIG_FILE: Final = "rocksdict-config.json"
"""What the package writes: how keys are encoded."""
_LOCK_FILE: Final = "LOCK"


class IndexView:
    """A temporary directory with links to the files of `path`; `close` removes it."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._path = path
        names = os.listdir(path)
        self._directory = tempfile.TemporaryDirectory(prefix="ledgerstream-index-")
        self.path = self._directory.name
        try:
            for name in names:
                source, link = os.path.abspath(f"{path}/{name}"), f"{self.path}/{name}"
                if name == _CONFIG_FILE:
                    shutil.copyfile(source, link)
                elif name != _LOCK_FILE:
                    os.symlink(source, link)
        except BaseException:
            self.close()
            raise

    def named(self, message: str) -> str:
        """What RocksDB says, with the names that people know."""
        return message.replace(self.path, self._path)

    def close(self) -> None:
        """Not before the store is closed: files are opened when they are needed."""
        self._directory.cleanup()
