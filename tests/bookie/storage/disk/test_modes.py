"""What a bookie makes on its disks is its owner's alone, whatever the umask is."""

from __future__ import annotations

import os
from pathlib import Path

from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.rocksdb import RocksKeyValue


def modes_in(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


async def test_directories_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    disk = RealDisk()
    try:
        await disk.make_directory(f"{tmp_path}/a/b")
        (await disk.open(f"{tmp_path}/a/b/new", is_new=True)).close()
        await disk.replace_file(f"{tmp_path}/a/b/replaced", b"x")
        await disk.lock(f"{tmp_path}/a/b/lock")
        RocksKeyValue(f"{tmp_path}/a/b/index").close()
    finally:
        os.umask(before)
        disk.close()
    found = modes_in(tmp_path / "a" / "b")
    assert found == {"new": 0o600, "replaced": 0o600, "lock": 0o600, "index": 0o700}
    assert modes_in(tmp_path) == {"a": 0o700}
