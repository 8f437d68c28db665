"""Helpers for consumer groups on a simulated cluster: streams, and members that record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from bookie.testing import SimCluster
from ledger.client import LedgerClient
from stream import Consumer, Namespace

PARTITIONS = 4


async def write(namespace: Namespace, prefix: str, count: int = 5) -> set[bytes]:
    """Appends `count` records to each partition; returns their values."""
    values = set()
    for partition in await namespace.partitions("s"):
        async with namespace.writer(partition) as writer:
            sent = [f"{partition}/{prefix}{number}".encode() for number in range(count)]
            await writer.append_many(sent)
            values.update(sent)
    return values


@asynccontextmanager
async def a_stream(
    cluster: SimCluster, partitions: int | None = PARTITIONS
) -> AsyncIterator[Namespace]:
    async with cluster.client("owner") as client:
        namespace = Namespace(client, "n")
        await namespace.ensure(batch_bytes=1)
        if partitions is None:
            await namespace.create_stream("s")
        else:
            await namespace.create_stream("s", partitions=partitions)
        yield namespace


async def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Waits in virtual time, in which checking costs nothing."""
    with trio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.05)


class Worker:
    """A member in a process of its own, which remembers the records it handled."""

    def __init__(self, cluster: SimCluster, name: str, **settings: Any) -> None:
        self.handled: list[tuple[str, bytes, float]] = []
        self.consumer: Consumer | None = None
        self.settings: dict[str, Any] = settings
        self.stop = trio.Event()
        self.process = cluster.start_client(self._run, name=name)

    async def _run(self, client: LedgerClient) -> None:
        namespace = Namespace(client, "n")
        async with namespace.consumer("s", "g", **self.settings) as consumer:
            self.consumer = consumer
            async with trio.open_nursery() as nursery:

                async def consume() -> None:
                    async for partition, batch, _ in consumer:
                        now_s = trio.current_time()
                        self.handled += [(partition, value, now_s) for value in batch.values()]

                nursery.start_soon(consume)
                await self.stop.wait()
                nursery.cancel_scope.cancel()

    @property
    def values(self) -> list[bytes]:
        return [value for _, value, _ in self.handled]

    @property
    def partitions(self) -> list[str]:
        return [] if self.consumer is None else self.consumer.partitions


def count_calls(cluster: SimCluster, node: str) -> list[str]:
    """Yields the calls of a node's metadata store from now on, as "kind path", without watches."""
    calls: list[str] = []
    trace = cluster.simulation.trace

    def note(*words: object) -> None:
        if words[:2] == ("metadata", node):
            calls.append(f"{words[2]} {words[3]}")
        trace(*words)

    cluster.simulation.trace = note  # type: ignore[method-assign]
    return calls
