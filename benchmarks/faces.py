"""`python -m benchmarks.faces`: the cost of a record with trio, with asyncio and with threads.

Starts a cluster: real processes, fsync on. Prints one JSON object per face and way to append or
read; `cpu_us` is that of the whole client process, including its background loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import trio

import stream
from benchmarks.cluster import running_cluster
from stream import aio, blocking

VALUE = bytes(100)
LIST_RECORDS = 20_000
TASKS, STEPS = 500, 20
THREADS = 20


@contextmanager
def measured(face: str, what: str, count: int) -> Iterator[None]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    yield
    wall_us = (time.perf_counter() - wall_s) / count * 1e6
    cpu_us = (time.process_time() - cpu_s) / count * 1e6
    result = {"face": face, "what": what, "count": count}
    print(json.dumps(result | {"wall_us": round(wall_us, 2), "cpu_us": round(cpu_us, 2)}))


async def measure(
    face: str,
    package: ModuleType,
    uri: str,
    records: int,
    at_once: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    """Measures a face with `await`; `at_once` runs TASKS calls of a function concurrently."""
    async with package.Namespace.connect(uri, face, create=True) as namespace:
        async with namespace.writer("s", create=True) as writer:

            async def caller() -> None:
                for _ in range(STEPS):
                    await writer.append(VALUE)

            with measured(face, "append_many", records):
                for _ in range(records // LIST_RECORDS):
                    await writer.append_many([VALUE] * LIST_RECORDS)
            with measured(face, "append_nowait", LIST_RECORDS):
                for _ in range(LIST_RECORDS):
                    while not writer.has_room:
                        await writer.wait_room()
                    writer.append_nowait(VALUE)
                await writer.flush()
            with measured(face, f"append, {TASKS} tasks", TASKS * STEPS):
                await at_once(caller)
            with measured(face, "append, one task", 500):
                for _ in range(500):
                    await writer.append(VALUE)
        async with namespace.reader("s") as reader:
            with measured(face, "batches", records):
                async for batch in reader.read_to_end():
                    batch.values()
        async with namespace.reader("s") as reader:
            with measured(face, "records", records):
                for _ in range(records):
                    await anext(reader)


def measure_blocking(uri: str, records: int) -> None:
    face = "blocking"
    with blocking.Namespace.connect(uri, face, create=True) as namespace:
        with namespace.writer("s", create=True) as writer:

            def caller() -> None:
                for _ in range(STEPS * 5):
                    writer.append(VALUE)

            with measured(face, "append_many", records):
                for _ in range(records // LIST_RECORDS):
                    writer.append_many([VALUE] * LIST_RECORDS)
            with measured(face, "append_nowait", LIST_RECORDS):
                for _ in range(LIST_RECORDS):
                    while not writer.has_room:
                        writer.wait_room()
                    writer.append_nowait(VALUE)
                writer.flush()
            with measured(face, f"append, {THREADS} threads", THREADS * STEPS * 5):
                threads = [threading.Thread(target=caller) for _ in range(THREADS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            with measured(face, "append, one thread", 500):
                for _ in range(500):
                    writer.append(VALUE)
        with namespace.reader("s") as reader, measured(face, "batches", records):
            for batch in reader.read_to_end():
                batch.values()
        with namespace.reader("s") as reader, measured(face, "records", records):
            for _ in range(records):
                next(reader)


async def in_trio(act: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(act)


async def in_asyncio(act: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(act() for _ in range(TASKS)))


def main(records: int) -> None:
    with running_cluster(3, None) as cluster:
        trio.run(measure, "trio", stream, cluster.uri, records, in_trio)
        asyncio.run(measure("aio", aio, cluster.uri, records, in_asyncio))
        measure_blocking(cluster.uri, records)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
