"""A driver that keeps queries stream -> Spark -> stream running.

Run it by `python -m tests.spark.kills.pipeline`.

Starts each query again from its Spark checkpoint whenever it ends, until the command to finish:
then each query reads the rest, and the process ends. The process and its children may be killed at
any time. It writes events to stdout as JSON lines, and reads from stdin first the queries, then
`{"restart": name}`, and `{"finish": true}` at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.hosts import start_two_hosts
from tests.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TWO_HOSTS = "two hosts"
"""The name of a master with executors on two hosts (hosts.py)."""
_TRIES_TO_FINISH = 5
_TRIES_TO_WARM_UP = 3
_WAIT_S = 0.3
_STARTING_AT_ONCE = 2
"""Queries that start at once; Spark gives the process of a source ten seconds to start."""


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """One query.

    Args:
        shape: "plain"; "fan-out": each partition of the input to a stream of its own, which is
            `target` and the partition's number; "shuffled": sorted again by the sink.
        read, write: options of the format "killable".
    """

    name: str
    shape: str
    checkpoint: str
    target: str
    read: dict[str, str] = field(default_factory=dict)
    write: dict[str, str] = field(default_factory=dict)


def rows_of(spark: SparkSession, spec: QuerySpec) -> DataFrame:
    """Returns the rows that the query writes."""
    from pyspark.sql import functions as f

    read = spark.readStream.format("killable").options(**spec.read).load()
    columns = ["value", "key", "event_time", "headers"]
    if spec.shape == "fan-out":
        target = f.concat(f.lit(spec.target), f.col("partition").cast("string"))
        return read.select(*columns, target.alias("stream"))
    if spec.shape == "shuffled":
        return read.select(*columns).repartition(2)
    return read.select(*columns)


def start(spark: SparkSession, spec: QuerySpec, trigger: dict[str, Any]) -> StreamingQuery:
    writer = rows_of(spark, spec).writeStream.format("killable").options(**spec.write)
    writer = writer.option("checkpointLocation", spec.checkpoint).queryName(spec.name)
    return writer.trigger(**trigger).start()


def say(event: str, **facts: Any) -> None:
    # A single write, because many threads report events.
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


class RunningQuery(threading.Thread):
    """Keeps one query running."""

    def __init__(
        self,
        spark: SparkSession,
        spec: QuerySpec,
        finishing: threading.Event,
        starting: threading.Semaphore,
    ) -> None:
        super().__init__(name=spec.name, daemon=True)
        self._starting = starting
        self._spark = spark
        self._spec = spec
        self._finishing = finishing
        self.restarting = threading.Event()

    def run(self) -> None:
        # Spark searches a Python sink in the thread's active session, which this call sets.
        self._spark.createDataFrame([], "nothing int")
        while not self._finishing.is_set():
            self._attempt({"processingTime": "0 seconds"})
        for _ in range(_TRIES_TO_FINISH):
            if self._attempt({"availableNow": True}):
                say("finished", query=self._spec.name)
                return
        say("unfinished", query=self._spec.name)

    def _attempt(self, trigger: dict[str, Any]) -> bool:
        """Runs the query; returns whether it ended without an error."""
        ends_by_itself = self._finishing.is_set()
        self.restarting.clear()
        # The machine's clock, by which the controller judges which drivers ran at the same time.
        began_s = time.monotonic()
        try:
            query = self._start(trigger)
            say("started", query=self._spec.name)
            while not query.awaitTermination(_WAIT_S):  # type: ignore[arg-type]
                if self.restarting.is_set() or (self._finishing.is_set() and not ends_by_itself):
                    query.stop()
        except Exception as error:  # noqa: BLE001 - the controller judges which errors a kill explains
            say("ended", query=self._spec.name, error=str(error), began_s=began_s)
            return False
        return True

    def _start(self, trigger: dict[str, Any]) -> StreamingQuery:
        with self._starting:
            query = start(self._spark, self._spec, trigger)
            while query.isActive and query.status["message"].startswith("Initializing"):
                time.sleep(0.05)  # Spark has no notification when its sources have started
            return query


def _warm_up(spark: SparkSession, spec: QuerySpec) -> None:
    """Runs the warm-up query, with retries.

    It tests nothing, and faults of others may disturb it: a process that is stopped during a change
    locks the metadata file for longer than others wait.
    """
    from pyspark.errors import PySparkException

    for left in reversed(range(_TRIES_TO_WARM_UP)):
        try:
            start(spark, spec, {"availableNow": True}).awaitTermination()
        except PySparkException:
            if not left:
                raise
        else:
            return


def run_driver(
    directory: Path, master: str, settings: dict[str, str], warm_up: QuerySpec | None
) -> None:
    """Runs the driver; `warm_up` runs before it is ready, because the first query takes long."""
    chosen = start_two_hosts if master == TWO_HOSTS else master
    with spark_session(directory, settings, master=chosen) as spark:
        from tests.spark.kills.killable_source import KillableDataSource

        spark.dataSource.register(KillableDataSource)
        if warm_up is not None:
            _warm_up(spark, warm_up)
        # A spare driver costs its start only: it waits here for the queries on stdin.
        say("ready", jvm=spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
        line = sys.stdin.readline()
        if not line:
            return
        finishing = threading.Event()
        specs = [QuerySpec(**spec) for spec in json.loads(line)]
        starting = threading.Semaphore(_STARTING_AT_ONCE)
        queries = [RunningQuery(spark, spec, finishing, starting) for spec in specs]
        for query in queries:
            query.start()
        for line in sys.stdin:
            command = json.loads(line)
            if command.get("finish"):
                break
            next(query for query in queries if query.name == command["restart"]).restarting.set()
        finishing.set()
        for query in queries:
            query.join()
        say("done")


def line_of(specs: list[QuerySpec]) -> str:
    """Returns the first line for a driver: its queries."""
    return json.dumps([asdict(spec) for spec in specs]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills.pipeline")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--master", default="local[2,2]")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--warm-up", type=json.loads)
    options = parser.parse_args()
    warm_up = QuerySpec(**options.warm_up) if options.warm_up else None
    run_driver(options.directory, options.master, options.settings, warm_up)


if __name__ == "__main__":
    main()
