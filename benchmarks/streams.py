"""`streams`: many streams in one namespace, some of them written concurrently, the others idle.

Reports how fast streams are created and taken over, the cost of appending to many at once, the
number of metadata requests per takeover and per roll, and the cost of an idle stream: memory of
client and bookies, tasks, watches and CPU.
"""

from __future__ import annotations

import gc
import os
import random
import time
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from benchmarks.cluster import Phase, RunningCluster, cpu_s
from benchmarks.report import Measured, percentiles
from benchmarks.settings import Settings
from ledger.client import LedgerClient
from ledger.metastore import open_store
from ledger.metastore.base import ANY_VERSION, Change, MetadataStore, Node
from ledger.runtime.network import TcpNetwork
from stream import Namespace, StreamWriter

NAMESPACE = "bench"
_AT_ONCE = 64
_IDLE_S = 3.0
_ROLL_BYTES = 1 << 16
_LIST_RECORDS = 100
_DEFAULT_RECORDS = 2_000_000


class CountedStore:
    """A metadata store that counts its requests, by method."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        self.watches = 0

    def bind(self, path: str, data: bytes) -> None:
        self._store.bind(path, data)

    def commit_number(self) -> int | None:
        return self._store.commit_number()

    async def get(self, path: str) -> Node:
        self.calls["get"] += 1
        return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        self.calls["children"] += 1
        return await self._store.children(path)

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        self.calls["create"] += 1
        await self._store.create(path, data, is_ephemeral=is_ephemeral)

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        self.calls["put"] += 1
        return await self._store.put(path, data, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.calls["delete"] += 1
        await self._store.delete(path, version)

    async def transaction(self, changes: Sequence[Change]) -> None:
        self.calls["transaction"] += 1
        await self._store.transaction(changes)

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        self.calls["next_id"] += 1
        return await self._store.next_id(path, beyond=beyond)

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        self.calls["create_numbered"] += 1
        return await self._store.create_numbered(prefix, data)

    async def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        self.watches += 1
        self.calls["watch"] += 1
        try:
            async for node in self._store.watch(path):
                yield node
        finally:
            self.watches -= 1

    async def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        self.watches += 1
        self.calls["watch_children"] += 1
        try:
            async for names in self._store.watch_children(path):
                yield names
        finally:
            self.watches -= 1

    async def aclose(self) -> None:
        await self._store.aclose()

    def per(self, count: int, before: Counter[str]) -> dict[str, float]:
        """Returns the calls since `before`, divided by `count`."""
        return {name: round(n / count, 2) for name, n in sorted((self.calls - before).items())}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Returns the current resources. Memory is resident and anonymous: without the file cache."""

    client_bytes: int
    bookies_bytes: int
    tasks: int
    watches: int


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def footprint(cluster: RunningCluster, store: CountedStore) -> Footprint:
    gc.collect()
    return Footprint(
        client_bytes=_memory(os.getpid()),
        bookies_bytes=sum(map(_memory, cluster.server_pids)),
        tasks=trio.lowlevel.current_statistics().tasks_living,
        watches=store.watches,
    )


def growth(before: Footprint, after: Footprint, count: int) -> dict[str, float]:
    """Returns the resources that each of `count` additional streams or writers uses."""
    return {
        "client_bytes": round((after.client_bytes - before.client_bytes) / count),
        "bookies_bytes": round((after.bookies_bytes - before.bookies_bytes) / count),
        "tasks": round((after.tasks - before.tasks) / count, 3),
        "watches": round((after.watches - before.watches) / count, 3),
    }


async def for_each(names: Sequence[str], work: Callable[[str], Awaitable[object]]) -> array[float]:
    """Runs `work` for all items, some at a time; returns the duration of each in ms."""
    latencies_ms = array("d")
    waiting = iter(names)

    async def take_turns() -> None:
        for name in waiting:
            started_s = time.perf_counter()
            await work(name)
            latencies_ms.append((time.perf_counter() - started_s) * 1e3)

    async with trio.open_nursery() as nursery:
        for _ in range(_AT_ONCE):
            nursery.start_soon(take_turns)
    return latencies_ms


@asynccontextmanager
async def open_writers(
    namespace: Namespace, names: Sequence[str]
) -> AsyncIterator[tuple[dict[str, StreamWriter], array[float]]]:
    """Takes over all streams concurrently; returns the duration of each takeover."""
    async with AsyncExitStack() as stack:
        writers: dict[str, StreamWriter] = {}
        closing = trio.Event()
        nursery = await stack.enter_async_context(trio.open_nursery())

        async def hold(name: str, *, task_status: trio.TaskStatus[StreamWriter]) -> None:
            async with namespace.writer(name) as writer:
                task_status.started(writer)
                await closing.wait()

        async def begin(name: str) -> None:
            writers[name] = await nursery.start(hold, name)

        latencies_ms = await for_each(names, begin)
        yield writers, latencies_ms
        closing.set()


