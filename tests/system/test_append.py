"""Acknowledged records are read back in order and once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.effort import scaled
from tests.system.cluster import StandaloneCluster

pytestmark = pytest.mark.system

LINES = scaled(ci=30_000, night=200_000)
ENOUGH = scaled(ci=5_000, night=20_000)


def lines(count: int, first: int = 0) -> bytes:
    return b"".join(b"record %d\n" % n for n in range(first, first + count))


def read_back(cluster: StandaloneCluster, stream: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cluster.run("read", stream, "--json").splitlines()]


def feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Writes the stdin of a process that may be killed before it has read all of it."""
    assert process.stdin is not None
    try:
        process.stdin.write(data)
        process.stdin.flush()
    except BrokenPipeError:
        pass


def acks_until(process: subprocess.Popen[bytes], records: int) -> tuple[str, int]:
    """Returns the last reported position once `records` are durable."""
    assert process.stdout is not None
    position, reported = "", 0
    while reported < records:
        line = process.stdout.readline().split()
        assert line, f"append ended early: {process.stderr.read().decode()}"  # type: ignore[union-attr]
        position, reported = line[0].decode(), int(line[1])
    return position, reported


def remaining_acks(process: subprocess.Popen[bytes], last: tuple[str, int]) -> tuple[str, int]:
    assert process.stdout is not None
    for line in process.stdout.read().splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            last = words[0].decode(), int(words[1])
    return last


def check(records: list[dict[str, Any]], last: tuple[str, int]) -> None:
    """Checks that acknowledged records are at their positions, and stored ones are a prefix in
    order."""
    position, reported = last
    assert len(records) >= reported
    assert records[reported - 1]["position"] == position
    assert [r["value"] for r in records] == [f"record {n}" for n in range(len(records))]
    assert [r["sequence"] for r in records] == list(range(len(records)))
    positions = [tuple(map(int, r["position"].split(":"))) for r in records]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize("victim", ["everything", "bookies and writer"])
def test_a_kill_during_an_append_loses_no_acknowledged_record(
    victim: str, cluster: StandaloneCluster
) -> None:
    with cluster.begin("append", "demo/lines", "-", "--acks") as writer:
        feed(writer, lines(ENOUGH))
        last = acks_until(writer, ENOUGH)
        feed(writer, lines(ENOUGH, first=ENOUGH))
        if victim == "everything":
            cluster.kill_all()
            writer.kill()
        else:
            writer.kill()
            for number in (1, 2, 3):
                os.kill(cluster.pid_of(number), signal.SIGKILL)
            cluster.kill_all()
        last = remaining_acks(writer, last)
    cluster.start()
    before = read_back(cluster, "demo/lines")
    check(before, last)
    cluster.run("append", "demo/lines", stdin=lines(10, first=len(before)))
    after = read_back(cluster, "demo/lines")
    recovered = len(after) - 10
    assert recovered >= len(before)
    assert [r["value"] for r in after[:recovered]] == [f"record {n}" for n in range(recovered)]
    assert [r["sequence"] for r in after] == list(range(len(after)))
    assert after[: len(before)] == before, "what was readable stays what it was"


def test_a_writer_continues_when_a_bookie_is_killed(cluster: StandaloneCluster) -> None:
    with cluster.begin("append", "demo/lines", "-", "--acks") as writer:
        feed(writer, lines(ENOUGH))
        acks_until(writer, ENOUGH)
        os.kill(cluster.pid_of(2), signal.SIGKILL)
        feed(writer, lines(LINES - ENOUGH, first=ENOUGH))
        assert writer.stdin is not None
        writer.stdin.close()
        last = acks_until(writer, LINES)
        assert writer.wait(60) == 0, writer.stderr.read().decode()  # type: ignore[union-attr]
    check(read_back(cluster, "demo/lines"), last)


def test_a_second_writer_fences_the_first(shared: StandaloneCluster) -> None:
    with shared.begin("append", "fenced/lines", "-", "--acks") as first:
        feed(first, lines(ENOUGH))
        last = acks_until(first, ENOUGH)
        shared.run("append", "fenced/lines", stdin=b"from the second\n")
        feed(first, lines(10, first=ENOUGH))
        assert first.stdin is not None
        first.stdin.close()
        assert first.wait(60) == 1
        assert first.stderr is not None
        reported = first.stderr.read().decode()
        assert "another writer took over" in reported
        assert f"durable before the error: {ENOUGH} records, up to {last[0]}" in reported
        assert "Traceback" not in reported
    records = read_back(shared, "fenced/lines")
    check(records[:ENOUGH], last)
    assert records[-1]["value"] == "from the second"
    assert [r["sequence"] for r in records] == list(range(len(records)))


def test_a_tail_follows_across_processes(shared: StandaloneCluster) -> None:
    shared.run("append", "tailed/lines", stdin=lines(5))
    with shared.begin("tail", "tailed/lines", "-n", "2") as tail:
        assert tail.stdout is not None
        assert [tail.stdout.readline() for _ in range(2)] == [b"record 3\n", b"record 4\n"]
        for number in range(5, 8):
            shared.run("append", "tailed/lines", stdin=b"record %d\n" % number)
            assert tail.stdout.readline() == b"record %d\n" % number


def test_reading_begins_at_the_reported_position(shared: StandaloneCluster) -> None:
    values = [b"", b"\xff\x00 not text", b"plain", b"with\ttab", b"last"]
    reported = json.loads(
        shared.run("append", "reading/any", "--json", stdin=b"\n".join(values) + b"\n")
    )
    assert reported["records"] == 5
    assert shared.run("read", "reading/any").split(b"\n")[:-1] == values
    assert shared.run("read", "reading/any", "--from", reported["last"]) == b"last\n"
    assert shared.run("read", "reading/any", "--from", "seq:2", "--count", "1") == b"plain\n"
    assert shared.run("read", "reading/any", "--from", "latest") == b""
    assert shared.run("read", "reading/any", "--from", "time:2000-01-01").count(b"\n") == 5
    shown = json.loads(shared.run("stream", "show", "reading/any", "--json"))
    assert (shown["records"], shown["next_sequence"]) == (5, 5)
    record = json.loads(
        shared.run("read", "reading/any", "--json", "--from", "seq:1", "--count", "1")
    )
    assert record["value"] == {"base64": "/wAgbm90IHRleHQ="}
    assert record["key"] is None
    missing = shared.try_run("read", "reading/none")
    assert missing.returncode == 1
    assert missing.stderr.count(b"\n") == 1
