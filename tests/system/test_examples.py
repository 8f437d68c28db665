"""Every program in examples/ runs, has at most 60 lines, and does what it says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from bookie.testing import InProcessCluster
from tests.tidy.checkout import ROOT

pytestmark = pytest.mark.system

PATIENCE_S = 120
LINES_MAX = 60
SHORT = [
    "append_and_tail",
    "blocking_script",
    "change_log",
    "order_book",
    "partitioned_consumers",
    "testing_with_faults",
    "web_tail",
]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(name: str, cluster: InProcessCluster, *arguments: str) -> list[str]:
    return run("-m", f"examples.{name}", cluster.uri, *arguments).splitlines()


@pytest.mark.parametrize("name", SHORT)
def test_an_example_is_short(name: str) -> None:
    lines = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX


def test_append_and_tail(ledgerstream_cluster: InProcessCluster) -> None:
    lines = example("append_and_tail", ledgerstream_cluster)
    appended = [line.split()[1] for line in lines if line.startswith("appended")]
    read = [line.split()[1].rstrip(",") for line in lines if line.startswith("read")]
    assert appended == read == [f"{20 + number / 10:.1f}" for number in range(10)]


def test_order_book(ledgerstream_cluster: InProcessCluster) -> None:
    *trades, last = example("order_book", ledgerstream_cluster)
    assert sum(int(line.split()[-1]) for line in trades) == 20
    assert last == f"20 of 20 shares were sold in {len(trades)} trades"


def test_change_log(ledgerstream_cluster: InProcessCluster) -> None:
    for _ in range(2):  # the second run continues after the first
        applied, kept = example("change_log", ledgerstream_cluster)
        assert applied == "applied 50 changes, 0 left"
        assert re.fullmatch(r"7 rows, account-0 is {'balance': 490}; 0 records kept", kept)


def test_partitioned_consumers(ledgerstream_cluster: InProcessCluster) -> None:
    lines = example("partitioned_consumers", ledgerstream_cluster)
    assert lines[-1] == "all 400 clicks were handled"
    assert lines[0].startswith("worker-1 leaves after ")


def test_blocking_script(ledgerstream_cluster: InProcessCluster) -> None:
    lines = example("blocking_script", ledgerstream_cluster)
    assert lines[2:] == [
        "read 10003 records in batches",
        "10000 late 0",
        "10001 late 1",
        "10002 late 2",
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answer(url: str, data: bytes | None = None, headers: dict[str, str] | None = None) -> str:
    """Returns the first three lines of the server's reply; retries until it listens."""
    began_s = time.monotonic()
    while True:
        try:
            request = urllib.request.Request(url, data=data, headers=headers or {})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                said: bytes = b"".join(response.readline() for _ in range(3))
                return said.decode()
        except urllib.error.URLError as error:
            if time.monotonic() - began_s > PATIENCE_S or isinstance(error, HTTPError):
                raise
            time.sleep(0.05)


def test_web_tail(ledgerstream_cluster: InProcessCluster) -> None:
    port = free_port()
    command = [sys.executable, "-m", "examples.web_tail", ledgerstream_cluster.uri, str(port)]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        at = f"http://127.0.0.1:{port}"
        assert "EventSource" in answer(f"{at}/")
        assert answer(f"{at}/append", b"first") == "durable at 1:0:0\n"
        assert answer(f"{at}/tail") == "id: 0\ndata: first\n\n"
        assert answer(f"{at}/append", b"second") == "durable at 1:1:0\n"
        behind = {"Last-Event-ID": "0"}
        assert answer(f"{at}/tail", headers=behind) == "id: 1\ndata: second\n\n"
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def test_testing_with_faults(tmp_path: Path) -> None:
    options = ["-o", "trio_mode=true", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tmp'}"]
    assert "2 passed" in run("-m", "pytest", "-v", *options, "examples/testing_with_faults.py")
