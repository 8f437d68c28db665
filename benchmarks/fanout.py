"""`fanout`: many readers in one process follow one stream that is written at a fixed rate.

The main result is CPU time per *delivered* record: that of all processes, including the writer and
the bookies, divided by records times readers. The latency of a batch is from just before the append
of its oldest record until a reader has received it, and is counted for all of its records.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import trio

from benchmarks.append import NAMESPACE, STREAM
from benchmarks.children import child
from benchmarks.cluster import RunningCluster
from benchmarks.disk import fdatasync_beside
from benchmarks.fixed_rate import STAMP, append_at_rate
from benchmarks.report import Measured, percentiles_of
from benchmarks.settings import Settings
from stream import EARLIEST, Namespace, StreamReader

_DEFAULT_SECONDS = 10
_STEP_MS = 0.01
"""The resolution of latencies: to report each one would cost more than to deliver the record."""


async def fanout(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or settings.rate * _DEFAULT_SECONDS
    warmup = max(1, int(count * settings.warmup))
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        await namespace.create_stream(STREAM)
        arguments = [cluster.uri, warmup, count, settings.readers, settings.shape]
        async with (
            namespace.writer(STREAM) as writer,
            child("fanout", *arguments) as readers,
        ):
            await append_at_rate(writer, settings.size, warmup, settings.rate)
            await readers.receive()  # all have seen the warm-up
            cluster.client_pids.append(readers.pid)
            entries = writer.statistics().entries
            with fdatasync_beside(cluster.directory) as disk, cluster.measured() as phase:
                await append_at_rate(writer, settings.size, count, settings.rate)
                said = await readers.line()
            entries = writer.statistics().entries - entries
    seen = json.loads(said)
    counts = {int(step) * _STEP_MS: records for step, records in seen["latencies"].items()}
    cpu_s = phase.client_cpu_s + phase.bookies_cpu_s
    delivered = count * settings.readers
    more = {
        **percentiles_of(counts),
        "delivered": delivered,
        "cpu_us_per_delivered": float(f"{cpu_s * 1e6 / delivered:.3g}"),
        "records_per_entry": round(count / max(entries, 1), 1),
        "batches_fetched": seen["batches"],
        "batches_delivered": seen["delivered"],
        **disk,
    }
    return Measured(count, count * settings.size, phase, more=more)


async def _read_all(cluster: str, warmup: int, count: int, readers: int, shape: str) -> None:
    latencies: Counter[int] = Counter()
    steps_per_s = 1000 / _STEP_MS
    warm: list[int] = []
    done = trio.Event()
    is_done: list[int] = []

    def heard(number: int, seen: int) -> None:
        """Counts the records of a reader, and reports the total after each batch."""
        if seen >= warmup + count:
            is_done.append(number)
            if len(is_done) == readers:
                done.set()
        elif seen >= warmup and number not in warm:
            warm.append(number)
            if len(warm) == readers:
                sys.stdout.write("warm")
                sys.stdout.flush()

    async def follow(number: int, reader: StreamReader) -> None:
        seen = 0
        async for batch in reader.batches():
            if seen >= warmup:
                stamp_s: float = STAMP.unpack_from(batch.value_column.data)[0]
                latencies[int((time.monotonic() - stamp_s) * steps_per_s)] += len(batch)
            seen += len(batch)
            if seen <= warmup or seen >= warmup + count:
                heard(number, seen)

    async def follow_records(number: int, reader: StreamReader) -> None:
        seen, entry = 0, -1
        async for record in reader:
            seen += 1
            if record.position.entry != entry:
                entry = record.position.entry
                if seen > warmup:
                    stamp_s = STAMP.unpack_from(record.value)[0]
                    latencies[int((time.monotonic() - stamp_s) * steps_per_s)] += 1
            if seen == warmup or seen == warmup + count:
                heard(number, seen)

    async with Namespace.connect(cluster, NAMESPACE) as namespace, trio.open_nursery() as nursery:

        async def open_and_follow(number: int) -> None:
            async with namespace.reader(STREAM, start=EARLIEST) as reader:
                await (follow_records if shape == "records" else follow)(number, reader)

        for number in range(readers):
            nursery.start_soon(open_and_follow, number)
        await done.wait()
        counts = namespace.tails.counts
        said = {"batches": counts.batches, "delivered": counts.delivered, "latencies": latencies}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    warmup, count, readers = map(int, sys.argv[2:5])
    trio.run(_read_all, sys.argv[1], warmup, count, readers, sys.argv[5])
