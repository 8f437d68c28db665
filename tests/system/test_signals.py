"""SIGHUP: processes that log reopen their logs, and other long-running commands end in order."""

from __future__ import annotations

import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.system.cluster import COMMAND, PATIENCE_S, StandaloneCluster, environment, wait_for

pytestmark = pytest.mark.system


def is_reopened(log: Path) -> bool:
    return log.exists() and "log file reopened" in log.read_text()


def test_standalone_has_its_processes_reopen_their_logs(cluster: StandaloneCluster) -> None:
    logs = sorted(cluster.directory.glob("bookie-*/bookie.log"))
    pids = cluster.pids()
    for log in logs:
        log.rename(f"{log}.1")
    cluster.process.send_signal(signal.SIGHUP)
    for log in logs:
        wait_for(partial(is_reopened, log))
    cluster.run("append", "demo/x", stdin=b"after\n")
    assert cluster.run("read", "demo/x") == b"after\n"
    assert set(pids) <= set(cluster.pids())
    assert cluster.end() == 0


@pytest.mark.parametrize(
    "command", [["tail", "demo/x", "--from", "earliest"], ["canary", "demo/c", "--interval-s", "1"]]
)
def test_sighup_ends_a_command_with_a_line(cluster: StandaloneCluster, command: list[str]) -> None:
    cluster.run("append", "demo/x", stdin=b"one\n")
    process = subprocess.Popen(
        [*COMMAND, *command, "--cluster", cluster.uri],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGHUP
    assert said.splitlines()[-1:] == [b"ledgerstream: stopped by SIGHUP"]
