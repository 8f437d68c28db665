"""`read` and `tail` of several streams, patterns and partitions, and their first positions."""

from __future__ import annotations

import json

import pytest

from tests.system.cluster import StandaloneCluster

pytestmark = pytest.mark.system


def lines(*values: str) -> bytes:
    return "".join(f"{value}\n" for value in values).encode()


def test_several_streams_and_partitions_are_read_as_one(shared: StandaloneCluster) -> None:
    for name, value in (("a-odd", "1"), ("a-even", "2"), ("a-odd", "3")):
        shared.run("append", f"several/{name}", stdin=lines(value))
    shared.run("append", "several/b", stdin=lines("4", "5"))
    assert shared.run("read", "several/a-*", "several/b", "--count", "4") == lines(*"1234")
    assert shared.run("read", "several/*", "-n", "3") == lines("3", "4", "5")
    assert shared.run("read", "several/b", "--from", "end:1") == lines("5")
    merged = [json.loads(line) for line in shared.run("read", "several/a-*", "--json").splitlines()]
    assert [record["stream"] for record in merged] == ["a-odd", "a-even", "a-odd"]
    refused = shared.try_run("read", "several/b", "several/none")
    assert (refused.returncode, refused.stderr.count(b"\n")) == (1, 1)


def test_a_tail_follows_partitions_and_new_streams(shared: StandaloneCluster) -> None:
    shared.run("namespace", "create", "followed")
    shared.run("stream", "create", "followed/parts", "--partitions", "3")
    for number in range(3):
        shared.run("append", "followed/parts", "--key", str(number), stdin=lines(f"p{number}"))
    with shared.begin("tail", "followed/parts", "followed/new*", "-n", "2") as tail:
        assert tail.stdout is not None
        assert [tail.stdout.readline() for _ in range(2)] == [b"p1\n", b"p2\n"]
        shared.run("append", "followed/parts", "--key", "x", stdin=lines("p3"))
        assert tail.stdout.readline() == b"p3\n"
        shared.run("append", "followed/newcomer", stdin=lines("new"))
        assert tail.stdout.readline() == b"new\n"
