"""A bookie of a running cluster gets another port, and is renamed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.interop.apache_bookie import free_port
from tests.system.cluster import COMMAND, StandaloneCluster, environment, wait_for
from tests.system.conftest import StartCluster

pytestmark = pytest.mark.system

LINES = b"".join(b"%d\n" % number for number in range(2000))


def _states(cluster: StandaloneCluster) -> dict[str, str]:
    listed = json.loads(cluster.run("bookie", "list", "--json"))
    return {one["bookie"]: one["state"] for one in listed}


def _killed_when_changed(cluster: StandaloneCluster, file: Path, command: list[str]) -> None:
    """Runs a command and kills it with -9 as soon as it has changed a file."""
    before = file.read_bytes()
    process = subprocess.Popen(
        COMMAND + command,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment(LEDGERSTREAM_CLUSTER=cluster.uri),
    )
    while process.poll() is None and file.read_bytes() == before:
        pass
    process.kill()
    process.wait()
    assert file.read_bytes() != before


def test_a_bookie_moves_to_another_port_with_all_its_copies(start_cluster: StartCluster) -> None:
    cluster = start_cluster("--no-restart")
    for stream in ("demo/one", "demo/two"):
        cluster.run("append", stream, stdin=LINES)
    port = cluster.ports()[0]
    old = f"127.0.0.1:{port}"
    config = cluster.directory / "bookie-1" / "bookie.toml"
    assert f"port = {port}\n" in config.read_text()
    new = f"127.0.0.1:{free_port()}"
    rename = ["bookie", "rename", old, new, "--config", str(config)]

    refused = cluster.try_run(*rename)
    assert (refused.returncode, b"the settings are those of bookie" in refused.stderr) == (1, True)
    text = config.read_text()
    config.write_text(text.replace(f"port = {port}\n", f"port = {new.rpartition(':')[2]}\n"))
    refused = cluster.try_run(*rename)
    assert refused.returncode == 1
    assert b"the bookie is running" in refused.stderr

    os.kill(cluster.pid_of(1), signal.SIGTERM)
    wait_for(lambda: _states(cluster)[old] == "down")
    planned = json.loads(cluster.run(*rename, "--dry-run", "--json"))
    assert planned["ledgers"] >= 2
    cookies = [*cluster.directory.glob("bookie-1/*/VERSION")]
    assert cookies
    _killed_when_changed(cluster, sorted(cookies)[0], rename)
    cluster.run(*rename)
    assert _states(cluster).keys() >= {new}
    assert old not in _states(cluster)
    assert json.loads(cluster.run(*rename, "--json"))["was_renamed"]

    bookie = subprocess.Popen(
        [*COMMAND, "bookie", "run", "--config", str(config)],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert bookie.stdout is not None
        assert bookie.stdout.readline() == f"ready {new}\n".encode()
        wait_for(lambda: cluster.try_run("status").returncode == 0)
        for stream in ("demo/one", "demo/two"):
            assert cluster.run("read", stream) == LINES
            verified = json.loads(cluster.run("stream", "verify", stream, "--json"))
            assert verified["verdict"] == "whole"
        cluster.run("append", "demo/one", stdin=LINES)
    finally:
        bookie.terminate()
        bookie.communicate(timeout=60)
