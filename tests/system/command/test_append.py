"""Acknowledged records are read back in order and once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.effort import scaled
from tests.system.cluster import COMMAND, StandaloneCluster, environment

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


def test_what_read_prints_as_json_can_be_appended_again(shared: StandaloneCluster) -> None:
    options = ("--header", "a=1", "--header", "b==", "--event-time")
    shared.run("append", "copied/a", *options, "-86400000", "--key", "", stdin=b"\xff\x00\n")
    shared.run("append", "copied/a", "--event-time", "1700000000000000000", stdin=b"x\n\n")
    shared.run("append", "copied/a", "--event-time", "2026-01-31", "--format", "raw", stdin=b"a\nb")
    copied = shared.run("read", "copied/a", "--json")
    shared.run("append", "copied/b", "--format", "json", stdin=copied)

    def records(stream: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in shared.run("read", stream, "--json").splitlines()]
        return [
            {k: v for k, v in line.items() if k not in ("append_time", "position")}
            for line in lines
        ]

    assert records("copied/a") == records("copied/b")
    first = records("copied/b")[0]
    assert first["event_time"] == "1969-12-31T00:00:00.000Z"
    assert (first["key"], first["headers"]) == ("", [["a", "1"], ["b", "="]])
    assert records("copied/b")[1]["event_time"] == 1_700_000_000_000_000_000
    assert [record["value"] for record in records("copied/b")[1:]] == ["x", "", "a\nb"]


def test_an_append_is_summarized_in_one_line_on_stderr(shared: StandaloneCluster) -> None:
    shared.run("append", "summary/s", stdin=b"0\n")
    done = shared.try_run("append", "summary/s", stdin=b"1\n2\n3\n")
    assert (done.stdout, done.stderr) == (b"", b"appended 3 records to summary/s: 1..3\n")
    done = shared.try_run("append", "summary/s")
    assert done.stderr == b"appended 0 records to summary/s\n"


def test_an_append_may_expect_its_first_sequence(shared: StandaloneCluster) -> None:
    expect = "--expected-sequence"
    missing = shared.try_run("append", "expected/s", expect, "1", stdin=b"x\n")
    assert missing.returncode == 1
    assert b"no stream" in missing.stderr or b"namespace" in missing.stderr
    assert shared.run("append", "expected/s", expect, "0", stdin=b"0\n1\n") == b""
    refused = shared.try_run("append", "expected/s", expect, "1", stdin=b"again\n")
    assert (refused.returncode, refused.stderr.count(b"\n")) == (1, 1)
    assert b"expected to append record 1, the next one is 2" in refused.stderr
    count = 3000
    values = [str(number) for number in range(2, count)]
    shared.run(
        "append", "expected/s", expect, "2", stdin="".join(f"{v}\n" for v in values).encode()
    )
    read = shared.run("read", "expected/s").split()
    assert read == [b"%d" % number for number in range(count)]


def test_a_refused_line_is_named_and_those_before_it_are_durable(
    shared: StandaloneCluster,
) -> None:
    large = b"x" * (1 << 20)
    lines = b"a\nb\n%s\nc\n"
    wrong_json = b'{"value": "a"}\n\n{"value": "b"}\n{"valeu": "c"}\n'
    cases = [
        (("--key", "k"), lines % large, b"line 3: a record of 1048577 bytes"),
        ((), lines % (large + b"x"), b"line 3 is longer than 1048576 bytes"),
        (("--format", "json"), wrong_json, b"line 4: unknown field 'valeu'"),
    ]
    for number, (options, stdin, cause) in enumerate(cases):
        stream = f"refused/s{number}"
        done = shared.try_run("append", stream, *options, stdin=stdin)
        assert (done.returncode, done.stdout) == (1, b"")
        assert cause in done.stderr
        assert b"durable before the error: 2 records, up to 1:" in done.stderr
        assert shared.run("read", stream) == b"a\nb\n"


def test_what_cannot_be_read_creates_no_stream(shared: StandaloneCluster) -> None:
    shared.run("append", "unread/other", stdin=b"x\n")
    for source, cause in (("/", b"/: Is a directory"), ("/none/x", b"/none/x: No such file")):
        for command in (("append", "unread/s"), ("append", "unread/s", "--receipts")):
            done = shared.try_run(*command, source)
            assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
            assert cause in done.stderr
    mistyped = shared.try_run("append", "unread/s", "--jsn")
    assert b"--jsn: there is no such option" in mistyped.stderr
    surplus = shared.try_run("append", "unread/s", "--", "-odd", "--json")
    assert b"not '--json' as well" in surplus.stderr
    assert b"unread/s" not in shared.run("stream", "list")


def test_bytes_of_arguments_are_stored_as_given(shared: StandaloneCluster) -> None:
    key, separator = os.fsdecode(b"\xff"), os.fsdecode(b"\xa7")
    shared.run("append", "bytes/s", "--key", key, "--header", f"h={key}", stdin=b"a\n")
    shared.run("append", "bytes/s", "--key-separator", separator, stdin=b"k\xa7v\n")
    first, second = read_back(shared, "bytes/s")
    assert (first["key"], first["headers"]) == ({"base64": "/w=="}, [["h", {"base64": "/w=="}]])
    assert (second["key"], second["value"]) == ("k", "v")


def test_the_end_of_an_append_reports_what_is_durable(shared: StandaloneCluster) -> None:
    def stderr_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
        assert process.stderr is not None
        return process.wait(60), process.stderr.read().decode()

    with shared.begin("append", "ended/s", "-", "--acks") as interrupted:
        feed(interrupted, lines(3))
        last = acks_until(interrupted, 3)
        interrupted.send_signal(signal.SIGINT)
        code, text = stderr_of(interrupted)
        assert code == 130
        assert text.endswith(f"durable before the interruption: 3 records, up to {last[0]}\n")
    with shared.begin("append", "ended/s", "-", "--acks") as unheard:
        feed(unheard, lines(1))
        acks_until(unheard, 1)
        assert unheard.stdout is not None
        unheard.stdout.close()
        feed(unheard, lines(1))
        code, text = stderr_of(unheard)
        assert (code, text.count("\n")) == (141, 1)
        assert "durable before the end of the output: 2 records, up to " in text


def test_an_output_that_is_full_does_not_hide_what_is_durable(shared: StandaloneCluster) -> None:
    for option in ("--acks", "--json", "--receipts"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*COMMAND, "append", "full/s", option],
                input=b"a\nb\n",
                stdout=full,
                stderr=subprocess.PIPE,
                env=environment(LEDGERSTREAM_CLUSTER=shared.uri),
                timeout=60,
                check=False,
            )
        said = done.stderr.decode().splitlines()[-2:]
        assert said[0].startswith("durable before the error: 2 records, up to ")
        assert said[1] == "ledgerstream: standard output: No space left on device"
        assert done.returncode == 1


def test_a_partitioned_stream_has_no_sequence_to_expect(shared: StandaloneCluster) -> None:
    shared.run("namespace", "create", "spread")
    shared.run("stream", "create", "spread/s", "--partitions", "2")
    refused = shared.try_run("append", "spread/s", "--expected-sequence", "0", stdin=b"x\n")
    assert refused.returncode == 1
    assert b"partitioned" in refused.stderr
    shared.run("append", "spread/s#1", "--expected-sequence", "0", stdin=b"x\n")
    receipt = json.loads(shared.run("append", "spread/s#1", "--receipts", stdin=b"x\n"))
    assert (receipt["stream"], receipt["sequence"]) == ("spread/s#1", 1)
    missing = shared.try_run("append", "spread/s#2", stdin=b"x\n")
    assert (missing.returncode, missing.stderr.count(b"\n")) == (1, 1)
    done = shared.try_run("append", "spread/s", stdin=b"x\ny\n")
    assert done.stderr == b"appended 2 records to spread/s\n"