async def append_to_all(
    writers: Sequence[StreamWriter], value: bytes, count: int, list_records: int = _LIST_RECORDS
) -> array[float]:
    """Appends lists with each writer; returns the duration of each list."""
    latencies_ms = array("d")

    async def append(writer: StreamWriter) -> None:
        left = count // len(writers)
        while left > 0:
            size = min(list_records, left)
            left -= size
            started_s = time.perf_counter()
            await writer.append_many([value] * size)
            latencies_ms.append((time.perf_counter() - started_s) * 1e3)

    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(append, writer)
    return latencies_ms


async def roll_all(writers: Sequence[StreamWriter], value: bytes, namespace: Namespace) -> int:
    """Appends to each stream until it has rolled; returns the number of rolls."""
    await namespace.set_policy(roll_bytes=_ROLL_BYTES)
    before = sum(writer.statistics().rolls for writer in writers)

    async def fill(writer: StreamWriter) -> None:
        rolls = writer.statistics().rolls
        while writer.statistics().rolls == rolls:
            await writer.append_many([value] * 50)

    async with trio.open_nursery() as nursery:
        for writer in writers:
            nursery.start_soon(fill, writer)
    return sum(writer.statistics().rolls for writer in writers) - before


async def idle_cpu(cluster: RunningCluster) -> dict[str, float]:
    """Returns the fraction of one core that the idle client and servers use."""
    await cluster.wait_idle()
    client_s, servers_s = cpu_s(os.getpid()), sum(map(cpu_s, cluster.server_pids))
    await trio.sleep(_IDLE_S)
    return {
        "client": round((cpu_s(os.getpid()) - client_s) / _IDLE_S, 4),
        "servers": round((sum(map(cpu_s, cluster.server_pids)) - servers_s) / _IDLE_S, 4),
    }


async def streams(settings: Settings, cluster: RunningCluster) -> Measured:
    names = [f"stream-{number:06d}" for number in range(settings.streams)]
    written = names[:: max(1, len(names) // settings.written)][: settings.written]
    count = settings.count or _DEFAULT_RECORDS
    value = os.urandom(settings.size)
    more: dict[str, object] = {}
    async with (
        open_store(cluster.uri) as plain,
        LedgerClient(
            store := CountedStore(plain), TcpNetwork(), rng=random.SystemRandom(),
            now_ms=lambda: time.time_ns() // 1_000_000,
        ) as client,
    ):  # fmt: skip
        namespace = Namespace(client, NAMESPACE)
        await namespace.ensure(**settings.replication)
        more["idle_cpu_without_streams"] = await idle_cpu(cluster)

        # The cost of an idle stream is measured on the second half, when bounded caches are full.
        half = len(names) // 2
        asked, started_s = store.calls.copy(), time.perf_counter()
        latencies_ms = await for_each(names[:half], namespace.create_stream)
        middle = footprint(cluster, store)
        latencies_ms += await for_each(names[half:], namespace.create_stream)
        more["created_per_s"] = round(len(names) / (time.perf_counter() - started_s))
        more["create_ms"] = percentiles(latencies_ms)
        more["metadata_calls_per_create"] = store.per(len(names), asked)
        created = footprint(cluster, store)
        more["per_idle_stream"] = growth(middle, created, len(names) - half)
        more["idle_cpu_with_streams"] = await idle_cpu(cluster)
        started_s = time.perf_counter()
        assert len(await namespace.list_streams()) == len(names)
        more["list_s"] = round(time.perf_counter() - started_s, 4)

        asked, started_s = store.calls.copy(), time.perf_counter()
        async with open_writers(namespace, written) as (writers, opening_ms):
            more["takeovers_per_s"] = round(len(written) / (time.perf_counter() - started_s))
            more["takeover_ms"] = percentiles(opening_ms)
            more["metadata_calls_per_takeover"] = store.per(len(written), asked)
            await append_to_all(list(writers.values()), value, count // 20)
            more["idle_cpu_with_writers"] = await idle_cpu(cluster)
            more["with_writers"] = asdict(footprint(cluster, store))
            more["per_open_writer"] = growth(created, footprint(cluster, store), len(written))
            asked = store.calls.copy()
            phase: Phase
            with cluster.measured() as phase:
                appending_ms = await append_to_all(list(writers.values()), value, count)
            more["metadata_calls_while_appending"] = dict(store.calls - asked)
            asked, started_s = store.calls.copy(), time.perf_counter()
            rolls = await roll_all(list(writers.values()), value, namespace)
            more["rolls_per_s"] = round(rolls / (time.perf_counter() - started_s))
            more["metadata_calls_per_roll"] = store.per(rolls, asked)
            asked, started_s = store.calls.copy(), time.perf_counter()
        more["closed_per_s"] = round(len(written) / (time.perf_counter() - started_s))
        more["metadata_calls_per_close"] = store.per(len(written), asked)
        await cluster.wait_idle()
        more["after_writers"] = asdict(footprint(cluster, store))
    return Measured(count, count * settings.size, phase, appending_ms, more)
