"""`ledgerstream standalone --metadata zookeeper`: a real ZooKeeper, kept running like a bookie."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import skip_without_zookeeper
from tests.system.cluster import (
    COMMAND,
    PATIENCE_S,
    StandaloneCluster,
    environment,
    is_running,
    wait_for,
    wait_gone,
)
from tests.system.conftest import StartCluster
from tests.zookeeper import RunningZooKeeper

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]


@pytest.fixture
def cluster(start_cluster: StartCluster) -> StandaloneCluster:
    skip_without_zookeeper()
    return start_cluster("--metadata", "zookeeper")


@pytest.fixture
def small_cluster(start_cluster: StartCluster) -> StandaloneCluster:
    """A cluster with one bookie."""
    skip_without_zookeeper()
    return start_cluster("--metadata", "zookeeper", bookies=1)


def zookeeper_pid(cluster: StandaloneCluster) -> int:
    return int((cluster.directory / "zookeeper" / "zookeeper.pid").read_text())


def zookeeper_address(cluster: StandaloneCluster) -> tuple[str, int]:
    with (cluster.directory / "standalone.toml").open("rb") as file:
        return "127.0.0.1", tomllib.load(file)["zookeeper_port"]


def java_processes(directory: Path) -> list[int]:
    """Returns the processes of the server in `directory`, orphaned ones included."""
    mark = f"{directory}/zookeeper/zoo.cfg".encode()
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and is_running(int(entry.name)) and mark in command_line(entry)
    ]


def command_line(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def append(cluster: StandaloneCluster, numbers: range) -> None:
    lines = b"".join(b"%d\n" % n for n in numbers)
    cluster.run("append", "demo/numbers", stdin=lines)


def read_all(cluster: StandaloneCluster) -> list[int]:
    return [int(line) for line in cluster.run("read", "demo/numbers").splitlines()]


def test_zookeeper_killed_then_everything_restarted(cluster: StandaloneCluster) -> None:
    kept = tomllib.loads((cluster.directory / "standalone.toml").read_text())
    uri = f"zk://127.0.0.1:{kept['zookeeper_port']}/ledgers"
    assert cluster.uri == kept["metadata"] == uri
    cluster.run("namespace", "create", "demo")
    append(cluster, range(100))

    pid = zookeeper_pid(cluster)
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid])
    # It accepts connections, and answers none of them, long before.
    serves = f"ZooKeeper (127.0.0.1:{kept['zookeeper_port']}) serves again"
    wait_for(lambda: serves in cluster.said.read_text())
    append(cluster, range(100, 200))
    assert zookeeper_pid(cluster) != pid

    assert cluster.end() == 0
    assert not java_processes(cluster.directory)
    cluster.start()
    assert cluster.uri == uri
    append(cluster, range(200, 300))
    assert read_all(cluster) == list(range(300))
    listed = json.loads(cluster.run("bookie", "list", "--json"))
    assert [bookie["state"] for bookie in listed] == ["up"] * 3


def test_a_kill_of_the_supervisor_ends_zookeeper_too(small_cluster: StandaloneCluster) -> None:
    pid = zookeeper_pid(small_cluster)
    assert java_processes(small_cluster.directory) == [pid]
    small_cluster.kill_all()
    wait_for(lambda: not java_processes(small_cluster.directory))
    small_cluster.start()
    assert zookeeper_pid(small_cluster) != pid


def test_the_output_of_zookeeper_is_in_a_file(small_cluster: StandaloneCluster) -> None:
    log = small_cluster.directory / "zookeeper" / "zookeeper.log"
    with socket.create_connection(zookeeper_address(small_cluster), PATIENCE_S) as connection:
        connection.sendall(b"\xff" * 4)  # a length that the server warns of
        assert connection.recv(4096) == b""
    small_cluster.end()
    assert "Len error" in log.read_text()
    assert "Len error" not in small_cluster.said.read_text()


def test_another_store_than_before_is_refused(small_cluster: StandaloneCluster) -> None:
    small_cluster.end()
    arguments = ["standalone", "--dir", str(small_cluster.directory), "--metadata"]
    refused = small_cluster.try_run(*arguments, "sqlite")
    assert refused.returncode == 1
    assert b"holds a cluster with its metadata in zk://" in refused.stderr


def test_a_port_in_use_is_named_by_zookeeper(
    small_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    small_cluster.end()
    port = tomllib.loads((small_cluster.directory / "standalone.toml").read_text())[
        "zookeeper_port"
    ]
    other = RunningZooKeeper(tmp_path / "other", port)
    other.start()
    try:
        refused = small_cluster.try_run("standalone", "--dir", str(small_cluster.directory))
    finally:
        other.kill()
    assert refused.returncode == 1
    assert b"before it was ready" in refused.stderr
    assert b"cannot listen on 127.0.0.1:%d: Address already in use" % port in refused.stderr


def test_without_java_the_cure_is_named(tmp_path: Path) -> None:
    refused = subprocess.run(
        [*COMMAND, "standalone", "--dir", str(tmp_path / "c"), "--metadata", "zookeeper"],
        env=environment(PATH=str(Path(sys.executable).parent), JAVA_HOME=""),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert refused.returncode == 1
    assert b"install Java 17" in refused.stderr
    assert refused.stderr.count(b"\n") == 1
    assert not (tmp_path / "c").exists()


def test_an_ensemble_that_exists(
    start_cluster: StartCluster, shared_zookeeper: RunningZooKeeper
) -> None:
    """Two clusters in one ZooKeeper, each below a root of its own, are independent."""
    host = shared_zookeeper.address
    here = start_cluster("--metadata", f"zk://{host}/here/ledgers", bookies=1, name="here")
    there = start_cluster("--metadata", f"zk://{host}/there/ledgers", bookies=1, name="there")
    for cluster in (here, there):
        listed = json.loads(cluster.run("bookie", "list", "--json"))
        assert [bookie["bookie"] for bookie in listed] == [f"127.0.0.1:{cluster.ports()[0]}"]
    one = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
    assert here.run("ledger", "create", *one) == there.run("ledger", "create", *one)
    here.run("namespace", "create", "only-here")
    assert json.loads(there.run("namespace", "list", "--json")) == []
