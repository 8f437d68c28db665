"""`start`: the time from starting `standalone` to "ready", on new and on existing directories."""

from __future__ import annotations

import statistics

from benchmarks.cluster import Phase, start_cluster, stop_cluster, temporary_directory
from benchmarks.report import Measured
from benchmarks.settings import Settings

_STARTS = 5


def start(settings: Settings) -> Measured:
    """Measures `count` starts of each kind, after one start that warms the file cache."""
    count = settings.count or _STARTS
    new: list[float] = []
    again: list[float] = []
    for _ in range(count + 1):
        with temporary_directory(settings.dir) as directory:
            for ready_s in (new, again):
                cluster = start_cluster(directory, settings.bookies)
                ready_s.append(cluster.ready_s)
                stop_cluster(cluster)
    more = {
        "ready_new_s": round(statistics.median(new[1:]), 3),
        "ready_new_s_max": round(max(new[1:]), 3),
        "ready_again_s": round(statistics.median(again[1:]), 3),
        "ready_again_s_max": round(max(again[1:]), 3),
    }
    return Measured(count, 0, Phase(wall_s=sum(new[1:]) + sum(again[1:])), None, more)
