"""`record-size`: lists of records appended to a stream, and read again, by the size of a record.

One result for each size: about 200 MB, at most two million records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from benchmarks.append import NAMESPACE, append
from benchmarks.catchup import read_records
from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from stream import Namespace

SIZES: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
_BYTES: Final = 200_000_000
_RECORDS_MAX: Final = 2_000_000


async def record_size(
    settings: Settings, cluster: RunningCluster, report: Callable[[Settings, Measured], None]
) -> None:
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        for size in SIZES:
            count = settings.count or min(_BYTES // size, _RECORDS_MAX)
            warmup = settings.warmup if size == SIZES[0] else 0.0  # once for the journals
            chosen = replace(
                settings, size=size, count=count, warmup=warmup, mode="many", callers=1
            )
            appended = await append(chosen, cluster, f"of-{size}")
            await cluster.wait_idle()
            with cluster.measured() as phase:
                nbytes = await read_records(namespace, chosen, count, f"of-{size}")
            cpu_s = phase.client_cpu_s + phase.bookies_cpu_s
            more = {
                **(appended.more or {}),
                "read_cpu_us_per_record": float(f"{cpu_s * 1e6 / count:.3g}"),
                "read_mb_per_s": round(nbytes / phase.wall_s / 1e6, 2),
            }
            report(chosen, Measured(count, appended.nbytes, appended.phase, None, more))
