"""Tests how the harness of killing.py judges and counts; kills nothing, and needs no Spark."""

from __future__ import annotations

import collections
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ledger.metastore.sqlite.connection import mapped
from tests.spark.hosts import event_log, speculative_tasks
from tests.spark.kills.driver import Driver
from tests.spark.kills.injection import (
    EXPECTED,
    LOCKED_OUT,
    OVERTAKEN,
    Tally,
    UnexplainedError,
    explain,
)
from tests.spark.kills.killable_source import (
    ABORT_POINTS,
    COMMIT_POINTS,
    FIRST_POINTS,
    PLAN_POINTS,
    SOURCE_POINTS,
    START_POINTS,
    TASK_POINTS,
)
from tests.spark.kills.orders import KillOrder, KillOrders, OrderedFailure
from tests.spark.kills.report import Fault, fault_of, random_kill, table
from tests.spark.kills.spark_processes import KINDS


def judged(tally: Tally, error: str, *, shared_until_s: float) -> bool:
    """Judges the events of a query that began at 10 s."""
    events: list[dict[str, Any]] = [
        {"event": "started", "query": "q"},
        {"event": "ended", "query": "q", "error": error, "began_s": 10.0},
        {"event": "done"},
    ]
    return explain(iter(events).__next__, tally, lambda after_s: shared_until_s >= after_s)


@pytest.mark.parametrize("error", OVERTAKEN)
def test_a_query_may_be_overtaken_only_while_another_driver_has_it(
    tmp_path: Path, error: str
) -> None:
    tally = Tally(1, tmp_path / "journal")
    assert judged(tally, f"[{error}]", shared_until_s=10.5)
    assert tally.counts["queries overtaken by another driver"] == 1
    with pytest.raises(UnexplainedError, match=error):
        judged(tally, f"[{error}]", shared_until_s=9.5)


@pytest.mark.parametrize("shared_until_s", [9.5, 10.5])
def test_an_unexplained_error_is_reported_with_another_driver_too(
    tmp_path: Path, shared_until_s: float
) -> None:
    tally = Tally(1, tmp_path / "journal")
    assert judged(tally, f"... {EXPECTED[0]} ...", shared_until_s=shared_until_s)
    with pytest.raises(UnexplainedError, match="EntryLost"):
        judged(tally, "EntryLost: entry 7", shared_until_s=shared_until_s)


def test_a_query_may_be_locked_out_only_while_a_process_is_stopped(tmp_path: Path) -> None:
    error = f"cluster.db {LOCKED_OUT} for 5.0 s"
    tally = Tally(1, tmp_path / "journal")
    with pytest.raises(UnexplainedError, match=LOCKED_OUT):
        judged(tally, error, shared_until_s=10.5)
    tally.note_stopped()
    assert judged(tally, error, shared_until_s=9.5)
    tally.note_woken()
    assert judged(tally, error, shared_until_s=9.5), "after the query began"
    assert tally.counts["queries locked out by a stopped process"] == 2
    assert tally.had_stopped(time.monotonic() - 60)
    assert not tally.had_stopped(time.monotonic() + 1)


def test_the_metadata_store_reports_a_lock_with_this_text() -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    assert LOCKED_OUT in str(mapped("cluster.db", busy))


def test_pauses_and_errors_are_not_counted_as_kills(tmp_path: Path) -> None:
    tally = Tally(3, tmp_path / "journal")
    for way in ("pause", "raise", "kill", "zombie"):
        tally.count_fault(Fault("planner", "any time", way), "x")
    assert tally.kills_left == 1
    assert len((tmp_path / "journal").read_text().splitlines()) == 4


def test_each_point_has_a_target_and_a_moment() -> None:
    points = (
        *FIRST_POINTS, *START_POINTS, *SOURCE_POINTS, *PLAN_POINTS, *TASK_POINTS, *COMMIT_POINTS,
        *ABORT_POINTS,
    )  # fmt: skip
    moments = {point: fault_of(KillOrder(point, "kill")).moment for point in points}
    after = {point for point, moment in moments.items() if moment == "after commit"}
    assert after == {"commit, after", "source.commit, before", "source.commit, after"}
    during = {point for point, moment in moments.items() if moment == "during commit"}
    assert during == {"commit, before", "transaction, before", "transaction, after", *ABORT_POINTS}


def test_the_table_adds_up() -> None:
    faults = collections.Counter(
        {
            fault_of(KillOrder("write.end", "kill")): 3,
            fault_of(KillOrder("commit, after", "kill with daemon")): 2,
            fault_of(KillOrder("commit, after", "raise")): 5,
            Fault("bookie", "any time", "kill"): 1,
        }
    )
    assert {random_kill(kind).moment for kind in KINDS} == {"any time"}
    lines = [line.split() for line in table(faults)]
    assert lines[-2] == ["all", "3", "0", "2", "1", "6"]
    assert lines[-1] == ["ways:", "kill", "4,", "kill", "with", "daemon", "2,", "raise", "5"]


def test_speculative_tasks_are_read_from_sparks_own_log(tmp_path: Path) -> None:
    def event(kind: str, *, speculative: bool, reason: str = "Success") -> dict[str, Any]:
        task = {"Task Info": {"Speculative": speculative}, "Task End Reason": {"Reason": reason}}
        return {"Event": kind, **task}

    start, end = "SparkListenerTaskStart", "SparkListenerTaskEnd"
    events = [
        {"Event": "SparkListenerLogStart"},
        event(start, speculative=False),
        event(start, speculative=True),
        event(start, speculative=True),
        event(end, speculative=False, reason="TaskKilled"),
        event(end, speculative=True),
        event(end, speculative=True, reason="TaskKilled"),
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "app-1").write_text(lines)
    (tmp_path / "app-2.inprogress").write_text(lines[: lines.rindex('"Reason"')])
    assert speculative_tasks(tmp_path) == (4, 2)
    assert Path(event_log(tmp_path)["spark.eventLog.dir"].removeprefix("file://")) == tmp_path


class SleepingDriver(Driver):
    """A driver whose JVM is an arbitrary process."""

    def __init__(self, pid: int) -> None:
        self.jvm = pid
        self.took_queries = True
        self._jvm_gone_s = None
        self._send_lock = threading.Lock()


def test_a_driver_ran_until_its_jvm_ended() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    driver = SleepingDriver(sleeper.pid)
    assert driver.ran_after(time.monotonic())
    os.kill(sleeper.pid, signal.SIGKILL)
    driver._see_jvm_go()
    sleeper.wait()
    assert sleeper.stdin is not None
    sleeper.stdin.close()
    assert driver.ran_after(0.0)
    assert not driver.ran_after(time.monotonic())
    driver.took_queries = False
    assert not driver.ran_after(0.0)


def test_a_command_to_a_killed_driver_has_no_effect() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    driver = SleepingDriver(sleeper.pid)
    driver._process = sleeper
    driver.kill_python()
    driver.restart("plain")


def test_an_opened_order_can_be_read_after_another_process_takes_it(tmp_path: Path) -> None:
    orders = KillOrders(tmp_path)
    orders.give(KillOrder("read.begin", "raise"))
    with (tmp_path / "order").open() as opened:
        with pytest.raises(OrderedFailure):
            orders.passes("read.begin")
        assert json.load(opened)["point"] == "read.begin"
    taken = orders.taken()
    assert taken is not None
    assert taken.order == KillOrder("read.begin", "raise", number=1)
    assert [found.name for found in tmp_path.iterdir() if "seen" not in found.name] == []
