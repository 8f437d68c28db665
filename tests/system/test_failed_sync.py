"""A bookie process whose disk fails a sync ends, and its last line names the cause and the cure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.options import ClientOptions
from ledger.writing.writer import LedgerWriter

# The system calls fail, from the moment a file exists.
_PROCESS = """
import errno, os, sys
from pathlib import Path
from bookie.process import run_bookie_process
name, config, trigger = sys.argv[1:]
real = getattr(os, name)
def failing(*arguments):
    is_sync = name == "fdatasync" or (len(arguments) > 3 and arguments[3])
    if is_sync and os.path.exists(trigger):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return real(*arguments)
setattr(os, name, failing)
sys.exit(run_bookie_process(Path(config), is_child=False))
"""
_CONFIG = """
metadata_uri = "sqlite://{0}/cluster.db"
port = 0
bookie_id = "the-bookie"
journal_directories = ["{0}/journal"]
ledger_directories = ["{0}/ledgers"]
journal_file_bytes_max = 16777216
entry_log_bytes_max = 16777216
checkpoint_interval_ms = 100
"""
IMPATIENT = ClientOptions(add_timeout_s=20.0, ensemble_change_timeout_s=0.5)


async def _append_for_ever(writer: LedgerWriter) -> None:
    while True:
        await writer.append(bytes(100))


@pytest.mark.parametrize(("call", "file"), [("pwritev", "/journal"), ("fdatasync", "/ledgers/")])
async def test_a_failed_sync_ends_the_process_with_cause_and_cure(
    tmp_path: Path, call: str, file: str
) -> None:
    config, trigger = tmp_path / "bookie.toml", tmp_path / "trigger"
    config.write_text(_CONFIG.format(tmp_path))
    command = [sys.executable, "-c", _PROCESS, call, str(config), str(trigger)]
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(command, stdout=-1, stderr=-1)
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert (await process.stdout.receive_some()).startswith(b"ready the-bookie")
            uri = f"sqlite://{tmp_path}/cluster.db"
            async with LedgerClient.connect(uri, options=IMPATIENT) as client:
                writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
                await writer.append(b"synced")
                trigger.touch()
                with pytest.raises(LedgerError):
                    await _append_for_ever(writer)  # checkpoints come in between
                writer.abandon()
            said = b"".join([chunk async for chunk in process.stderr])
            assert await process.wait() == 1
        finally:
            process.kill()
    last = said.decode().splitlines()[-1]
    assert "CRITICAL" in last
    assert "bookie shuts down cause=" in last
    assert file in last
    assert "Input/output error" in last
    assert "Cure:" in last
    assert said.count(b"CRITICAL") == 1
