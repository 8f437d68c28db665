"""The process of a bookie: free pages are returned to the system, and open files are named."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie import process
from bookie.config import load_bookie_config
from bookie.standalone.cluster import StandaloneLayout
from ledger.errors import InvalidArgument
from ledger.runtime.audit_file import AuditFile
from ledger.runtime.logs import TextFormatter

_HOLES = """
import re, sys
from bookie.process import give_memory_back, tune_allocator

def rss_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

tune_allocator()
buffers = [bytes([1]) * 20_000 for _ in range(5000)]
kept = buffers[::50]
before = rss_mib()
del buffers
holes = rss_mib()
give_memory_back()
print(before - holes, holes - rss_mib())
"""


def test_a_fragmented_heap_is_returned_to_the_system() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True, timeout=60
    )
    given_by_itself, given_on_request = map(float, run.stdout.split())
    assert given_by_itself < 10  # of 95 MiB: the rest is kept for later allocations
    assert given_on_request > 60


def test_a_bookie_warns_of_what_others_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout = StandaloneLayout.open(tmp_path / "a b", 1)
    file = layout.bookie_config(1)
    audit_file = str(tmp_path / "audit.jsonl")
    config = load_bookie_config(file, {}, {"audit_file": audit_file})
    modes = dict.fromkeys([str(file), audit_file, f"{layout.directory}/cluster.db"], "0644")
    monkeypatch.setattr(process, "readable_by_others", modes.get)
    process.warn_of_readers(config, file)
    shown = [TextFormatter().format(record).partition("path=")[2] for record in caplog.records]
    readable = [file, audit_file, layout.directory / "cluster.db"]
    quoted = [f'"{path}"' if " " in str(path) else str(path) for path in readable]
    cures = [f"'{path}'" if " " in str(path) else str(path) for path in readable]
    assert shown == [
        f'{path} mode=0644 cure="chmod go-rwx {cure}"'
        for path, cure in zip(quoted, cures, strict=True)
    ]


async def test_an_audit_file_that_cannot_be_used_is_an_error_before_anything_starts(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    layout = StandaloneLayout.open(tmp_path / "cluster", 1)
    path = str(tmp_path / "missing" / "audit.jsonl")
    config = load_bookie_config(layout.bookie_config(1), {}, {"audit_file": path})
    with pytest.raises(InvalidArgument, match=r"audit file .* No such file or directory. Cure"):
        await process.open_audit(config, nursery)


@pytest.mark.parametrize(
    "settings",
    [
        {"credentials_file": "missing", "authentication_mechanisms": ("SCRAM-SHA-256",)},
        {"tls_ca_file": "missing", "tls_to_bookies": "start_tls"},
        {"tls_certificate_file": "missing", "tls_key_file": "missing"},
    ],
    ids=["credentials", "authorities", "certificate"],
)
async def test_a_file_that_cannot_be_used_ends_the_start_before_a_cluster_is_made(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    layout = StandaloneLayout.open(tmp_path / "cluster", 1)
    given = {name: str(tmp_path / "x") if value == "missing" else value
             for name, value in settings.items()}  # fmt: skip
    config = load_bookie_config(layout.bookie_config(1), {}, given)
    with pytest.RaisesGroup(
        pytest.RaisesExc(InvalidArgument, match="cannot be read: No such file or directory. Cure")
    ):
        await process._serve(config, is_child=False)
    assert not (layout.directory / "cluster.db").exists()


async def test_a_full_disk_lets_a_bookie_start_without_its_audit_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    nursery: trio.Nursery,
) -> None:
    def full(self: AuditFile) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AuditFile, "open", full)
    layout = StandaloneLayout.open(tmp_path / "cluster", 1)
    # The variable of commands is that of bookies, too.
    environment = {"LEDGERSTREAM_AUDIT_FILE": str(tmp_path / "audit.jsonl")}
    config = load_bookie_config(layout.bookie_config(1), environment, {})
    assert config.audit_file == environment["LEDGERSTREAM_AUDIT_FILE"]
    log = await process.open_audit(config, nursery)
    assert log is not None
    assert "audit log not written" in caplog.text
