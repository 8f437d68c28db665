"""A bookie process on a real, small file system that is filled to the last byte.

Needs the right to mount one, which an ordinary user does not have;
tests/sim/bookies/test_full_disks.py tests the same, and more, without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio

from bookie.storage.disk.reserved_space import RESERVE_FILE
from ledger.client import LedgerClient
from ledger.errors import NotEnoughBookies, RetryableError
from ledger.options import ClientOptions
from ledger.reading.reader import LedgerReader
from ledger.writing.writer import LedgerWriter
from tests.clusters import make_cluster

_CONFIG = """
metadata_uri = "sqlite://{0}/cluster.db"
port = 0
bookie_id = "the-bookie"
journal_directories = ["{1}/journal"]
ledger_directories = ["{1}/ledgers"]
frame_bytes_max = 1048576
journal_file_bytes_max = 4194304
write_cache_bytes = 4194304
entry_log_bytes_max = 4194304
garbage_interval_ms = 2000
checkpoint_interval_ms = 1000
"""
_PROCESS = """
import sys
from pathlib import Path
from bookie.process import run_bookie_process
sys.exit(run_bookie_process(Path(sys.argv[1]), is_child=False))
"""
PAYLOAD = bytes(65536)
RESERVE_BYTES = 10_027_008
"""The size of the reserve with these settings."""
IMPATIENT = ClientOptions(add_timeout_s=10.0, ensemble_change_timeout_s=2.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(path)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@asynccontextmanager
async def _bookie(config: Path) -> AsyncIterator[None]:
    """Runs a bookie inside the block and kills it at its end."""
    command = [sys.executable, "-c", _PROCESS, str(config)]
    process = await trio.lowlevel.open_process(command, stdout=-1)
    assert process.stdout is not None
    try:
        assert (await process.stdout.receive_some()).startswith(b"ready the-bookie")
        yield
        assert process.poll() is None, "it must not end because a disk is full"
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def _write_for_ever(writer: LedgerWriter) -> None:
    while True:
        await writer.append(b"%08d" % (writer.last_add_pushed + 1) + PAYLOAD)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def _has_reserve(disk: Path) -> bool:
    return any(one.stat().st_size == RESERVE_BYTES for one in disk.rglob(RESERVE_FILE))


def _leave(path: Path, nbytes: int) -> None:
    """Frees this number of bytes of those that `_fill` took."""
    os.truncate(path, max(0, path.stat().st_size - nbytes))


async def _recovered(client: LedgerClient, ledger_id: int) -> LedgerReader:
    while True:  # until the client has seen that the bookie is writable
        try:
            return await client.open_ledger(ledger_id)
        except RetryableError:
            await trio.sleep(0.5)


async def test_it_serves_restarts_and_collects_on_a_full_disk(
    tmp_path: Path, small_disk: Path
) -> None:
    config, others = tmp_path / "bookie.toml", small_disk / "others"
    config.write_text(_CONFIG.format(tmp_path, small_disk))
    uri = f"sqlite://{tmp_path}/cluster.db"
    with trio.fail_after(120):
        await make_cluster(uri)  # otherwise the first bookie makes it
        async with LedgerClient.connect(uri, options=IMPATIENT) as client:
            async with _bookie(config):
                assert _has_reserve(small_disk)
                writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
                with pytest.raises(NotEnoughBookies, match="read only"):
                    await _write_for_ever(writer)
                end = writer.last_add_confirmed
                assert end > 200
            with pytest.raises(OSError, match="No space"):
                _fill(others)
            if not _has_reserve(small_disk):
                # It found the disk full before it had measured it, and released its reserve: no
                # other program may use the part that it has not used yet.
                _leave(others, RESERVE_BYTES)
            async with _bookie(config):
                assert list(await client.bookies.available()) == []
                reader = await _recovered(client, writer.ledger_id)
                for number in range(end + 1):
                    found = (await reader.read(number, number))[0].payload
                    assert bytes(found) == b"%08d" % number + PAYLOAD
                await client.delete_ledger(writer.ledger_id)
                others.unlink()
                async with aclosing(client.bookies.watch_available()) as changes:
                    async for writable in changes:
                        if writable:
                            break
                again = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
                assert await again.append(b"still alive!") == 0
                await again.close()
