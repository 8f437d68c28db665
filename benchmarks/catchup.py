"""`catchup`: reads an existing stream from its beginning to its end.

batches: columnar batches, with the values as a list of bytes. records: one object per record.
"""

from __future__ import annotations

import os

from benchmarks.append import NAMESPACE, STREAM, append_many
from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from stream import EARLIEST, Namespace

_DEFAULT_COUNTS = {"batches": 4_000_000, "records": 2_000_000}


async def read_records(
    namespace: Namespace, settings: Settings, count: int, stream: str = STREAM
) -> int:
    """Reads `count` records from the beginning; returns the bytes of their values."""
    nbytes = seen = 0
    async with namespace.reader(stream, start=EARLIEST) as reader:
        if settings.shape == "records":
            async for record in reader:
                nbytes += len(record.value)
                seen += 1
                if seen == count:
                    break
            return nbytes
        async for batch in reader.batches():
            values = batch.values()
            nbytes += sum(map(len, values))
            seen += len(values)
            if seen >= count:
                break
    return nbytes


async def catchup(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or _DEFAULT_COUNTS[settings.shape]
    value = os.urandom(settings.size)
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        async with namespace.writer(STREAM, create=True) as writer:
            await append_many(writer, value, count)
        await read_records(namespace, settings, max(1, int(count * settings.warmup)))
        await cluster.wait_idle()
        with cluster.measured() as phase:
            nbytes = await read_records(namespace, settings, count)
    assert nbytes >= count * settings.size, "every record was read"
    return Measured(count, nbytes, phase)
