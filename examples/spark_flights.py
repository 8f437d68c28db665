"""336,776 flights stream through Spark: delays per carrier and week, written back exactly once.

    python -m examples.spark_flights [--cluster CLUSTER] [--flights N] [--svg FILE]

Without the option a cluster is started, and removed at the end. A thread appends the flights as
fast as it can. Concurrently a query reads them, and writes each week that its watermark has passed
to another stream. The query is stopped, and resumed from its Spark checkpoint until the end. A
batch reads the written weeks, compares them with the flights and draws them.
Needs Java 17 and `pip install 'ledgerstream[examples,spark]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights import Flight, flights
from ledgerstream.blocking import Namespace
from ledgerstream.spark import lag_of, register, watching

FLIGHTS, DELAYS = "demo/flights", "demo/delays"
CHUNK = 5_000
WEEK_MS = 7 * 24 * 3_600_000
SHADES = ("#2c7bb6", "#7fb8d8", "#c7e3ee", "#fee8c8", "#fdbb84", "#ef6548", "#b30000")
"""From departures on time (below 0 minutes) to very late ones."""
SHADE_MINUTES = (0, 5, 10, 20, 30, 45)


@contextmanager
def cluster_of(given: str | None, directory: Path) -> Iterator[str]:
    """Yields the given address, or that of a new cluster that ends with the block."""
    if given is not None:
        yield given
        return
    command = [sys.executable, "-m", "stream.cli", "standalone", "--dir", str(directory / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as standalone:
        assert standalone.stdout is not None
        try:
            yield standalone.stdout.readline().split()[1]  # "ready sqlite://..."
        finally:
            standalone.terminate()


def append(cluster: str, chosen: list[Flight]) -> None:
    with (
        Namespace.connect(cluster, "demo", create=True) as namespace,
        namespace.writer("flights", create=True) as writer,
    ):
        for first in range(0, len(chosen), CHUNK):
            chunk = chosen[first : first + CHUNK]
            writer.append_many(
                [flight.value for flight in chunk],
                keys=[flight.key for flight in chunk],
                event_times=[flight.event_time_ms for flight in chunk],
            )


def append_all(cluster: str, all_flights: list[Flight]) -> None:
    begun_s = time.perf_counter()
    append(cluster, all_flights)
    print(f"appended {len(all_flights):,} flights in {time.perf_counter() - begun_s:.1f} s")


def delays(source: DataFrame) -> DataFrame:
    """Returns delays by week and carrier.

    A week is complete when flights of more than a day after it have been read.
    """
    flight = f.from_json(f.col("value").cast("string"), "carrier string, dep_delay double")
    by_week = (
        source.select("event_time", flight.alias("flight"))
        .withWatermark("event_time", "1 day")
        .groupBy(f.window("event_time", "7 days").alias("week"), f.col("flight.carrier"))
        .agg(f.count("*").alias("flights"), f.avg("flight.dep_delay").alias("delay"))
    )
    value = f.to_json(f.struct("carrier", f.col("week.start").alias("week"), "flights", "delay"))
    return by_week.select(
        f.col("carrier").alias("key"), f.col("week.start").alias("event_time"), value.alias("value")
    )


def start(spark: SparkSession, checkpoint: Path, *, to_end: bool = False) -> StreamingQuery:
    """Starts the query, which resumes from its Spark checkpoint.

    With `to_end` the query ends at the last record that exists when it starts.
    """
    source = (
        spark.readStream.format("ledgerstream")
        .option("startingPosition", "earliest")
        .option("columns", "event_time,value")
        .option("maxRecordsPerTrigger", 60_000)
        .load(FLIGHTS)
    )
    writer = (
        delays(source)
        .writeStream.format("ledgerstream")
        .option("stream", DELAYS)
        .option("createStreams", "true")
        .option("checkpointLocation", str(checkpoint))
        .queryName("delays")
    )
    return writer.trigger(availableNow=True).start() if to_end else writer.start()


def run(spark: SparkSession, cluster: str, all_flights: list[Flight], checkpoint: Path) -> None:
    appending = threading.Thread(target=append_all, args=(cluster, all_flights))
    appending.start()
    try:
        query = start(spark, checkpoint)
        appending.join()
        query.processAllAvailable()
        query.stop()
        reports = list(query.recentProgress)
        # A record three weeks later moves the watermark past the last week. The week of this
        # record never becomes complete.
        append(cluster, [Flight(b"", all_flights[-1].event_time_ms + 3 * WEEK_MS, b"{}")])
        query = start(spark, checkpoint, to_end=True)
        query.awaitTermination()
        reports += query.recentProgress
    finally:
        appending.join()
    records = sum(progress.numInputRows for progress in reports)
    lag = lag_of(reports[-1])
    print(f"read {records:,} records in two runs, the lag is {lag.records if lag else '?'} records")


def draw(rows: list[Row], svg: Path) -> None:
    """Draws a row per carrier and a cell per week, in shades from blue (on time) to red (late)."""
    carriers = [carrier for carrier, _ in Counter(row.carrier for row in rows).most_common()]
    weeks = sorted({row.week for row in rows})
    cells = []
    for row in rows:
        shade = SHADES[sum(row.delay >= minutes for minutes in SHADE_MINUTES)]
        x, y = 40 + 14 * weeks.index(row.week), 24 + 14 * carriers.index(row.carrier)
        note = f"{row.carrier}, week of {row.week[:10]}: {row.delay:.0f} min, {row.flights} flights"
        cells.append(
            f'<rect x="{x}" y="{y}" width="13" height="13" fill="{shade}"><title>{note}</title>'
            f"</rect>"
        )
    names = [f'<text x="8" y="{35 + 14 * n}">{name}</text>' for n, name in enumerate(carriers)]
    title = '<text x="40" y="15">Mean delay of departure from New York in 2013, by week</text>'
    size = f'width="{48 + 14 * len(weeks)}" height="{32 + 14 * len(carriers)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif"'
    svg.write_text("\n".join([f'{head} font-size="11">', title, *names, *cells, "</svg>\n"]))


def show(spark: SparkSession, all_flights: list[Flight], svg: Path) -> None:
    """Reads the weeks that the query has written, checks and draws them, and prints a table."""
    schema = "carrier string, week string, flights long, delay double"
    with watching(spark):
        found = (
            spark.read.format("ledgerstream")
            .load(DELAYS)
            .select(f.from_json(f.col("value").cast("string"), schema).alias("week"))
            .select("week.*")
            .collect()
        )
    counted: Counter[str] = Counter()
    minutes: Counter[str] = Counter()
    for row in found:
        counted[row.carrier] += row.flights
        minutes[row.carrier] += row.flights * (row.delay or 0.0)
    expected = Counter(json.loads(flight.value)["carrier"] for flight in all_flights)
    if counted != expected:
        raise SystemExit(f"the stream has {counted}, the flights are {expected}")
    for carrier, number in counted.most_common():
        mean = minutes[carrier] / number
        print(f"{carrier}  {number:7,} flights  {mean:5.1f} min  {'#' * round(mean)}")
    draw([row for row in found if row.delay is not None], svg)
    print(f"{len(found)} weeks of {len(counted)} carriers in {DELAYS}, each once; see {svg}")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--cluster")
    arguments.add_argument("--flights", type=int, default=None)
    arguments.add_argument("--svg", type=Path, default=Path("delays.svg"))
    given = arguments.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The file has January, then October to December, then the rest.
    all_flights = sorted(flights(), key=lambda flight: flight.event_time_ms)[: given.flights]
    with (
        tempfile.TemporaryDirectory() as directory,
        cluster_of(given.cluster, Path(directory)) as cluster,
    ):
        os.environ["LEDGERSTREAM_CLUSTER"] = cluster
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        register(spark)
        with Namespace.connect(cluster, "demo", create=True) as namespace:
            if "flights" in namespace.list_streams():
                raise SystemExit(
                    f"{FLIGHTS} exists already, and its flights would be counted twice. Delete it "
                    f"and {DELAYS} (ledgerstream stream delete), or use another cluster"
                )
            namespace.ensure_stream("flights")
        try:
            run(spark, cluster, all_flights, Path(directory) / "checkpoint")
            show(spark, all_flights, given.svg)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
