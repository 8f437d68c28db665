"""A bookie's disks are checked and repaired from the command line, with real files and RocksDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster import StandaloneCluster

LINES = b"".join(b"record %d %s\n" % (i, b"x" * 300) for i in range(3000))


@pytest.fixture(scope="module")
def filled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster that has records in entry logs."""
    cluster = StandaloneCluster(tmp_path_factory.mktemp("filled") / "cluster", 3, ())
    cluster.start()
    try:
        cluster.run("append", "demo/checked", stdin=LINES)
        cluster.end()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def filled(filled_once: StandaloneCluster) -> StandaloneCluster:
    """That cluster, running, for all tests. A test that damages disks uses a bookie of its own."""
    if filled_once.process.poll() is not None:
        filled_once.start()  # a start replays, and ends with a checkpoint
    return filled_once


def _config(cluster: StandaloneCluster, number: int = 1) -> str:
    return str(cluster.directory / f"bookie-{number}" / "bookie.toml")


def _ledgers(cluster: StandaloneCluster, number: int = 1) -> Path:
    return cluster.directory / f"bookie-{number}" / "ledgers"


def _checked(cluster: StandaloneCluster) -> tuple[int, dict[str, Any]]:
    done = cluster.try_run("bookie", "check", _config(cluster), "--json")
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def test_a_running_bookie_is_refused(filled: StandaloneCluster) -> None:
    for command in ("check", "rebuild-index"):
        done = filled.try_run("bookie", command, _config(filled))
        assert done.returncode == 1
        assert b"Cure: stop the bookie first" in done.stderr


def test_damage_is_named_and_an_index_is_rebuilt(filled: StandaloneCluster) -> None:
    filled.end()
    code, report = _checked(filled)
    assert (code, report["findings"]) == (0, [])
    assert report["entries"] == report["digests_verified"] > 0
    shown = filled.run("bookie", "check", _config(filled))
    assert b"is clean" in shown
    assert b"yes" in shown

    ledgers = _ledgers(filled)
    for part in (ledgers / "index").iterdir():
        if part.suffix == ".sst":
            part.write_bytes(part.read_bytes()[:100])
    code, report = _checked(filled)
    assert code == 1
    assert "rebuild-index" in report["findings"][0]["cure"]

    made = json.loads(filled.run("bookie", "rebuild-index", _config(filled), "--json"))
    assert made["left_out"] == []
    assert "cannot be opened" in made["old_index_unread"] or "failed" in made["old_index_unread"]
    assert Path(made["old_index"]).name == "index.old-1"
    code, report = _checked(filled)  # an entry log may be missing
    assert code == 1
    [doubt, limbo] = report["findings"]
    assert (doubt["severity"], limbo["severity"]) == ("doubt", "note")
    assert "was rebuilt" in doubt["what"]
    filled.start()
    read = filled.run("read", "demo/checked", "--from", "earliest")
    assert read.count(b"record ") == 3000


def _inspected(cluster: StandaloneCluster, *arguments: str) -> list[dict[str, Any]]:
    said = cluster.run("bookie", "inspect", *arguments, "--json", "--lines-max", "100000")
    return [json.loads(line) for line in said.splitlines()]


def test_files_are_shown_while_the_bookie_runs_and_afterwards(filled: StandaloneCluster) -> None:
    ledgers, bookie = _ledgers(filled, 2), _ledgers(filled, 2).parent
    filled.run("append", "demo/more", stdin=b"in the journal\n")
    frames = _inspected(filled, "journal", str(bookie / "journal"))
    adds = [line for line in frames if line["kind"] == "add"]
    assert adds
    filled.end()
    index = _inspected(filled, "index", str(ledgers))
    assert index[0]["kind"] == "index"
    assert index[0]["doubt"] is None
    known = {line["ledger"]: line for line in index if line["kind"] == "ledger"}
    records = [
        line
        for log in sorted(ledgers.glob("*.log"))
        for line in _inspected(filled, "entry-log", str(log))
        if line["kind"] == "record"
    ]
    assert {line["ledger"] for line in records} <= known.keys()
    assert all(line["problem"] == "" for line in records)
    one = records[0]["ledger"]
    runs = [
        line
        for line in _inspected(filled, "ledger", str(ledgers), str(one))
        if line["kind"] == "run"
    ]
    assert runs[0]["first"] == 0
    assert runs[-1]["last"] == known[one]["last"]

    shown = filled.try_run("bookie", "inspect", "index", str(ledgers), "--lines-max", "1")
    assert shown.stdout.count(b"\n") == 1
    assert b"--lines-max" in shown.stderr
    for kind in ("journal", "entry-log", "index"):
        wrong = filled.try_run("bookie", "inspect", kind, str(bookie / "bookie.toml"))
        assert wrong.returncode == 1
        assert b"Traceback" not in wrong.stderr
