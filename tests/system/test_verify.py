"""Receipts and `stream verify` as operators use them: undamaged, unreachable and damaged copies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.system.cluster import StandaloneCluster, wait_for, wait_gone
from tests.system.conftest import StartCluster

pytestmark = pytest.mark.system

LINES = b"".join(b"record %06d of many\n" % n for n in range(6000))


def entry_logs(bookie: Path) -> list[Path]:
    return [path for path in bookie.rglob("*.log") if "ledgers" in path.parts]


def is_checkpointed(bookie: Path, text: bytes) -> bool:
    """Returns whether a text is in an entry log and the mark of that checkpoint is stored: without
    the mark a replay of the journal writes another copy."""
    marks = list(bookie.rglob("lastmark"))
    holding = [path for path in entry_logs(bookie) if text in path.read_bytes()]
    return bool(marks and holding) and all(
        mark.stat().st_mtime_ns >= path.stat().st_mtime_ns for mark in marks for path in holding
    )


def rot(directory: Path, text: bytes) -> int:
    """Flips a bit in every occurrence of a text in entry logs, and returns their number."""
    found = 0
    for path in entry_logs(directory):
        data = bytearray(path.read_bytes())
        at = data.find(text)
        while at >= 0:
            data[at] ^= 1
            found += 1
            at = data.find(text, at + 1)
        path.write_bytes(data)
    return found


def verify(cluster: StandaloneCluster, *options: str) -> tuple[int, dict[str, object]]:
    done = cluster.try_run("stream", "verify", "demo/s", "--json", *options)
    assert done.stdout, done.stderr.decode()
    facts: dict[str, object] = json.loads(done.stdout)
    return done.returncode, facts


def test_undamaged_unreachable_and_damaged_copies_are_verified(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    cluster = start_cluster("--no-restart")
    lines = cluster.run("append", "demo/s", "-", "--receipts", stdin=LINES).splitlines()
    receipts = [json.loads(line) for line in lines]
    assert [receipt["sequence"] for receipt in receipts] == list(range(6000))
    assert {len(receipt["acks"]) + len(receipt["not_yet"]) for receipt in receipts} == {3}
    kept = tmp_path / "receipts.jsonl"
    kept.write_bytes(b"\n".join(lines[::300]))
    assert receipts[-1]["entry_id"] != receipts[1000]["entry_id"]

    code, facts = verify(cluster)
    assert (code, facts["verdict"]) == (0, "whole")
    assert facts["copies"] == {"whole": 3 * facts["entries"]}  # type: ignore[operator]
    assert verify(cluster, "--receipt", lines[1000].decode())[0] == 0
    code, facts = verify(cluster, "--receipt-file", str(kept))
    assert (code, facts["receipts"], facts["whole"]) == (0, 20, 20)

    pid = cluster.pid_of(2)
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid])
    code, facts = verify(cluster)
    assert (code, facts["verdict"]) == (4, "doubt")
    assert facts["copies"] == {"whole": 2 * facts["entries"], "unreachable": facts["entries"]}  # type: ignore[operator]

    # A checkpoint writes it there from the journal.
    rotten = (cluster.directory / "bookie-1", b"record 001000 of many")
    wait_for(lambda: is_checkpointed(*rotten))
    cluster.end()
    assert rot(*rotten)
    cluster.start()
    code, facts = verify(cluster)
    assert (code, facts["verdict"]) == (3, "damage")
    assert facts["copies"] == {"whole": 3 * facts["entries"] - 1, "corrupt": 1}  # type: ignore[operator]
    assert verify(cluster, "--receipt", lines[1000].decode())[0] == 3
    assert verify(cluster, "--receipt", lines[-1].decode())[0] == 0
    # Readers use another copy.
    assert cluster.run("read", "demo/s") == LINES

    done = cluster.try_run("stream", "verify", "demo/s")
    assert done.returncode == 3
    assert b"corrupt" in done.stdout
    assert b"DAMAGED" in done.stderr
    done = cluster.try_run("stream", "verify", "demo/s", "--receipt", "{}")
    assert done.returncode == 2
    assert b"not a receipt" in done.stderr


def test_a_canary_reports_a_line_of_json_for_each_round(shared: StandaloneCluster) -> None:
    done = shared.try_run("canary", "ops/canary", "--interval-s", "0.1", "--rounds", "4")
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert [facts["round"] for facts in rounds] == [1, 2, 3, 4]
    assert {facts["verdict"] for facts in rounds} == {"whole"}, done.stderr.decode()
    assert done.returncode == 0
    shared.run("append", "ops/lines", "-", stdin=b"precious\n")
    done = shared.try_run("canary", "ops/lines", "--rounds", "1")
    assert done.returncode == 1
    assert b"not a canary's" in done.stderr
