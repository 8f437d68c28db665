"""`ledgerstream standalone` is started, restarted, stopped and killed, and leaves nothing
behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.system.cluster import StandaloneCluster, is_running, wait_for, wait_gone
from tests.system.conftest import StartCluster

pytestmark = pytest.mark.system


def states(cluster: StandaloneCluster) -> dict[str, str]:
    listed = json.loads(cluster.run("bookie", "list", "--json"))
    return {bookie["bookie"]: bookie["state"] for bookie in listed}


def test_three_bookies_are_listed_with_their_space(shared: StandaloneCluster) -> None:
    assert shared.uri == f"sqlite://{shared.directory}/cluster.db"
    listed = json.loads(shared.run("bookie", "list", "--json"))
    assert [b["bookie"] for b in listed] == sorted(f"127.0.0.1:{p}" for p in shared.ports())
    assert {b["state"] for b in listed} == {"up"}
    assert all(0 < b["free_bytes"] <= b["total_bytes"] for b in listed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything(number: signal.Signals, cluster: StandaloneCluster) -> None:
    pids = cluster.pids()
    assert cluster.end(number) == 0
    assert not any(map(is_running, pids))
    assert "Traceback" not in cluster.said.read_text() + cluster.logs()


def test_a_kill_of_the_supervisor_leaves_no_process_behind(cluster: StandaloneCluster) -> None:
    wait_for(lambda: (cluster.directory / "janitor.pid").exists())
    assert len(cluster.pids()) == 5
    cluster.kill_all()


def test_names_of_bookies_survive_a_restart(start_cluster: StartCluster) -> None:
    cluster = start_cluster(bookies=2)
    before = states(cluster)
    cluster.end()
    cluster.start()
    assert states(cluster) == before
    assert len(before) == 2


def test_a_bookie_that_dies_is_restarted(cluster: StandaloneCluster) -> None:
    pid = cluster.pid_of(2)
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid])
    again = f"bookie 2 (127.0.0.1:{cluster.ports()[1]}) serves again"
    wait_for(lambda: again in cluster.said.read_text())
    assert "ended with signal 9; started again in" in cluster.said.read_text()
    assert cluster.pid_of(2) != pid
    assert set(states(cluster).values()) == {"up"}


@pytest.mark.skipif(sys.platform != "linux", reason="forks processes on Linux alone")
def test_a_forked_process_is_shown_by_its_name(cluster: StandaloneCluster) -> None:
    shown = Path(f"/proc/{cluster.pid_of(2)}/cmdline").read_bytes().rstrip(b"\0").decode()
    assert shown == f"ledgerstream: bookie 2 (127.0.0.1:{cluster.ports()[1]})"


@pytest.mark.skipif(sys.platform != "linux", reason="forks processes on Linux alone")
def test_a_forked_process_that_dies_before_it_is_needed_is_replaced(
    cluster: StandaloneCluster,
) -> None:
    task = Path(f"/proc/{cluster.process.pid}/task/{cluster.process.pid}/children")
    (waits,) = set(map(int, task.read_text().split())) - set(cluster.pids())
    os.kill(waits, signal.SIGKILL)
    pid_file = cluster.directory / "janitor.pid"
    wait_for(pid_file.exists)
    janitor = int(pid_file.read_text())
    wait_for(lambda: b"stream.cli.janitor" in Path(f"/proc/{janitor}/cmdline").read_bytes())
    assert cluster.end() == 0
    assert not is_running(janitor)


def test_a_second_supervisor_is_refused(shared: StandaloneCluster) -> None:
    refused = shared.try_run("standalone", "--dir", str(shared.directory))
    assert refused.returncode == 1
    assert b"a cluster is already running in" in refused.stderr
    assert b"Traceback" not in refused.stderr


def test_another_number_of_bookies_is_refused(start_cluster: StartCluster) -> None:
    cluster = start_cluster(bookies=1)
    cluster.end()
    refused = cluster.try_run("standalone", "--dir", str(cluster.directory), "--bookies", "3")
    assert refused.returncode == 1
    assert b"holds a cluster of 1 bookies, not 3" in refused.stderr


def test_the_exit_code_is_2_for_wrong_usage_and_1_for_errors(shared: StandaloneCluster) -> None:
    assert shared.try_run("bookie", "list", "--nonsense").returncode == 2
    assert shared.try_run("frobnicate").returncode == 2
    missing = shared.try_run("ledger", "show", "12345")
    assert missing.returncode == 1
    assert missing.stderr.count(b"\n") == 1
    nowhere = shared.try_run("bookie", "list", "--cluster", "nowhere")
    assert nowhere.returncode == 2
    assert b"no scheme" in nowhere.stderr


def test_a_ledger_from_the_command_line(cluster: StandaloneCluster) -> None:
    ledger_id = cluster.run("ledger", "create").decode().strip()
    lines = b"".join(b"entry %d \xff\x00\n" % n for n in range(1000))
    written = json.loads(cluster.run("ledger", "append", ledger_id, "--json", stdin=lines))
    assert written["entries"] == 1000
    assert cluster.run("ledger", "read", ledger_id) == lines
    part = cluster.run("ledger", "read", ledger_id, "--first", "998").splitlines()
    assert part == [b"entry 998 \xff\x00", b"entry 999 \xff\x00"]
    shown = json.loads(cluster.run("ledger", "show", ledger_id, "--json"))
    assert (shown["state"], shown["entries"]) == ("closed", 1000)
    again = cluster.try_run("ledger", "append", ledger_id, stdin=b"x\n")
    assert again.returncode == 1
    assert b"a ledger has one for its whole life" in b" ".join(again.stderr.split())
    cluster.run("ledger", "delete", ledger_id)
    assert json.loads(cluster.run("ledger", "list", "--json")) == []


def test_retention_is_applied(start_cluster: StartCluster) -> None:
    cluster = start_cluster("--janitor-interval-s", "0")  # the test runs it explicitly
    cluster.run("namespace", "create", "demo", "--retention-bytes", "0")
    for _ in range(3):
        cluster.run("append", "demo/lines", stdin=b"one\ntwo\n")
    (report,) = json.loads(cluster.run("janitor", "--once", "--json"))
    assert (report["namespace"], report["streams_truncated"], report["failures"]) == ("demo", 1, 0)
    shown = json.loads(cluster.run("stream", "show", "demo/lines", "--json"))
    assert (shown["records"], shown["next_sequence"]) == (0, 6)
