"""`writers`: the same number of records through one writer, and through many, each of a stream.

All writers are in one process and append lists of ten records at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from benchmarks.append import NAMESPACE
from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.streams import append_to_all, for_each, open_writers
from stream import Namespace

WRITERS: Final = (1, 10, 100, 1_000)
_COUNT: Final = 200_000
_LIST_RECORDS: Final = 10


async def writers(
    settings: Settings, cluster: RunningCluster, report: Callable[[Settings, Measured], None]
) -> None:
    value = os.urandom(settings.size)
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        for many in [settings.writers] if settings.writers else WRITERS:
            count = (settings.count or _COUNT) // many * many
            names = [f"of-{many}-{number}" for number in range(many)]
            await for_each(names, namespace.create_stream)
            async with open_writers(namespace, names) as (opened, _):
                writers = list(opened.values())
                before = sum(writer.statistics().entries for writer in writers)
                await append_to_all(writers, value, max(many, count // 10), _LIST_RECORDS)
                await cluster.wait_idle()
                with cluster.measured() as phase:
                    took_ms = await append_to_all(writers, value, count, _LIST_RECORDS)
                entries = sum(writer.statistics().entries for writer in writers) - before
            more = {"records_per_entry": round(count * 1.1 / max(entries, 1), 1)}
            found = Measured(count, count * settings.size, phase, took_ms, more)
            report(replace(settings, writers=many), found)
