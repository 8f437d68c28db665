"""Plots a soak as SVG: charts of memory, space and latencies over time, one above the other."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.charts import Chart, Line, svg
from benchmarks.soak_verdict import Sample

_MIB = 1 << 20


def plot(samples: Sequence[Sample]) -> str:
    """The whole file."""
    bookies = range(len(samples[0].rss_mib))
    charts: list[tuple[str, list[Line]]] = [
        (
            "memory of each bookie (RSS), MiB",
            [Line(f"bookie {n + 1}", [one.rss_mib[n] for one in samples]) for n in bookies],
        ),
        (
            "disk, MiB",
            [
                Line("live data", [one.live_bytes / _MIB for one in samples]),
                *(
                    Line(
                        f"bookie {n + 1}: logs, index",
                        [one.log_bytes[n] / _MIB for one in samples],
                    )
                    for n in bookies
                ),
                Line("journals, most", [max(one.journal_bytes) / _MIB for one in samples]),
            ],
        ),
        (
            "latency, ms",
            [
                Line("append p50", [one.append_p50_ms for one in samples]),
                Line("append p99", [one.append_p99_ms for one in samples]),
                Line("tail p50", [one.tail_p50_ms for one in samples]),
                Line("tail p99", [one.tail_p99_ms for one in samples]),
            ],
        ),
    ]
    seconds = [one.seconds for one in samples]
    return svg([Chart(title, seconds, lines, _minutes) for title, lines in charts])


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"
