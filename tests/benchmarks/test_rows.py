"""Quick runs of benchmarks: each reports its figures, with the calibration beside them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as program
from benchmarks import cold_read, rate, record_size, writers
from benchmarks.calibration import LOOP_S, around, calibrate, on_standard_machine
from benchmarks.cluster import RunningCluster
from benchmarks.idle import memory_bytes, wakeups, woken
from benchmarks.questions import QUESTIONS, Question, Result, table
from benchmarks.report import show
from benchmarks.settings import Settings
from benchmarks.systems import ledgerstream, programs
from benchmarks.systems import system as systems
from benchmarks.systems.drivers import module_client
from benchmarks.systems.system import PEERS, Running, system
from tests.benchmarks.conftest import TINY
from tests.conftest import skip_here

SMALL = Settings(count=40, warmup=0.001, seconds=0.05)


@pytest.fixture
def results(cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Benchmarks run on the shared cluster, and their results come here."""

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[RunningCluster]:
        yield cluster

    @contextmanager
    def servers(_: Path) -> Iterator[Running]:
        client = module_client("ledgerstream", cluster.uri)
        yield Running(cluster.uri, client, cluster.server_pids)

    async def at_once(_: RunningCluster) -> None:
        """Small runs do not have to wait for checkpoints."""

    monkeypatch.setattr(program, "calibrate", lambda disk: calibrate(disk, TINY))
    monkeypatch.setattr(program, "running_cluster", shared)
    monkeypatch.setattr(ledgerstream, "running", servers)
    monkeypatch.setattr(RunningCluster, "wait_idle", at_once)
    return []


def of(marker: str) -> Question:
    return next(question for question in QUESTIONS if question.marker == marker)


def check(marker: str, results: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Every column has a figure; JSON and the terminal show the result."""
    for result in results:
        assert result["calibration"].keys() == {"loop_s", "copy_s", "sync_p50_ms", "drift"}
        assert result["calibration"]["loop_s"] > 0
        show(result, is_json=True)
        assert json.loads(capsys.readouterr().out) == result
        show(result, is_json=False)
        assert "loop_s" in capsys.readouterr().out
    lines = table(of(marker), results)
    head = lines[0].split("|")[1:-1]
    assert [name.strip() for name in head] == [name for name, _ in of(marker).columns]
    assert all(
        cell.strip() for line in lines[2 : 2 + len(results)] for cell in line.split("|")[1:-1]
    )
    assert any(line.startswith("Calibration: loop ") for line in lines)


def test_rate_measures_appends_alone_and_tailed_until_a_rate_is_not_reached(
    results: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(rate, "RATES", (100, 1000, 10**9, 2 * 10**9))
    monkeypatch.setattr(rate, "REACHED", 0.001)  # the first two are, however busy the machine is
    program.run("rate", SMALL, results.append)
    *reached, last = results
    assert [each["settings"]["rate"] for each in results] == [100, 1000, 10**9]
    for each in reached:
        assert each["system"] == "ledgerstream"
        assert each["count"] == 40
        assert 0 < each["p50_ms"] <= each["p99_ms"]
        assert 0 < each["tail_p50_ms"] <= each["tail_p99_ms"]
    assert sum(each["cpu_us_per_record"] for each in results) > 0, "in ticks of 10 ms"
    assert last["count"] == 40
    assert "tail_p50_ms" not in last
    check("rate", reached, capsys)


def test_idle_counts_cpu_wakeups_and_memory_before_and_after_peers(
    results: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(system("redis"), "missing", lambda: "it is not here")
    monkeypatch.setattr(systems, "PEERS", ("redis",))
    program.run("idle", replace(SMALL, seconds=0.2, peers=True), results.append)
    first, absent, again = results
    assert absent == {"benchmark": "idle", "system": "redis", "absent": "it is not here"}
    for found in (first, again):
        assert found["system"] == "ledgerstream"
        assert found["processes"] == 4
        assert 10 < found["memory_mib"] < 2000
        assert found["wakeups_per_s"] >= 0
        assert 0 <= found["cpu_share"] < 2
    check("idle", [first, again], capsys)
    assert table(of("idle"), results)[-1] == "Absent: redis: it is not here."


def wait_asleep(pid: int) -> None:
    """Returns when a process of one thread waits for something."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.001)


def test_a_wait_is_a_wakeup() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"it has started\n")
        child.stdin.flush()
        child.stdout.readline()
        wait_asleep(child.pid)
        before = wakeups([child.pid])
        for _ in range(5):
            child.stdin.write(b"wake up\n")
            child.stdin.flush()
            child.stdout.readline()
            wait_asleep(child.pid)
        assert woken(before, wakeups([child.pid])) >= 5
        child.stdin.close()


