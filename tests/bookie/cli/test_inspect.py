"""`ledgerstream bookie inspect` shows files, and its exit code reports damage."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from bookie.cli.check import inspect_entry_log, inspect_index, inspect_journal
from bookie.core.journal import BLOCK_BYTES
from ledger.cli.output import OutputOption
from ledger.errors import InvalidArgument
from tests.bookie.storage.garbage.test_compactor import OPTIONS
from tests.bookie.storage.index.test_damage import StorageOnDisk

TEXT, JSON = OutputOption(), OutputOption(json=True)


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """Returns a directory of a stopped bookie with ledger 1."""
    simulated = StorageOnDisk(tmp_path, OPTIONS)
    async with simulated.running():
        for i in range(3):
            simulated.add(1, i, b"x" * 100)
            await simulated.settle()
        await simulated.storage.checkpoint()
    return tmp_path


def _one(directory: Path, pattern: str) -> Path:
    return next(path for path in sorted(directory.glob(pattern)) if path.stat().st_size)


def _damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


async def test_an_undamaged_entry_log_has_no_problem(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _one(directory, "ledgers/*.log")
    assert await inspect_entry_log(log, 100, TEXT) == 0
    said = capsys.readouterr().out
    assert "problem" not in said
    size = log.stat().st_size
    assert said.splitlines()[-1] == f"end offset={size} size={size}"


async def test_a_damaged_body_is_shown_with_what_follows_and_fails(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _one(directory, "ledgers/*.log")
    assert await inspect_entry_log(log, 100, JSON) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    _damage(log, records[0]["offset"] + 200)
    assert await inspect_entry_log(log, 100, JSON) == 1
    damaged = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "bad bodies" in damaged[0]["problem"]
    assert len(damaged) == len(records)


async def test_bytes_after_the_last_record_are_reported(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _one(directory, "ledgers/*.log")
    with log.open("ab") as file:
        file.write(b"half a record")
    assert await inspect_entry_log(log, 100, TEXT) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert "problem=13 bytes, no whole record at" in last


@pytest.mark.parametrize(
    ("offset", "said"), [(3, "no file header"), (BLOCK_BYTES + 60, "group")], ids=["head", "group"]
)
async def test_a_damaged_journal_fails(
    directory: Path, offset: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await inspect_journal(directory / "journal", 100, TEXT) == 0
    capsys.readouterr()
    _damage(_one(directory, "journal/*.journal"), offset)
    assert await inspect_journal(directory / "journal", 100, TEXT) == 1
    problem = next(line for line in capsys.readouterr().out.splitlines() if "problem=" in line)
    assert said in problem


async def test_a_journal_file_that_was_created_and_never_written_is_no_damage(
    tmp_path: Path,
) -> None:
    """A crash leaves such a file."""
    (tmp_path / "0000000000000001.journal").write_bytes(bytes(4 * BLOCK_BYTES))
    assert await inspect_journal(tmp_path, 100, TEXT) == 0


async def test_missing_files_are_reported(directory: Path) -> None:
    for missing in (directory / "gone", directory / "gone" / "0000000000000001.journal"):
        with pytest.raises(InvalidArgument, match=r"gone.* does not exist"):
            await inspect_journal(missing, 100, TEXT)
        with pytest.raises(InvalidArgument, match=r"gone.* does not exist"):
            await inspect_entry_log(missing, 100, TEXT)
    for other in (directory, directory / "ledgers"):
        with pytest.raises(InvalidArgument, match=r"no journal file in .*Cure: "):
            await inspect_journal(other, 100, TEXT)


async def test_an_unknown_ledger_is_reported(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inspect_index(directory / "ledgers", 1, 100, TEXT)
    assert "run ledger=1 first=0 last=2" in capsys.readouterr().out
    with pytest.raises(
        InvalidArgument, match=r"ledger 7 is not in the index .*.*Cure: .* 7 modulo n"
    ):
        inspect_index(directory / "ledgers", 7, 100, TEXT)


async def test_the_process_ends_with_one_line_and_1(directory: Path) -> None:
    for arguments in (["ledger", f"{directory}/ledgers", "7"], ["journal", f"{directory}/gone"]):
        done = await trio.run_process(
            [sys.executable, "-m", "stream.cli", "bookie", "inspect", *arguments],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.count(b"\n") == 1, done.stderr
