"""The example of docs/spark.md runs in one command, and checks itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.session import spark_environment, spark_home
from tests.spark.streams import Streams
from tests.tidy.checkout import ROOT

_TIMEOUT_S = 900
FLIGHTS = 20_000


def run(directory: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.spark_flights", *arguments],
        env=spark_environment(SPARK_HOME=str(spark_home(directory))), cwd=ROOT,
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_flights_are_aggregated_exactly_once(streams: Streams, tmp_path: Path) -> None:
    svg = tmp_path / "delays.svg"
    lines = run(
        tmp_path, "--cluster", streams.cluster, "--flights", str(FLIGHTS), "--svg", str(svg)
    )
    assert lines[0].startswith(f"appended {FLIGHTS:,} flights in ")
    assert lines[1] == f"read {FLIGHTS + 1:,} records in two runs, the lag is 0 records"
    counts = [int(found[1].replace(",", "")) for line in lines if (found := _COUNT.match(line))]
    assert sum(counts) == FLIGHTS
    weeks = re.match(r"(\d+) weeks of (\d+) carriers in demo/delays, each once", lines[-1])
    assert weeks is not None
    assert len(streams.values("demo/delays")) == int(weeks[1])
    assert int(weeks[2]) == len(counts)
    picture = svg.read_text(encoding="utf-8")
    assert picture.count("<rect ") == int(weeks[1])


_COUNT = re.compile(r"[0-9A-Z]{2} +([\d,]+) flights ")


@pytest.mark.slow
def test_all_flights_with_a_cluster_of_its_own(tmp_path: Path) -> None:
    lines = run(tmp_path, "--svg", str(tmp_path / "delays.svg"))
    assert lines[0].startswith("appended 336,776 flights in ")
    counts = [int(found[1].replace(",", "")) for line in lines if (found := _COUNT.match(line))]
    assert sum(counts) == 336_776
