"""LazyStore: a metadata store that is opened by the first request to it.

A worker that only reads sealed segments makes no request, so that hundreds of executors open no
sessions of the metadata store. An error of opening must never be hidden: the request that caused
it raises it, and the next request tries again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

import trio

from ledger.errors import LedgerClosed, LedgerError
from ledger.metastore import ClusterAddress, open_metadata
from ledger.metastore.base import ANY_VERSION, Change, MetadataStore, Node
from ledger.options import ClientOptions


class LazyStore:
    """The `MetadataStore` of the cluster at this address, opened as `options` say. An `async with`
    object."""

    def __init__(self, cluster: ClusterAddress, options: ClientOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._nursery_manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None
        self._opening = trio.Lock()
        self._store: MetadataStore | None = None

    @property
    def is_opened(self) -> bool:
        """Whether a request has opened the store."""
        return self._store is not None

    async def __aenter__(self) -> Self:
        self._nursery = await self._nursery_manager.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
        await self._nursery_manager.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Ends the session, if one is open."""
        nursery, self._nursery, self._store = self._nursery, None, None
        if nursery is not None:
            nursery.cancel_scope.cancel()

    async def _opened(self) -> MetadataStore:
        if self._store is None:
            async with self._opening:
                if self._nursery is None:
                    raise LedgerClosed("the client is closed")
                if self._store is None:
                    answer = await self._nursery.start(self._hold)
                    if isinstance(answer, LedgerError):
                        raise answer
        if self._store is None:
            raise LedgerClosed("the client is closed")
        return self._store

    async def _hold(
        self, *, task_status: trio.TaskStatus[LedgerError | None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Opens the store, and keeps it open until this task is cancelled.

        A session must begin and end in the same task.
        """
        try:
            async with open_metadata(self._cluster, self._options) as self._store:
                task_status.started(None)
                await trio.sleep_forever()
        except LedgerError as error:
            if self._store is not None:
                raise
            task_status.started(error)

    def bind(self, path: str, data: bytes) -> None:
        raise AssertionError("opening the store binds it to its cluster")

    def commit_number(self) -> int | None:
        return None if self._store is None else self._store.commit_number()

    async def get(self, path: str) -> Node:
        return await (await self._opened()).get(path)

    async def children(self, path: str) -> list[str]:
        return await (await self._opened()).children(path)

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        await (await self._opened()).create(path, data, is_ephemeral=is_ephemeral)

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return await (await self._opened()).put(path, data, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await (await self._opened()).delete(path, version)

    async def transaction(self, changes: Sequence[Change]) -> None:
        await (await self._opened()).transaction(changes)

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        return await (await self._opened()).next_id(path, beyond=beyond)

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        return await (await self._opened()).create_numbered(prefix, data)

    async def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        async with aclosing((await self._opened()).watch(path)) as nodes:
            async for node in nodes:
                yield node

    async def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        async with aclosing((await self._opened()).watch_children(path)) as lists:
            async for names in lists:
                yield names