def test_memory_is_that_of_the_process() -> None:
    few = memory_bytes([os.getpid()])
    held = bytearray(os.urandom(1 << 24))
    assert memory_bytes([os.getpid()]) - few > len(held) / 2


def test_a_thread_that_ends_takes_nothing_from_the_others() -> None:
    first, second, new = (Path(f"/proc/1/task/{number}/status") for number in range(3))
    assert woken({first: 1000, second: 5}, {second: 7, new: 3}) == 5


def test_record_sizes_are_appended_and_read(
    results: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(record_size, "SIZES", (1_000, 100_000))
    program.run("record-size", replace(SMALL, warmup=0.0), results.append)
    assert [each["settings"]["size"] for each in results] == [1_000, 100_000]
    assert all(each["read_mb_per_s"] > 0 for each in results)
    check("record-size", results, capsys)


def test_writers_share_the_records(
    results: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(writers, "WRITERS", (1, 4))
    program.run("writers", SMALL, results.append)
    assert [each["settings"]["writers"] for each in results] == [1, 4]
    assert [each["count"] for each in results] == [40, 40]
    check("writers", results, capsys)


def test_micro_batches_at_the_end_and_at_the_beginning_are_compared(
    results: list[dict[str, Any]],
) -> None:
    program.run("micro-batches", replace(SMALL, count=3), results.append)
    (found,) = results
    assert (found["end"]["batches"], found["begin"]["batches"]) == (3, 6)
    assert found["ratio"]["whole_read_cpu_ms"] > 0
    shown = [line.split("|")[1].strip() for line in table(of("micro-batches"), results)[2:-2]]
    assert [name for name in shown if name.startswith("ratio: ")] == [
        f"ratio: {step} {what} ms"
        for what in ("cpu", "p50") for step in ("commit", "end", "plan", "read")
    ] + ["ratio: whole read cpu ms"]  # fmt: skip


def test_a_cold_read_is_compared_with_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "some.log"
    path.write_bytes(os.urandom(3 << 20) + b"a rest that is no whole block")
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        skip_here(f"the file system of {tmp_path} has no O_DIRECT: give pytest --basetemp")
    assert cold_read.direct_mb_per_s([path]) > 0


# ---- calibration


def test_a_calibration_measures_cpu_and_the_disk(tmp_path: Path) -> None:
    found = {
        each: [calibrate(tmp_path, replace(TINY, additions=each)) for _ in range(5)]
        for each in (10**5, 10**6)
    }
    # Other threads of this process, and other machines on this host, only add to it.
    one, ten = (min(result["loop_s"] for result in results) for results in found.values())
    assert 3 < ten / one < 30
    assert all(result["copy_s"] > 0 for result in found[10**5])
    assert all(result["sync_p50_ms"] > 0 for result in found[10**5])
    assert list(tmp_path.iterdir()) == []


def test_a_result_carries_the_mean_of_two_calibrations() -> None:
    before = {"loop_s": 0.3, "copy_s": 0.1, "sync_p50_ms": 0.2}
    found = around(before, {"loop_s": 0.6, "copy_s": 0.3, "sync_p50_ms": 0.4})
    assert found == {"loop_s": 0.45, "copy_s": 0.2, "sync_p50_ms": 0.3, "drift": 2.0}
    assert on_standard_machine(100.0, {"loop_s": 2 * LOOP_S}) == 50.0


# ---- peers


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_not_here_is_reported(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PEERS", Path("/nowhere"))
    monkeypatch.setattr(programs, "_found", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert "PATH" in system(name).missing()
    shown: list[Result] = []
    monkeypatch.setattr(program, "calibrate", lambda disk: calibrate(disk, TINY))
    monkeypatch.setattr(systems, "OURS", name)
    program.run("idle", SMALL, shown.append)
    assert shown == [{"benchmark": "idle", "system": name, "absent": system(name).missing()}]
