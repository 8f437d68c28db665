"""The lag of queries, read from the progress that Spark reports; LagListener keeps the last one.

The source reports its lag in the query's progress as `sources[].latestOffset`. Sends no request to
the cluster or to Spark. Reports of other sources are ignored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from connectors.spark.core.source_metrics import extremes, metrics

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_ENDED_MAX = 100


@dataclass(frozen=True, slots=True)
class Lag:
    """The records that the streams of a query hold after the last micro-batch."""

    records: int
    nbytes: int
    """Stored bytes of these records."""
    seconds: float
    """Age of the oldest of them; 0 if there are none."""
    lost_records: int
    """Deleted before they were read, since the query started (failOnDataLoss=false)."""
    records_by_stream: Mapping[str, int]
    """By full name, "demo/clicks#2"; without streams that have none."""
    streams: int = 0
    """The number of streams and partitions that are read, also of those without such records."""
    least: int = 0
    """The least records that one of them holds."""
    most: int = 0

    @property
    def average(self) -> float:
        """The average over all streams and partitions; 0 if there are none."""
        return self.records / self.streams if self.streams else 0.0

    @property
    def metrics(self) -> dict[str, str]:
        """The same as Kafka's source reports in `sources[].metrics`: minOffsetsBehindLatest,
        maxOffsetsBehindLatest and avgOffsetsBehindLatest, as text. An offset is a record here."""
        return metrics(self.records, self.streams, self.least, self.most)


def lag_of(progress: Mapping[str, Any] | None) -> Lag | None:
    """Returns the lag in a `StreamingQueryProgress`, such as `query.lastProgress`, or in its dict.

    Adds up all sources of the format "ledgerstream". Returns None if none of them has reported,
    or if there is no progress yet.
    """
    if progress is None:
        return None
    found = [
        report
        for source in progress.get("sources") or ()
        if (report := _report(source)) is not None
    ]
    if not found:
        return None
    by_stream: dict[str, int] = {}
    ranges: list[tuple[int, int]] = []
    for end, latest in found:
        read = end.get("streams", {})
        counts: list[int] = []
        for name, each in latest["streams"].items():
            # Otherwise reading has not begun, or an earlier stream of this name was read.
            is_begun = name in read and read[name]["created_ms"] == each["created_ms"]
            records = each["sequence"] - (read[name]["sequence"] if is_begun else each["begin"])
            counts.append(max(0, records))
            if records > 0:
                by_stream[name] = by_stream.get(name, 0) + records
        # Earlier releases did not report them; sequences may have gaps.
        reported = extremes(latest.get("metrics", {}))
        if reported is not None or counts:
            ranges.append(reported or (min(counts), max(counts)))
    lags = [latest["lag"] for _, latest in found]
    return Lag(
        records=sum(lag["records"] for lag in lags),
        nbytes=sum(lag["bytes"] for lag in lags),
        seconds=max(lag["seconds"] for lag in lags),
        lost_records=sum(latest.get("lost_records", 0) for _, latest in found),
        records_by_stream=by_stream,
        streams=sum(len(latest["streams"]) for _, latest in found),
        least=min((least for least, _ in ranges), default=0),
        most=max((most for _, most in ranges), default=0),
    )


def _report(source: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns the end of the micro-batch, and the report of the source on its streams."""
    latest = _json(source.get("latestOffset"))
    if latest is None or "lag" not in latest or "streams" not in latest:
        return None
    return _json(source.get("endOffset")) or {}, latest


def _json(text: Any) -> dict[str, Any] | None:
    """Returns a dict, or None: Spark shows offsets as objects, as JSON text, or as other text."""
    if isinstance(text, str):
        try:
            text = json.loads(text)
        except ValueError:
            return None
    return text if isinstance(text, dict) else None


