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


def test_records_are_selected_and_formatted(shared: StandaloneCluster) -> None:
    for number, key in enumerate("aba"):
        shared.run("append", "chosen/one", "--key", key, stdin=lines(f"v{number}"))
    shared.run("stream", "create", "chosen/parts", "--partitions", "2")
    for number, key in enumerate("ab"):
        shared.run("append", "chosen/parts", "--key", key, stdin=lines(f"p{number}"))

    def read(*arguments: str) -> list[str]:
        return shared.run("read", *arguments).decode().splitlines()

    assert read("chosen/one", "-f", r"%k=%v %s\n") == ["a=v0 0", "b=v1 1", "a=v2 2"]
    assert read("chosen/one", "--key", "a") == ["v0", "v2"]
    assert read("chosen/one", "--grep", "[12]$", "--count", "1") == ["v1"]
    assert read("chosen/one", "--since", "1h", "--until", "seq:2") == ["v0", "v1"]
    assert read("chosen/one", "--from", "-1h", "-o", "base64", "--count", "1") == ["djA="]
    assert read("chosen/one", "--until", "1h") == []
    assert read("chosen/*", "--key", "a", "-f", r"%v\n") == ["v0", "v2", "p0"]
    assert read("chosen/parts", "-f", r"%v %n\n", "--grep", "1")[0].startswith("p1 chosen/parts#")
    assert read("chosen/*", "-n", "3", "--key", "a") == ["v2", "p0"]
    assert json.loads(shared.run("read", "chosen/one", "-o", "json", "--count", "1"))["key"] == "a"


def test_a_tail_ends_when_the_time_of_its_end_has_passed(shared: StandaloneCluster) -> None:
    shared.run("append", "timed/a", stdin=lines("1"))
    shared.run("append", "timed/b", stdin=lines("2"))
    for stream, values in (("timed/a", lines("1")), ("timed/*", lines("1", "2"))):
        options = ("--from", "earliest", "--until")
        ended = shared.try_run("tail", stream, *options, "now")
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, values, b"")
        with shared.begin("tail", stream, *options, "+2s") as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() == b"1\n"
            assert tail.wait(60) == 0


def test_numbers_below_zero_are_wrong_usage(shared: StandaloneCluster) -> None:
    for option in ("--count", "-n"):
        refused = shared.try_run("read", "any/stream", option, "-1")
        assert refused.returncode == 2
        assert b"Must be >= 0" in refused.stderr


def test_a_pattern_that_matches_no_stream_is_reported(shared: StandaloneCluster) -> None:
    shared.run("append", "matched/a", stdin=lines("1"))
    refused = shared.try_run("read", "matched/zzz-*")
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"no stream matches matched/zzz-*" in refused.stderr
    waits = shared.try_run("tail", "matched/zzz-*", "--until", "now")
    assert (waits.returncode, waits.stdout) == (0, b"")
    assert waits.stderr == b"no stream matches matched/zzz-* yet\n"
