"""The figures of a source under the names of Spark's Kafka connector.

Kafka's source reports them in `sources[].metrics` of a query's progress. Spark asks only sources in
the JVM for metrics, so that ours reports them in `sources[].latestOffset`.
"""

from __future__ import annotations

from collections.abc import Mapping

_LEAST, _MOST, _AVERAGE = (
    "minOffsetsBehindLatest",
    "maxOffsetsBehindLatest",
    "avgOffsetsBehindLatest",
)


def metrics(records: int, streams: int, least: int, most: int) -> dict[str, str]:
    """Returns the records behind: the least, the most and the average of a number of streams.

    As text, as Kafka's source does; empty if there is no stream.
    """
    if not streams:
        return {}
    return {_LEAST: str(least), _MOST: str(most), _AVERAGE: str(records / streams)}


def extremes(reported: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the least and the most of what `metrics` has made; None if it is empty."""
    return (int(reported[_LEAST]), int(reported[_MOST])) if reported else None