@dataclass(slots=True)
class QueryMetrics:
    """The metrics of a query, from its last progress."""

    query_id: str
    name: str | None = None
    batch_id: int = -1
    records_read: int = 0
    """Since the listener was added, over all sources of the query."""
    records_per_s: float = 0.0
    """Processed per second in the last micro-batch that was not empty."""
    batch_ms: int = 0
    """Duration of the last micro-batch."""
    lag: Lag | None = None
    is_running: bool = True
    error: str | None = field(default=None)
    """The error that ended the query."""


class LagListener(StreamingQueryListener):
    """Keeps the metrics of all queries of a session: `spark.streams.addListener(LagListener())`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, QueryMetrics] = {}

    def metrics(self) -> dict[str, QueryMetrics]:
        """Returns the metrics by the query's name, or its id if it has no name.

        The last hundred queries that have ended are kept. Each next progress updates the objects.
        """
        with self._lock:
            return {each.name or each.query_id: each for each in self._queries.values()}

    def exposition(self) -> str:
        """Returns the metrics of running queries in Prometheus' text format.

        The application has to serve them.
        """
        queries = [each for each in self.metrics().values() if each.is_running]
        lines = []
        for name, kind, text, value in _EXPOSED:
            lines.append(f"# HELP {name} {text}")
            lines.append(f"# TYPE {name} {kind}")
            for query in queries:
                number = value(query)
                if number is not None:
                    label = json.dumps(query.name or query.query_id)
                    lines.append(f"{name}{{query={label}}} {number}")
        return "\n".join(lines) + "\n"

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with self._lock:
            self._query(str(event.id)).name = event.name

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        with self._lock:
            query = self._query(str(progress.id))
            query.name = progress.name
            query.batch_id = progress.batchId
            query.records_read += progress.numInputRows
            if progress.numInputRows:
                query.records_per_s = progress.processedRowsPerSecond
            query.batch_ms = progress.batchDuration
            query.lag = lag_of(json.loads(progress.json)) or query.lag

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Does nothing: no records were read, so that the last progress is still valid."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            query = self._query(str(event.id))
            query.is_running = False
            query.error = event.exception
            ended = [key for key, each in self._queries.items() if not each.is_running]
            for key in ended[:-_ENDED_MAX]:
                del self._queries[key]

    def _query(self, query_id: str) -> QueryMetrics:
        """Returns the metrics of a query, marked as running; new queries are added at the end."""
        query = self._queries.setdefault(query_id, QueryMetrics(query_id))
        query.is_running = True
        return query


_EXPOSED: tuple[tuple[str, str, str, Callable[[QueryMetrics], float | None]], ...] = (
    (
        "ledgerstream_spark_lag_records", "gauge", "Records behind the last micro-batch.",
        lambda query: None if query.lag is None else query.lag.records,
    ),
    (
        "ledgerstream_spark_lag_records_min", "gauge", "The least of one stream or partition.",
        lambda query: None if query.lag is None else query.lag.least,
    ),
    (
        "ledgerstream_spark_lag_records_avg", "gauge", "The average of all of them.",
        lambda query: None if query.lag is None else query.lag.average,
    ),
    (
        "ledgerstream_spark_lag_records_max", "gauge", "The most of one of them.",
        lambda query: None if query.lag is None else query.lag.most,
    ),
    (
        "ledgerstream_spark_lag_bytes", "gauge", "Stored bytes of these records.",
        lambda query: None if query.lag is None else query.lag.nbytes,
    ),
    (
        "ledgerstream_spark_lag_seconds", "gauge", "Age of the oldest of them.",
        lambda query: None if query.lag is None else query.lag.seconds,
    ),
    (
        "ledgerstream_spark_lost_records_total", "counter", "Deleted before they were read.",
        lambda query: None if query.lag is None else query.lag.lost_records,
    ),
    (
        "ledgerstream_spark_read_records_total", "counter", "Rows read by the query.",
        lambda query: query.records_read,
    ),
)  # fmt: skip
