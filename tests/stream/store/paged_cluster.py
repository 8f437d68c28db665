"""A namespace whose ledgers have metadata and no entries, with a clock that tests set."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

from ledger.metastore.base import MetadataStore, Node
from ledger.metastore.memory import MemoryStore, MemoryTree
from stream import Namespace
from stream.core.metadata.pages import page_name
from stream.core.metadata.segments import Run, SegmentEnd
from stream.core.metadata.streams import StreamMetadata
from stream.core.sinks import committed
from stream.namespace import create_namespace
from stream.store.pages import forget_pages, pages_path
from tests.sim.retention.actors import MetadataClient

HOUR_MS = 3_600_000


class HookedStore(MemoryStore):
    """Awaits `before_page`, once, before the next page is read."""

    before_page: Callable[[], Awaitable[object]] | None = None

    async def get(self, path: str) -> Node:
        hook = self.before_page
        if hook is not None and "/pages/" in path:
            self.before_page = None
            await hook()
        return await super().get(path)


class PagedCluster:
    """The namespace "n", its client and its store."""

    def __init__(self, store: HookedStore, clock: list[int]) -> None:
        self.store = store
        ids = count(1)
        self.client = MetadataClient(
            store, rng=random.Random(1), now_ms=lambda: clock[0], next_id=lambda: next(ids)
        )
        self.namespace = Namespace(self.client, "n")
        self._clock = clock

    def wait(self, ms: int) -> None:
        self._clock[0] += ms

    async def grow(self, stream: str, segments: int, *, nbytes: int = 10) -> StreamMetadata:
        """Commits segments, each of a record, to a stream; returns it."""
        ledgers = await self.client.make_ledgers("n", stream, segments)
        now_ms = self._clock[0]
        ends = [(ledger, SegmentEnd(0, 1, nbytes, now_ms, now_ms)) for ledger in ledgers]
        change = partial(committed, ends=ends, now_ms=now_ms)
        return await self.namespace.store.update_stream("n", stream, change)

    async def lose(self, stream: StreamMetadata, run: Run) -> None:
        """Deletes the node of a page."""
        await self.store.delete(f"{pages_path(stream.pages.folder)}/{page_name(run)}")
        self.forget_pages()

    def forget_pages(self) -> None:
        """Forgets the pages that were read, as a new process."""
        forget_pages(self.client.store)


@asynccontextmanager
async def paged_cluster() -> AsyncIterator[PagedCluster]:
    """Yields a cluster whose trash keeps for an hour."""
    clock = [1_700_000_000_000]
    async with HookedStore(MemoryTree(), lambda: clock[0]) as store:
        cluster = PagedCluster(store, clock)
        await create_namespace(cluster.client, "n", trash_ms=HOUR_MS)
        yield cluster


async def nodes_below(store: MetadataStore, path: str) -> list[str]:
    """Returns the leaves below a node."""
    found = []
    for name in await store.children(path):
        below = await nodes_below(store, f"{path}/{name}")
        found += below or [f"{path}/{name}"]
    return found
