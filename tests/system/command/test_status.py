"""`ledgerstream status` of a cluster that loses bookies."""

from __future__ import annotations

import json
import os
import signal

from tests.system.cluster import StandaloneCluster, wait_for
from tests.system.conftest import StartCluster


def _down(cluster: StandaloneCluster, number: int) -> bool:
    listed: list[dict[str, object]] = json.loads(cluster.run("bookie", "list", "--json"))
    return number == sum(bookie["state"] == "down" for bookie in listed)


def test_the_verdict_follows_the_bookies(start_cluster: StartCluster) -> None:
    cluster = start_cluster("--no-restart")
    cluster.run("append", "demo/lines", stdin=b"a\nb\n")
    cluster.run("cursor", "set", "demo/lines", "billing", "earliest")
    done = cluster.try_run("status")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, b"healthy")
    status = json.loads(cluster.run("status", "--json"))
    assert (status["verdict"], status["reasons"]) == ("healthy", [])
    assert [bookie["ledgers_in_repair"] for bookie in status["bookies"]] == [0, 0, 0]
    [cursor] = status["cursors"]
    assert (cursor["cursor"], cursor["stream"]) == ("billing", "demo/lines")
    assert cursor["lag_records"] == 2
    assert cluster.try_run("status", "--lag-max", "0").returncode == 3

    os.kill(cluster.pid_of(1), signal.SIGKILL)
    wait_for(lambda: _down(cluster, 1))
    done = cluster.try_run("status")
    assert done.returncode == 3
    assert b"healing" in done.stdout.splitlines()[0]
    assert b"- 1 of 3 bookies is down: 127.0.0.1:" in done.stdout
    assert b"fewer copies up than their write quorum" in done.stdout

    os.kill(cluster.pid_of(2), signal.SIGKILL)
    wait_for(lambda: _down(cluster, 2))
    done = cluster.try_run("status", "--json")
    assert done.returncode == 4
    status = json.loads(done.stdout)
    assert status["verdict"] == "danger"
    assert any(
        "namespace demo: ensemble_size is 3, ack_quorum is 2: with 1 bookie up nothing"
        in reason["reason"]
        for reason in status["reasons"]
    )
