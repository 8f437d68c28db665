"""The lag of a query is read from its progress, and a listener keeps it."""

from __future__ import annotations

import json
import uuid
from types import SimpleNamespace
from typing import Any

from connectors.spark.monitoring.lag import Lag, LagListener, lag_of


def offset(sequence: int, begin: int = 0) -> dict[str, int]:
    return {"segment": 1, "entry": 0, "slot": 0, "sequence": sequence, "nbytes": 0, "begin": begin,
            "created_ms": 5}  # fmt: skip


def source(*, lost: int = 0, as_text: bool = True) -> dict[str, Any]:
    end = {"version": 1, "streams": {"demo/a": offset(90), "demo/b#1": offset(7)}}
    latest = {
        "version": 1,
        "streams": {"demo/a": offset(100), "demo/b#1": offset(7), "demo/new": offset(30, 25)},
        "lag": {"records": 15, "bytes": 1500, "seconds": 3},
        "metrics": {
            "minOffsetsBehindLatest": "0",
            "maxOffsetsBehindLatest": "10",
            "avgOffsetsBehindLatest": "5.0",
        },
        "lost_records": lost,
    }
    if not as_text:
        return {"endOffset": end, "latestOffset": latest}
    return {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}


def progress(*sources: dict[str, Any], rows: int = 40) -> dict[str, Any]:
    return {"sources": list(sources), "numInputRows": rows}


EXPECTED = Lag(15, 1500, 3, 0, {"demo/a": 10, "demo/new": 5}, streams=3, least=0, most=10)


def test_lag_is_read_from_progress_in_both_forms() -> None:
    assert lag_of(progress(source())) == EXPECTED
    assert lag_of(progress(source(as_text=False))) == EXPECTED


def test_several_sources_are_added_up_and_others_ignored() -> None:
    found = lag_of(
        progress(source(lost=2), {"latestOffset": "rate", "endOffset": "5"}, source(lost=1))
    )
    expected = Lag(30, 3000, 3, 3, {"demo/a": 20, "demo/new": 10}, streams=6, least=0, most=10)
    assert found == expected


def test_the_lag_has_the_metrics_of_kafkas_source() -> None:
    found = lag_of(progress(source()))
    assert found is not None
    assert found.metrics == source(as_text=False)["latestOffset"]["metrics"]
    assert (found.average, found.least, found.most) == (5.0, 0, 10)
    assert Lag(0, 0, 0.0, 0, {}).metrics == {}  # no stream matches the pattern yet


def test_a_report_without_metrics_is_counted_by_sequences() -> None:
    earlier = source(as_text=False)
    del earlier["latestOffset"]["metrics"]
    assert lag_of(progress(earlier)) == EXPECTED


def test_there_is_no_lag_without_a_report() -> None:
    assert lag_of({}) is None
    assert lag_of(None) is None  # as `lastProgress` before the first micro-batch
    assert lag_of(progress()) is None
    for latest in (None, "null", "7", "{}", '{"streams": {}}', "not json"):
        assert lag_of(progress({"latestOffset": latest})) is None
    first = {"latestOffset": source()["latestOffset"], "endOffset": None}
    found = lag_of(progress(first))
    assert found is not None
    assert found.records_by_stream == {"demo/a": 100, "demo/b#1": 7, "demo/new": 5}


def test_another_stream_of_the_same_name_counts_from_where_it_begins() -> None:
    recreated = {**offset(30, 28), "created_ms": 6}
    latest = {
        "version": 1, "streams": {"demo/a": recreated},
        "lag": {"records": 2, "bytes": 20, "seconds": 0},
    }  # fmt: skip
    end = {"version": 1, "streams": {"demo/a": offset(10)}}
    found = lag_of(progress({"endOffset": end, "latestOffset": latest}))
    assert found is not None
    assert found.records_by_stream == {"demo/a": 2}


QUERY = uuid.UUID(int=7)


def event(query: uuid.UUID = QUERY, name: str | None = "copy", *sources: dict[str, Any]) -> Any:
    """Makes a progress event with the fields that the listener reads."""
    report = SimpleNamespace(
        id=query, name=name, batchId=4, numInputRows=40, processedRowsPerSecond=80.0,
        batchDuration=500, json=json.dumps(progress(*sources)),
    )  # fmt: skip
    return SimpleNamespace(progress=report)


def started(query: uuid.UUID = QUERY, name: str | None = "copy") -> Any:
    return SimpleNamespace(id=query, name=name)


def ended(query: uuid.UUID = QUERY, exception: str | None = None) -> Any:
    return SimpleNamespace(id=query, exception=exception)


def test_a_listener_keeps_the_metrics_of_queries() -> None:
    listener = LagListener()
    listener.onQueryStarted(started())
    assert listener.metrics()["copy"].lag is None
    listener.onQueryProgress(event(QUERY, "copy", source(lost=9)))
    listener.onQueryProgress(event(QUERY, "copy"))
    found = listener.metrics()["copy"]
    assert (found.batch_id, found.records_read, found.batch_ms) == (4, 80, 500)
    assert found.records_per_s == 80.0
    assert found.lag is not None
    assert (found.lag.records, found.lag.lost_records) == (15, 9)
    text = listener.exposition().splitlines()
    assert 'ledgerstream_spark_lag_records{query="copy"} 15' in text
    assert 'ledgerstream_spark_lag_records_min{query="copy"} 0' in text
    assert 'ledgerstream_spark_lag_records_avg{query="copy"} 5.0' in text
    assert 'ledgerstream_spark_lag_records_max{query="copy"} 10' in text
    assert 'ledgerstream_spark_lost_records_total{query="copy"} 9' in text
    assert "# TYPE ledgerstream_spark_lag_seconds gauge" in text


def test_ended_queries_are_kept_up_to_a_limit() -> None:
    listener = LagListener()
    for number in range(300):
        query = uuid.UUID(int=number)
        listener.onQueryStarted(started(query, None))
        listener.onQueryTerminated(ended(query, f"error {number}"))
    kept = listener.metrics()
    assert len(kept) == 100
    newest = kept[str(uuid.UUID(int=299))]
    assert (newest.is_running, newest.error) == (False, "error 299")
    assert "query=" not in listener.exposition()
    listener.onQueryStarted(started(uuid.UUID(int=299), None))
    assert listener.metrics()[str(uuid.UUID(int=299))].is_running
