"""`segments`: what streams of 100, 10,000 and 1,000,000 segments cost.

The metadata of most segments is written by the store's own functions, without ledgers, hundreds at
a time; the first segment, one in the middle and the newest have records. Each operation is done by
a client that has read nothing before, `_REPEATS` times, by turns for each size so that other load
on the machine affects all: CPU of the client, requests of metadata, and their bytes. The janitor's
search for ledgers that nothing names is not part of `sweep`: it lists all ledgers of the cluster.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.streams import CountedStore
from ledger.client import LedgerClient
from ledger.metastore import open_store
from ledger.metastore.base import ANY_VERSION, Change, Create, MetadataStore, Node, Put
from ledger.runtime.network import TcpNetwork
from stream import EARLIEST, FromSequence, Namespace
from stream.core.metadata.format import forget_streams
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.sinks import committed
from stream.retention.reclaim import apply_retention, read_stream_version
from stream.store.streams import StreamStore

NAMESPACE: Final = "bench"
_SIZES: Final = (100, 10_000, 1_000_000)
_AT_ONCE: Final = 1_000
_REPEATS: Final = 10
_RECORDS: Final = 10
_ROLL_BYTES: Final = 1 << 16


class MeteredStore(CountedStore):
    """A store that also counts the bytes of nodes that were read and written."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.bytes_read = 0
        self.bytes_written = 0

    async def get(self, path: str) -> Node:
        node = await super().get(path)
        self.bytes_read += len(node.data)
        return node

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        self.bytes_written += len(data)
        return await super().put(path, data, version)

    async def transaction(self, changes: Sequence[Change]) -> None:
        self.bytes_written += sum(len(c.data) for c in changes if isinstance(c, Create | Put))
        await super().transaction(changes)


@dataclass(slots=True)
class _Cost:
    cpu_s: float = 0.0
    calls: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def shown(self) -> dict[str, float]:
        return {
            "cpu_ms": round(self.cpu_s * 1e3 / _REPEATS, 3),
            "calls": round(self.calls / _REPEATS, 1),
            "bytes_read": round(self.bytes_read / _REPEATS),
            "bytes_written": round(self.bytes_written / _REPEATS),
        }


@asynccontextmanager
async def fresh_client(plain: MetadataStore) -> AsyncIterator[tuple[Namespace, MeteredStore]]:
    """Yields a namespace whose client has read nothing."""
    store = MeteredStore(plain)
    forget_streams()
    client = LedgerClient(
        store, TcpNetwork(), rng=random.SystemRandom(), now_ms=lambda: time.time_ns() // 1_000_000
    )
    async with client:
        yield Namespace(client, NAMESPACE), store


async def make_stream(namespace: Namespace, name: str, segments: int) -> None:
    """Makes a stream of `segments` segments: the first, one in the middle and the last have
    records."""
    await namespace.create_stream(name)
    streams, made, ledger_id = namespace.store, 0, 1 << 40

    async def write() -> None:
        async with namespace.writer(name) as writer:
            await writer.append_many([b"x" * 100] * _RECORDS)

    for upto in (segments // 2, segments - 1):
        await write()
        made += 1
        while made < upto:
            count = min(_AT_ONCE, upto - made)
            now_ms = namespace.client.now_ms()
            ends = [
                (ledger_id + n, SegmentEnd(0, _RECORDS, 1000, now_ms, now_ms)) for n in range(count)
            ]

            def grown(
                stream: StreamMetadata,
                ends: Sequence[tuple[int, SegmentEnd]] = ends,
                now_ms: int = now_ms,
            ) -> StreamMetadata:
                return committed(stream, ends, now_ms)

            await streams.update_stream(NAMESPACE, name, grown)
            made, ledger_id = made + count, ledger_id + count
    await write()


async def _open_writer(namespace: Namespace, name: str, middle: int) -> None:
    async with namespace.writer(name):
        pass


async def _first(namespace: Namespace, name: str, middle: int) -> None:
    async with namespace.reader(name, start=EARLIEST) as reader:
        await anext(reader.batches())


async def _middle(namespace: Namespace, name: str, middle: int) -> None:
    async with namespace.reader(name, start=FromSequence(middle)) as reader:
        await anext(reader.batches())


async def _show(namespace: Namespace, name: str, middle: int) -> None:
    await namespace.info(name)


async def _sweep(namespace: Namespace, name: str, middle: int) -> None:
    seen = await read_stream_version(StreamStore(namespace.client.store), NAMESPACE, name)
    policy = replace(seen.policy, retention_bytes=1 << 60, retention_ms=1 << 50)
    await apply_retention(namespace.client, NAMESPACE, seen._replace(policy=policy))


_OPERATIONS: Final[dict[str, Callable[[Namespace, str, int], Awaitable[None]]]] = {
    "open_writer": _open_writer,
    "first_record": _first,
    "middle": _middle,
    "show": _show,
    "sweep": _sweep,
}


async def segments(
    settings: Settings, cluster: RunningCluster, report: Callable[[Settings, Measured], None]
) -> None:
    sizes = [size for size in _SIZES if size <= (settings.count or _SIZES[1])]
    costs = {size: {what: _Cost() for what in (*_OPERATIONS, "roll")} for size in sizes}
    made_s: dict[int, float] = {}
    async with open_store(cluster.uri) as plain:
        async with fresh_client(plain) as (namespace, _):
            await namespace.ensure(roll_bytes=_ROLL_BYTES, **settings.replication)
            for size in sizes:
                started_s = time.perf_counter()
                await make_stream(namespace, f"s{size}", size)
                made_s[size] = round(time.perf_counter() - started_s, 2)
        with cluster.measured() as phase:
            for _ in range(_REPEATS):
                for size in sizes:
                    for what, operation in _OPERATIONS.items():
                        await _measured(plain, costs[size][what], operation, size)
                    await _rolled(plain, costs[size]["roll"], size)
    for size, found in costs.items():
        more: dict[str, Any] = {what: cost.shown() for what, cost in found.items()}
        more |= {"made_s": made_s[size], "segments": size}
        report(settings, Measured(_REPEATS, 0, phase, more=more))


async def _measured(
    plain: MetadataStore,
    cost: _Cost,
    operation: Callable[[Namespace, str, int], Awaitable[None]],
    size: int,
) -> None:
    async with fresh_client(plain) as (namespace, store):
        calls, read, written = store.calls.total(), store.bytes_read, store.bytes_written
        started_s = time.process_time()
        await operation(namespace, f"s{size}", size * _RECORDS // 2)
        cost.cpu_s += time.process_time() - started_s
        cost.calls += store.calls.total() - calls
        cost.bytes_read += store.bytes_read - read
        cost.bytes_written += store.bytes_written - written


async def _rolled(plain: MetadataStore, cost: _Cost, size: int) -> None:
    values = [os.urandom(100)] * 50
    async with (
        fresh_client(plain) as (namespace, store),
        namespace.writer(f"s{size}") as writer,
    ):
        await writer.append_many(values)
        calls, read, written = store.calls.total(), store.bytes_read, store.bytes_written
        started_s = time.process_time()
        while not writer.statistics().rolls:
            await writer.append_many(values)
        cost.cpu_s += time.process_time() - started_s
        cost.calls += store.calls.total() - calls
        cost.bytes_read += store.bytes_read - read
        cost.bytes_written += store.bytes_written - written
