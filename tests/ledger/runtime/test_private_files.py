"""Files and directories of their owner alone, whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.runtime.private_files import (
    DIRECTORY_MODE,
    make_private_file,
    private_opener,
    readable_by_others,
)


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The least strict umask: what is not asked for is not taken away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    with open(tmp_path / "opened", "w", opener=private_opener):
        pass
    make_private_file(str(tmp_path / "file"))
    (tmp_path / "directory").mkdir(DIRECTORY_MODE)
    modes = {path.name: mode_of(path) for path in tmp_path.iterdir()}
    assert modes == {"opened": 0o600, "file": 0o600, "directory": 0o700}


def test_what_exists_keeps_its_mode_and_content(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    make_private_file(str(file))
    assert (file.read_text(), mode_of(file)) == ("content", 0o666)


@pytest.mark.parametrize(
    ("mode", "above", "found"),
    [(0o644, 0o755, "0644"), (0o644, 0o700, None), (0o640, 0o755, None), (0o600, 0o777, None)],
)
def test_what_others_can_read_is_found(
    tmp_path: Path, mode: int, above: int, found: str | None
) -> None:
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.getuid() and parent != Path("/") and parent != Path("/tmp"):
            parent.chmod(0o755)
    directory = tmp_path / "directory"
    directory.mkdir()
    file = directory / "file"
    file.write_text("")
    file.chmod(mode)
    directory.chmod(above)
    assert readable_by_others(str(file)) == found
    assert readable_by_others(str(tmp_path / "missing")) is None
