"""How the harness of killing.py judges and counts; nothing is killed, and Spark is not needed."""

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
    BESIDE_ANOTHER,
    EXPECTED,
    LOCKED_OUT,
    Tally,
    Unexplained,
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
from tests.spark.kills.orders import Order, OrderedFailure, Orders
from tests.spark.kills.report import Deed, deed_of, random_kill, table
from tests.spark.kills.spark_processes import KINDS


def judged(tally: Tally, error: str, *, shared_until_s: float) -> bool:
    """Of a query that began at 10 s."""
    events: list[dict[str, Any]] = [
        {"event": "started", "query": "q"},
        {"event": "ended", "query": "q", "error": error, "began_s": 10.0},
        {"event": "done"},
    ]
    return explain(iter(events).__next__, tally, lambda after_s: shared_until_s >= after_s)


@pytest.mark.parametrize("error", BESIDE_ANOTHER)
def test_a_query_may_be_overtaken_only_while_another_driver_has_it(
    tmp_path: Path, error: str
) -> None:
    tally = Tally(1, tmp_path / "journal")
    assert judged(tally, f"[{error}]", shared_until_s=10.5)
    assert tally.counts["queries overtaken by another driver"] == 1
    with pytest.raises(Unexplained, match=error):
        judged(tally, f"[{error}]", shared_until_s=9.5)


@pytest.mark.parametrize("shared_until_s", [9.5, 10.5])
def test_what_no_kill_explains_is_an_error_beside_another_driver_too(
    tmp_path: Path, shared_until_s: float
) -> None:
    tally = Tally(1, tmp_path / "journal")
    assert judged(tally, f"... {EXPECTED[0]} ...", shared_until_s=shared_until_s)
    with pytest.raises(Unexplained, match="EntryLost"):
        judged(tally, "EntryLost: entry 7", shared_until_s=shared_until_s)


def test_a_query_may_be_locked_out_only_while_a_process_stands_still(tmp_path: Path) -> None:
    error = f"cluster.db {LOCKED_OUT} for 5.0 s"
    tally = Tally(1, tmp_path / "journal")
    with pytest.raises(Unexplained, match=LOCKED_OUT):
        judged(tally, error, shared_until_s=10.5)
    tally.note_stopped()
    assert judged(tally, error, shared_until_s=9.5)
    tally.note_woken()
    assert judged(tally, error, shared_until_s=9.5), "after the query began"
    assert tally.counts["queries locked out by a stopped process"] == 2
    assert tally.had_stopped(time.monotonic() - 60)
    assert not tally.had_stopped(time.monotonic() + 1)


def test_the_metadata_file_says_that_it_is_locked_in_these_words() -> None:
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    assert LOCKED_OUT in str(mapped("cluster.db", busy))


def test_what_only_stops_or_raises_is_no_kill(tmp_path: Path) -> None:
    tally = Tally(3, tmp_path / "journal")
    for way in ("pause", "raise", "kill", "zombie"):
        tally.count_deed(Deed("planner", "any time", way), "x")
    assert tally.kills_left == 1
    assert len((tmp_path / "journal").read_text().splitlines()) == 4


def test_each_point_has_a_victim_and_a_moment() -> None:
    points = (
        *FIRST_POINTS, *START_POINTS, *SOURCE_POINTS, *PLAN_POINTS, *TASK_POINTS, *COMMIT_POINTS,
        *ABORT_POINTS,
    )  # fmt: skip
    moments = {point: deed_of(Order(point, "kill")).moment for point in points}
    after = {point for point, moment in moments.items() if moment == "after commit"}
    assert after == {"commit, after", "source.commit, before", "source.commit, after"}
    during = {point for point, moment in moments.items() if moment == "during commit"}
    assert during == {"commit, before", "transaction, before", "transaction, after", *ABORT_POINTS}


def test_the_table_adds_up() -> None:
    deeds = collections.Counter(
        {
            deed_of(Order("write.end", "kill")): 3,
            deed_of(Order("commit, after", "kill with daemon")): 2,
            deed_of(Order("commit, after", "raise")): 5,
            Deed("bookie", "any time", "kill"): 1,
        }
    )
    assert {random_kill(kind).moment for kind in KINDS} == {"any time"}
    lines = [line.split() for line in table(deeds)]
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


class OfSleepers(Driver):
    """A driver whose JVM is any process."""

    def __init__(self, pid: int) -> None:
        self.jvm = pid
        self.took_queries = True
        self._jvm_gone_s = None
        self._telling = threading.Lock()


def test_a_driver_ran_until_its_jvm_was_gone() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    driver = OfSleepers(sleeper.pid)
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


def test_who_tells_a_driver_that_was_killed_something_tells_nobody() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    driver = OfSleepers(sleeper.pid)
    driver._process = sleeper
    driver.kill_python()
    driver.restart("plain")


def test_who_has_opened_an_order_reads_that_order_whoever_takes_it(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.give(Order("read.begin", "raise"))
    with (tmp_path / "order").open() as opened:
        with pytest.raises(OrderedFailure):
            orders.passes("read.begin")
        assert json.load(opened)["point"] == "read.begin"
    taken = orders.taken()
    assert taken is not None
    assert taken.order == Order("read.begin", "raise", number=1)
    assert [found.name for found in tmp_path.iterdir() if "seen" not in found.name] == []
