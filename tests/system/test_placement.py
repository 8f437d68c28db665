"""An operator places bookies, gives a namespace a policy, and checks its ledgers."""

from __future__ import annotations

import json
from typing import Any

from tests.system.cluster import StandaloneCluster
from tests.system.conftest import StartCluster


def run(cluster: StandaloneCluster, *words: str, code: int = 0) -> Any:
    done = cluster.try_run(*words, "--json")
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout)


def test_bookies_are_placed_and_ledgers_are_graded(start_cluster: StartCluster) -> None:
    cluster = start_cluster(bookies=3)
    bookies = [one["bookie"] for one in run(cluster, "bookie", "list")]
    for bookie, rack in zip(bookies, ("a", "b", "c"), strict=True):
        placed = run(cluster, "bookie", "place", bookie, f"/eu-1/{rack}")
        assert placed == {"bookie": bookie, "location": f"/eu-1/{rack}"}
    listed = run(cluster, "bookie", "list")
    assert [one["location"] for one in listed] == ["/eu-1/a", "/eu-1/b", "/eu-1/c"]

    rules = ("--placement", "rack", "--placement-min", "3", "--placement-enforce")
    cluster.run("namespace", "create", "ruled", *rules)
    cluster.run("append", "ruled/x", stdin=b"one\n")
    found = run(cluster, "ledger", "check", "--placement")
    assert (found["ledgers"], found["soft"], found["fail"]) == (1, 1, 0)
    assert "copies are on host 127.0.0.1" in found["worst"][0]["reason"]

    run(cluster, "bookie", "place", bookies[0], "/eu-1/b")
    found = run(cluster, "ledger", "check", "--placement", code=5)
    [worst] = found["worst"]
    assert (found["fail"], worst["grade"]) == (1, "fail")
    assert worst["placement"] == "rack,minimum=3,enforce"
    assert "are in 2 racks (/eu-1/b, /eu-1/c), 3 are needed" in worst["reason"]

    warned = cluster.try_run("bookie", "place", "nobody:1", "/eu-1/b")
    assert b"warning: bookie nobody:1 is not known" in warned.stderr
    removed = run(cluster, "bookie", "place", bookies[0], "--remove")
    assert removed == {"bookie": bookies[0], "location": "/default-rack"}
    refused = cluster.try_run("append", "ruled/y", stdin=b"one\n")
    assert refused.returncode == 1
    assert b"placement needs 3 racks for each entry" in refused.stderr
