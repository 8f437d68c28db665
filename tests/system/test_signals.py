"""SIGHUP: processes that log reopen their logs, and other long-running commands end in order."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio

from stream.namespace import Namespace
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


def test_restarts_of_bookies_are_invisible_to_a_writer_and_a_tail(
    cluster: StandaloneCluster,
) -> None:
    """Every bookie reopens its log, is stopped with SIGTERM, one after the other, and is started
    again by the supervisor. How long an append may take meanwhile is proved in virtual time
    (tests/bookie/test_stop.py)."""
    sent, received = 0, 0

    async def restarted(number: int) -> None:
        before = cluster.pid_of(number)
        log = cluster.directory / f"bookie-{number}" / "bookie.log"
        log.rename(f"{log}.1")
        os.kill(before, signal.SIGHUP)
        await trio.to_thread.run_sync(wait_for, partial(is_reopened, log))
        appended = sent
        while sent < appended + 20:  # with the log reopened
            await trio.lowlevel.checkpoint()
        served = log.read_text().count("serving bookie=")
        os.kill(before, signal.SIGTERM)
        await trio.to_thread.run_sync(
            wait_for, lambda: log.read_text().count("serving bookie=") > served
        )

    async def main() -> None:
        is_over, written = False, trio.Event()
        async with Namespace.connect(cluster.uri, "demo") as namespace:

            async def write() -> None:
                nonlocal sent
                async with namespace.writer("load") as writer:
                    while not is_over:
                        await writer.append(b"%d" % sent)
                        sent += 1
                written.set()

            async def tail(scope: trio.CancelScope) -> None:
                nonlocal received
                with scope:
                    async with namespace.reader("load") as reader:
                        async for record in reader:
                            assert record.value == b"%d" % received
                            received += 1

            cluster.run("append", "demo/load", stdin=b"")
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                nursery.start_soon(tail, scope)
                for number in (1, 2, 3):
                    await restarted(number)
                is_over = True
                await written.wait()
                with trio.fail_after(PATIENCE_S):
                    while received < sent:
                        await trio.lowlevel.checkpoint()
                scope.cancel()

    trio.run(main)
    assert received == sent > 0
