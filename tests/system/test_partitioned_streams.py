"""Partitioned streams from the command line: created, appended to by key, extended, listed as
one."""

from __future__ import annotations

import json

import pytest

from stream import partition_of
from tests.system.cluster import StandaloneCluster

pytestmark = pytest.mark.system


def test_lines_are_appended_to_the_partitions_of_their_keys(cluster: StandaloneCluster) -> None:
    cluster.run("stream", "create", "demo/clicks", "--partitions", "3")
    sent = [(b"user-%d" % (n % 17), b"%d" % n) for n in range(1000)]
    stdin = b"".join(key + b":" + value + b"\n" for key, value in sent)
    summary = json.loads(
        cluster.run("append", "demo/clicks", "--key-separator", ":", "--json", stdin=stdin)
    )
    assert summary["records"] == 1000
    for number in range(3):
        lines = cluster.run("read", f"demo/clicks#{number}", "--json").splitlines()
        found = [json.loads(line) for line in lines]
        expected = [(k, v) for k, v in sent if partition_of(k, 3) == number]
        assert [(f["key"].encode(), f["value"].encode()) for f in found] == expected

    grown = json.loads(cluster.run("stream", "grow", "demo/clicks", "--partitions", "5", "--json"))
    assert (grown["partitions"], grown["records"]) == (5, 1000)
    cluster.run("append", "demo/plain", stdin=b"x\n")
    listed = json.loads(cluster.run("stream", "list", "demo", "--json"))
    assert [(each["stream"], each["records"]) for each in listed] == [
        ("demo/clicks", 1000),
        ("demo/plain", 1),
    ]
    assert cluster.run("stream", "list", "--names") == b"demo/clicks\ndemo/plain\n"
    shown = json.loads(cluster.run("stream", "show", "demo/clicks", "--json"))
    assert len(shown["by_partition"]) == 5
    cluster.run("stream", "delete", "demo/clicks")
    assert cluster.run("stream", "list", "demo", "--names") == b"demo/plain\n"
