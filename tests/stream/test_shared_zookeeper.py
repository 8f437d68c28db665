"""Streams on a ZooKeeper whose nodes two users share: clients do all of their work, and no more."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.config import BookieConfig
from bookie.storage.disk.real_disk import RealDisk
from ledger.client import LedgerClient
from ledger.core.permissions import Grant, Role
from ledger.errors import LedgerError, Unauthorized
from ledger.metastore import open_store
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import PATH as USERS
from ledger.metastore.zookeeper.access import ZooKeeperAccess, user_id
from ledger.runtime.network import TcpNetwork
from stream import Namespace
from stream.retention.policies import delete_namespace
from tests.real_cluster import SMALL, bookie_of, now_ms
from tests.stream.whole_streams import read_values
from tests.zookeeper import RunningZooKeeper

pytestmark = pytest.mark.zookeeper

OWNER, CLIENT = "bookies:of the owners", "clients:of the clients"
ACL = f"{user_id(OWNER)},{user_id(CLIENT)}"


@asynccontextmanager
async def _bookies(uri: str, directory: Path, count: int) -> AsyncIterator[None]:
    async def run(number: int, task_status: trio.TaskStatus[str]) -> None:
        at = f"{directory}/{number}"
        settings: dict[str, Any] = {
            "metadata_uri": uri,
            "zookeeper_acl": ACL,
            "zookeeper_credentials_file": "given to the store",
            "journal_directories": (f"{at}/journal",),
            "ledger_directories": (f"{at}/ledgers",),
            "port": 0,
        }
        config = BookieConfig(**settings | SMALL)
        disk = RealDisk()
        access = ZooKeeperAccess(credentials=OWNER, acl=ACL)
        try:
            async with open_store(uri, may_create=True, access=access) as store:
                await bookie_of(config, disk, store, number).run(task_status)
        finally:
            disk.close()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            await nursery.start(run, number)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _client(uri: str, credentials: str) -> AsyncIterator[LedgerClient]:
    access = ZooKeeperAccess(credentials=credentials, acl=ACL)
    async with (
        open_store(uri, access=access) as store,
        LedgerClient(
            store, TcpNetwork(), rng=random.Random(7), now_ms=now_ms
        ) as client,
    ):  # fmt: skip
        yield client


async def test_clients_do_all_of_their_work_and_make_themselves_nothing_more(
    tmp_path: Path, shared_zookeeper: RunningZooKeeper
) -> None:
    uri = f"zk://{shared_zookeeper.address}/shared-by-two/ledgers"
    async with (
        _bookies(uri, tmp_path, 1),
        _client(uri, CLIENT) as client,
        _client(uri, OWNER) as owner,
    ):
        namespace = Namespace(client, "a")
        await namespace.ensure(ensemble_size=1, write_quorum=1, ack_quorum=1)
        for number in range(3):  # takeovers
            async with namespace.writer("s", create=True) as writer:
                await writer.append(b"%d" % number)
        assert await read_values(namespace) == [b"0", b"1", b"2"]
        async with namespace.cursor("s", "c") as cursor:
            await cursor.commit()
        async with namespace.consumer("s", "g") as consumer:
            await anext(aiter(consumer))
        ledger_id = max(await client.list_ledgers())
        await client.underreplication.mark(ledger_id, ["b:3181"])
        await namespace.delete_stream("s")
        assert await namespace.purge("s") > 0
        assert await client.list_ledgers() == []

        await Permissions(owner.store).grant([Grant("ann", Role.READ, "a")])
        await owner.store.create(f"{USERS}/ann", b"")
        with pytest.raises(Unauthorized):
            await delete_namespace(client, "a")
        with pytest.raises(Unauthorized):
            await Permissions(client.store).grant([Grant("mallory", Role.ADMIN)])
        with pytest.raises(Unauthorized):
            await client.store.children(USERS)
        for path in ("available", "available/readonly", "cookies"):
            root = client.ledgers.root
            with pytest.raises(LedgerError):
                await client.store.create(f"{root}/{path}/mallory:3181", b"", is_ephemeral=True)
        (bookie, *_) = await client.bookies.available()
        with pytest.raises(Unauthorized):
            await client.store.put(client.bookies.cookie_path(bookie), b"mine")
        await delete_namespace(owner, "a")
        assert list(await Permissions(owner.store).read()) == []
