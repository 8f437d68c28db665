"""The file of an audit log: rotation, several writers, and a disk that fails, on real files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ledger.runtime.audit_file import AuditFile


def lines(first: int, count: int) -> list[bytes]:
    return [f"line {number:04}\n".encode() for number in range(first, first + count)]


def test_files_are_rotated_at_whole_lines_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path), bytes_max=25, files_max=3)  # two lines each
    assert file.write(lines(0, 9)) == 9
    found = [(tmp_path / name).read_bytes() for name in ("audit.jsonl.2", "audit.jsonl.1", path)]
    assert found == [b"".join(lines(at, count)) for at, count in ((4, 2), (6, 2), (8, 1))]
    assert sorted(os.listdir(tmp_path)) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}


def test_one_file_alone_begins_from_scratch(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    assert AuditFile(str(path), bytes_max=25, files_max=1).write(lines(0, 5)) == 5
    assert path.read_bytes() == b"".join(lines(4, 1))


def test_a_line_that_is_longer_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    assert AuditFile(str(path), bytes_max=4, files_max=9).write(lines(0, 3)) == 3
    assert path.read_bytes() == lines(2, 1)[0]


def test_it_goes_on_behind_what_is_there_and_ends_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    path.write_bytes(b"line 0000\nline 00")
    file = AuditFile(str(path))
    file.open()
    file.write(lines(1, 2))
    assert path.read_bytes() == b"line 0000\nline 00\n" + b"".join(lines(1, 2))


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    file = AuditFile(str(path), bytes_max=1000, files_max=2)
    file.write(lines(0, 1))
    path.rename(tmp_path / "moved")
    file.write(lines(1, 1))
    path.unlink()
    file.write(lines(2, 1))
    assert path.read_bytes() == lines(2, 1)[0]
    assert (tmp_path / "moved").read_bytes() == lines(0, 1)[0]


def test_several_writers_rotate_one_file_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    files = [AuditFile(str(path), bytes_max=45, files_max=100) for _ in range(3)]
    for number in range(30):
        assert files[number % 3].write(lines(number, 1)) == 1
    kept = sorted(b"".join(one.read_bytes() for one in tmp_path.iterdir()).splitlines(True))
    assert kept == lines(0, 30)
    assert max(one.stat().st_size for one in tmp_path.iterdir()) <= 45


def test_a_full_disk_leaves_no_half_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit"
    file = AuditFile(str(path), bytes_max=1000)
    file.write(lines(0, 1))
    write, left = os.write, [7]

    def short(descriptor: int, data: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(descriptor, data[: left[0]])
        left[0] -= count
        return count

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space left"):
            file.write(lines(1, 2))
    assert path.read_bytes() == lines(0, 1)[0]
    assert file.write(lines(3, 1)) == 1
    assert path.read_bytes() == b"".join([*lines(0, 1), *lines(3, 1)])


def test_what_was_written_before_an_error_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AuditFile(str(tmp_path / "audit"), bytes_max=10, files_max=2)
    replace, left = os.replace, [2]

    def failing(source: str, target: str) -> None:
        if not left[0]:
            raise OSError(errno.EIO, "Input/output error")
        left[0] -= 1
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    assert file.write(lines(0, 5)) == 3
