"""Namespaces with a few streams, and the records that a query over all of them must have read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from bookie.testing import SimCluster, simulate
from stream import Namespace
from tests.sim.page_limits import page_limits
from tests.stream.whole_streams import read_all


@asynccontextmanager
async def sample_namespace(cluster: SimCluster, *streams: str) -> AsyncIterator[Namespace]:
    """Opens namespace "n" with small entries and these streams, in a client of its own."""
    async with cluster.client() as client:
        namespace = Namespace(client, "n")
        await namespace.ensure(batch_bytes=300, trash_ms=60_000)
        for stream in streams:
            await namespace.create_stream(stream)
        yield namespace


async def append(namespace: Namespace, stream: str, count: int, mark: str = "v") -> None:
    """Appends `count` records as one sealed segment."""
    async with namespace.writer(stream) as writer:
        await writer.append_many([b"%s-%d" % (mark.encode(), n) for n in range(count)])


async def sequences(namespace: Namespace, stream: str) -> list[tuple[int, bytes]]:
    return [(record.sequence, record.value) for record in await read_all(namespace, stream)]


async def all_of(namespace: Namespace, *streams: str) -> dict[tuple[str, int], object]:
    """Returns the records that a query must have read at the end."""
    found: dict[tuple[str, int], object] = {}
    for stream in streams:
        created_ms = (await namespace.stream_metadata(stream)).created_ms
        if rows := await sequences(namespace, stream):
            found[f"n/{stream}", created_ms] = rows
    return found


@page_limits()
def run_scenario(scenario: Callable[[SimCluster], Awaitable[None]], seed: int = 0) -> None:
    """Runs it with older segments in pages of two."""
    simulate(scenario, seed)
