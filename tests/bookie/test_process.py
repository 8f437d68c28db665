"""The process of a bookie: free pages are returned to the system, and open files are named."""

import subprocess
import sys
from pathlib import Path

import pytest

from bookie import process
from bookie.config import load_bookie_config
from bookie.standalone.cluster import StandaloneLayout
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
    config = load_bookie_config(file, {}, {})
    modes = dict.fromkeys([str(file), f"{layout.directory}/cluster.db"], "0644")
    monkeypatch.setattr(process, "readable_by_others", modes.get)
    process.warn_of_readers(config, file)
    shown = [TextFormatter().format(record).partition("path=")[2] for record in caplog.records]
    assert shown == [
        f'"{path}" mode=0644 cure="chmod go-rwx \'{path}\'"'
        for path in (file, layout.directory / "cluster.db")
    ]
