"""Steps that tests of the ZooKeeper driver share: actions on a store, and waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio
from kazoo.client import KazooClient

from ledger.errors import MetadataUnavailable
from ledger.metastore.base import MetadataStore, Node
from ledger.metastore.zookeeper.store import ZooKeeperStore
from tests.zookeeper import RunningZooKeeper

SHORT_MS = 2000
LONG_MS = 60_000  # the most that a server grants: its restart may take long
PATIENCE_S = 60  # the timeout of the tests: a machine may be slow


async def in_thread(call: Callable[[], None]) -> None:
    await trio.to_thread.run_sync(call)


async def expire(store: ZooKeeperStore, server: RunningZooKeeper) -> None:
    """Ends the session from outside: a second client resumes and closes it."""
    credentials = store._session._client.client_id
    assert credentials is not None

    def take_and_close() -> None:
        client = KazooClient(hosts=server.address, client_id=credentials, timeout=20)
        client.start()
        client.stop()
        client.close()

    await in_thread(take_and_close)


async def wait_until(values: AsyncGenerator[Node | None, None], data: bytes | None) -> None:
    with trio.fail_after(PATIENCE_S):
        async for node in values:
            if (None if node is None else node.data) == data:
                return


async def wait_children(store: MetadataStore, path: str, wanted: list[str]) -> None:
    with trio.fail_after(PATIENCE_S):
        async with aclosing(store.watch_children(path)) as names:
            async for found in names:
                if found == wanted:
                    return


async def insist(store: MetadataStore, path: str, data: bytes) -> None:
    """Repeats a put to an existing node until it succeeds."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                await store.put(path, data)
            except MetadataUnavailable:
                continue
            return


async def disconnected(store: ZooKeeperStore) -> None:
    with trio.fail_after(PATIENCE_S):
        while store._session._is_connected:
            await store._session._state_changed.wait()
