"""`ledgerstream bookie` with a cluster that does not exist."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio


@pytest.mark.parametrize("command", [["list"], ["show"], ["gc", "b1"]], ids=lambda c: str(c[0]))
async def test_a_mistyped_metadata_file_is_reported_and_not_created(
    tmp_path: Path, command: list[str]
) -> None:
    file = f"{tmp_path}/mistyped.db"
    done = await trio.run_process(
        [sys.executable, "-m", "stream.cli", "bookie", *command, "--cluster", f"sqlite://{file}"],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    [line] = done.stderr.decode().splitlines()
    assert f"there is no cluster at sqlite://{file}: {file} does not exist. Cure: " in line
    assert list(await trio.Path(tmp_path).iterdir()) == []
