"""Pipelines of real processes under kills (killing.py), and the parts of the harness itself.

`LEDGERSTREAM_SPARK_KILLS=2000 LEDGERSTREAM_SPARK_SEED=7` runs more, or others.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import skip_without_spark
from tests.spark.kills.feed import FedRecord, difference
from tests.spark.kills.injection import draw_order
from tests.spark.kills.killable_source import (
    ABORT_POINTS,
    COMMIT_POINTS,
    PLAN_POINTS,
    SOURCE_POINTS,
    START_POINTS,
    TASK_POINTS,
)
from tests.spark.kills.killing import run_worlds
from tests.spark.kills.orders import KillOrder, KillOrders, OrderedFailure
from tests.spark.session import spark_environment

KILLS = int(os.environ.get("LEDGERSTREAM_SPARK_KILLS", "200"))
SEED = int(os.environ.get("LEDGERSTREAM_SPARK_SEED", "0"))


@pytest.mark.slow
def test_output_is_input_however_often_processes_are_killed(tmp_path: Path) -> None:
    skip_without_spark()
    done = run_worlds(KILLS, SEED, tmp_path)
    print("\n".join(done.report()))
    assert done.counts["records compared"] > 0
    assert "speculative tasks started" in done.counts


# The harness


def dies_of(directory: Path, points: list[str]) -> int:
    """Returns the exit code of a process that passes these points of a query's orders."""
    passes = (
        f"orders = KillOrders(Path({str(directory)!r})); [orders.passes(p) for p in {points!r}]"
    )
    program = f"from pathlib import Path; from tests.spark.kills.orders import KillOrders; {passes}"
    return subprocess.run(
        [sys.executable, "-c", program], env=spark_environment(), check=False
    ).returncode


def test_only_the_first_process_at_the_point_dies(tmp_path: Path) -> None:
    orders = KillOrders(tmp_path)
    orders.give(KillOrder("write.end", "kill", skip=1))
    assert dies_of(tmp_path, ["write.begin", "write.end"]) == 0
    assert orders.taken() is None
    assert dies_of(tmp_path, ["write.end"]) == -signal.SIGKILL
    taken = orders.taken()
    assert taken is not None
    assert taken.order.point == "write.end"
    assert dies_of(tmp_path, ["write.end"]) == 0
    assert orders.taken() is None


def test_a_withdrawn_order_has_no_effect(tmp_path: Path) -> None:
    orders = KillOrders(tmp_path)
    orders.give(KillOrder("write.end", "kill"))
    orders.withdraw()
    assert dies_of(tmp_path, ["write.end"]) == 0


def test_a_process_that_took_the_order_before_its_withdrawal_is_known(tmp_path: Path) -> None:
    orders = KillOrders(tmp_path)
    orders.give(KillOrder("write.end", "kill"))
    assert dies_of(tmp_path, ["write.end"]) == -signal.SIGKILL
    taken = orders.withdraw()
    assert taken is not None
    assert taken.order.point == "write.end"


def test_a_process_that_took_an_earlier_order_is_not_counted_for_the_next(tmp_path: Path) -> None:
    orders = KillOrders(tmp_path)
    orders.give(KillOrder("write.end", "kill"))
    assert dies_of(tmp_path, ["write.end"]) == -signal.SIGKILL
    orders.give(KillOrder("read.end", "kill"))
    assert orders.taken() is None
    assert dies_of(tmp_path, ["read.end"]) == -signal.SIGKILL
    taken = orders.taken()
    assert taken is not None
    assert taken.order.point == "read.end"


def test_a_provoking_point_fails_until_the_order_is_taken(tmp_path: Path) -> None:
    orders = KillOrders(tmp_path)
    orders.give(KillOrder("abort, before", "raise", provoked_by="commit, before"))
    for _ in range(2):
        with pytest.raises(OrderedFailure, match="to reach abort"):
            orders.passes("commit, before")
    with pytest.raises(OrderedFailure):
        orders.passes("abort, before")
    orders.passes("commit, before")


def test_a_seed_draws_all_points_and_always_the_same() -> None:
    drawn = [
        [draw_order(chance, tasks_only=False) for _ in range(500)]
        for chance in map(random.Random, (7, 7))
    ]
    assert drawn[0] == drawn[1]
    points = {order.point for order in drawn[0]}
    wanted = (START_POINTS, SOURCE_POINTS, PLAN_POINTS, TASK_POINTS, COMMIT_POINTS, ABORT_POINTS)
    assert points == {point for group in wanted for point in group}
    assert {order.way for order in drawn[0]} == {
        "kill", "kill with daemon", "pause", "zombie", "raise",
    }  # fmt: skip


def test_lost_and_duplicate_records_are_reported() -> None:
    fed = [FedRecord(b"%d" % n, b"%d" % n, None, ()) for n in range(6)]
    found = [fed[0], fed[1], fed[1], fed[4], FedRecord(b"?", b"?", None, ())]
    said = difference(found, fed)
    assert "6 records went in, 5 came out; lost 3, doubled 1, of unknown origin 1" in said
    assert "from record 2 on there is [1, 4, None]" in said
