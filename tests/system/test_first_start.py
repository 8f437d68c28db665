"""The first start of a bookie, with empty disks, makes a cluster; no other start does.

A mistyped `metadata_uri` must not leave a file behind, and a file that is not a cluster's must stay
as it is.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import trio

from ledger.client import LedgerClient

_CONFIG = """
metadata_uri = "sqlite://{0}/{1}"
port = 0
bookie_id = "the-bookie"
journal_directories = ["{0}/journal"]
ledger_directories = ["{0}/ledgers"]
journal_file_bytes_max = 16777216
entry_log_bytes_max = 16777216
"""


async def _run(directory: Path, name: str) -> tuple[int, str]:
    """Runs the bookie until it serves, or ends; returns its exit code and log."""
    config = directory / "bookie.toml"
    config.write_text(_CONFIG.format(directory, name))
    command = [sys.executable, "-m", "stream.cli", "bookie", "run", "--config", str(config)]
    log = bytearray()
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(command, stdout=-1, stderr=-1)
        assert process.stdout is not None
        assert process.stderr is not None

        async def follow(errors: trio.abc.ReceiveStream) -> None:
            async for chunk in errors:
                log.extend(chunk)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, process.stderr)
                async for chunk in process.stdout:
                    if b"ready the-bookie" in chunk:
                        process.send_signal(signal.SIGTERM)
                code = await process.wait()
        finally:
            process.kill()
    return code, log.decode()


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_only_the_first_start_of_a_bookie_makes_a_cluster(tmp_path: Path) -> None:
    code, log = await _run(tmp_path, "cluster.db")
    assert code == 0, log
    assert f"bookie makes a cluster at=sqlite://{tmp_path}/cluster.db" in log
    before = _names(tmp_path)
    code, log = await _run(tmp_path, "clustr.db")
    assert code == 1
    [line] = [line for line in log.splitlines() if "bookie shuts down" in line]
    assert f"at sqlite://{tmp_path}/clustr.db there is no cluster. Cure: point metadata_uri" in line
    assert _names(tmp_path) == before
    (tmp_path / "clustr.db").write_bytes(b"")
    assert (await _run(tmp_path, "clustr.db"))[0] == 1
    assert (tmp_path / "clustr.db").read_bytes() == b""
    code, log = await _run(tmp_path, "cluster.db")
    assert code == 0, log
    assert "makes a cluster" not in log
    async with LedgerClient.connect(f"sqlite://{tmp_path}/cluster.db") as client:
        assert await client.bookies.all() == ["the-bookie"]
