"""`read` and `tail` of several streams, patterns and partitions, and where they begin."""

from __future__ import annotations

import json

import pytest

from tests.system.conftest import StartCluster

pytestmark = pytest.mark.system


def lines(*values: str) -> bytes:
    return "".join(f"{value}\n" for value in values).encode()


def test_several_streams_and_partitions_are_read_as_one(start_cluster: StartCluster) -> None:
    cluster = start_cluster(bookies=3)
    for name, value in (("a-odd", "1"), ("a-even", "2"), ("a-odd", "3")):
        cluster.run("append", f"demo/{name}", stdin=lines(value))
    cluster.run("append", "demo/b", stdin=lines("4", "5"))
    assert cluster.run("read", "demo/a-*", "demo/b", "--count", "4") == lines(*"1234")
    assert cluster.run("read", "demo/*", "-n", "3") == lines("3", "4", "5")
    assert cluster.run("read", "demo/b", "--from", "end:1") == lines("5")
    merged = [json.loads(line) for line in cluster.run("read", "demo/a-*", "--json").splitlines()]
    assert [record["stream"] for record in merged] == ["a-odd", "a-even", "a-odd"]
    refused = cluster.try_run("read", "demo/b", "demo/none")
    assert (refused.returncode, refused.stderr.count(b"\n")) == (1, 1)


def test_a_tail_follows_partitions_and_new_streams(start_cluster: StartCluster) -> None:
    cluster = start_cluster(bookies=3)
    cluster.run("namespace", "create", "demo")
    cluster.run("stream", "create", "demo/parts", "--partitions", "3")
    for number in range(3):
        cluster.run("append", "demo/parts", "--key", str(number), stdin=lines(f"p{number}"))
    with cluster.begin("tail", "demo/parts", "demo/new*", "-n", "2") as tail:
        assert tail.stdout is not None
        assert [tail.stdout.readline() for _ in range(2)] == [b"p1\n", b"p2\n"]
        cluster.run("append", "demo/parts", "--key", "x", stdin=lines("p3"))
        assert tail.stdout.readline() == b"p3\n"
        cluster.run("append", "demo/newcomer", stdin=lines("new"))
        assert tail.stdout.readline() == b"new\n"
