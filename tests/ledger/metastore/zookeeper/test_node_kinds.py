"""The table of nodes on a real server: each kind, each right, with and without credentials."""

from __future__ import annotations

import ast
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ledger.errors import InvalidArgument, LedgerError, NodeExists, Unauthorized
from ledger.metastore import open_store
from ledger.metastore.base import MetadataStore
from ledger.metastore.node_kinds import (
    ALL,
    NODE_KINDS,
    NodeKind,
    Right,
    kind_of,
    make_shared_folders,
    rights_of_clients,
)
from ledger.metastore.zookeeper.access import OPEN_ACCESS, ZooKeeperAccess, user_id
from ledger.metastore.zookeeper.acl_change import apply_acls
from ledger.metastore.zookeeper.store import ZooKeeperStore
from tests.tidy.checkout import ROOT

OWNER, CLIENT = "bookies:of the owners", "clients:of the clients"
ACL = f"{user_id(OWNER)},{user_id(CLIENT)}"
OWNERS = ZooKeeperAccess(credentials=OWNER, acl=ACL)
CLIENTS = ZooKeeperAccess(credentials=CLIENT, acl=ACL)
IDENTITIES = {
    "no credentials": OPEN_ACCESS,
    "another user": ZooKeeperAccess(credentials="ann:swordfish"),
    "client": CLIENTS,
    "owner": OWNERS,
}
Attempt = Callable[[MetadataStore, str, str], Awaitable[object]]


async def _raw(store: MetadataStore, path: str, issue: Callable[[KazooClient, str], object]) -> Any:
    """Sends a request as a hostile client does, which asks no table."""
    assert isinstance(store, ZooKeeperStore)
    whole = store.whole_path(path)
    return await store.session.call(lambda client: issue(client, whole), path, is_change=True)


async def _read(store: MetadataStore, path: str, _: str) -> None:
    await store.get(path)
    await store.children(path)


async def _write(store: MetadataStore, path: str, _: str) -> None:
    await store.put(path, b"changed")


async def _create(store: MetadataStore, path: str, who: str) -> None:
    await _raw(store, f"{path}/new-{who}", lambda client, whole: client.create_async(whole, b""))


async def _delete(store: MetadataStore, path: str, who: str) -> None:
    await store.delete(f"{path}/old-{who}")


async def _set_acl(store: MetadataStore, path: str, _: str) -> None:
    acls, _stat = await _raw(store, path, lambda client, whole: client.get_acls_async(whole))
    await _raw(store, path, lambda client, whole: client.set_acls_async(whole, acls))


ATTEMPTS: dict[Right, Attempt] = {
    Right.READ: _read,
    Right.WRITE: _write,
    Right.CREATE: _create,
    Right.DELETE: _delete,
    Right.ADMIN: _set_acl,
}


@pytest.mark.zookeeper
async def test_each_kind_of_node_admits_each_identity_to_what_the_table_says(
    zookeeper_uri: str,
) -> None:
    async def prepare(owner: MetadataStore, path: str, who: str) -> None:
        await _raw(owner, f"{path}/old-{who}", lambda one, whole: one.create_async(whole, b""))

    async def compare(store: MetadataStore, kind: NodeKind, right: Right, who: str) -> None:
        allowed = {"client": kind.clients, "owner": ALL}.get(who, Right(0))
        path = kind.sample.format(root="/ledgers")
        try:
            await ATTEMPTS[right](store, path, who)
        except (Unauthorized, NoAuthError):
            assert right not in allowed, f"{who} lacks {right!r} of {kind}"
        else:
            assert right in allowed, f"{who} has {right!r} of {kind}"

    # At the same time, because each change costs the server a sync.
    async with open_store(zookeeper_uri, may_create=True, access=OWNERS) as owner:
        for kind in NODE_KINDS:
            with suppress(NodeExists):
                await owner.create(kind.sample.format(root="/ledgers"), b"")
        async with trio.open_nursery() as nursery:
            for kind in NODE_KINDS:
                for who in IDENTITIES:
                    path = kind.sample.format(root="/ledgers")
                    nursery.start_soon(prepare, owner, path, who)
        for who, access in IDENTITIES.items():
            async with (
                open_store(zookeeper_uri, may_create=True, access=access) as store,
                trio.open_nursery() as nursery,
            ):
                for kind in NODE_KINDS:
                    for right in ATTEMPTS:
                        nursery.start_soon(compare, store, kind, right, who)


@pytest.mark.zookeeper
async def test_a_tree_that_was_open_is_closed_in_place(zookeeper_uri: str) -> None:
    paths = [kind.sample.format(root="/ledgers") for kind in NODE_KINDS]
    async with (
        open_store(zookeeper_uri, may_create=True, access=OPEN_ACCESS) as before,
        open_store(zookeeper_uri, may_create=True, access=OWNERS) as owner,
        open_store(zookeeper_uri, may_create=True, access=CLIENTS) as client,
    ):
        for path in paths:
            with suppress(NodeExists):
                await before.create(path, b"1")
        await before.create("/ledgers/of-another-program", b"")
        assert isinstance(owner, ZooKeeperStore)
        assert isinstance(client, ZooKeeperStore)
        with pytest.raises(InvalidArgument, match="owners"):
            await apply_acls(client, is_dry_run=False)
        planned = await apply_acls(owner, is_dry_run=True)
        assert planned.unknown == ["/ledgers/of-another-program"]
        assert planned.changed["permissions"] == 1
        assert planned.changed.total() >= len(paths)
        await before.get("/ledgerstream/permissions")
        done = await apply_acls(owner, is_dry_run=False)
        assert done.changed == planned.changed
        assert (await apply_acls(owner, is_dry_run=False)).changed.total() == 0
        for path in paths:
            with pytest.raises(Unauthorized):
                await before.get(path)
            if Right.READ in rights_of_clients(path):
                await client.get(path)
            else:
                with pytest.raises(Unauthorized):
                    await client.get(path)


@pytest.mark.zookeeper
async def test_what_exists_is_reported_to_clients_that_may_not_make_it(zookeeper_uri: str) -> None:
    """ZooKeeper itself would say that they are not authorized."""
    async with (
        open_store(zookeeper_uri, may_create=True, access=OWNERS) as owner,
        open_store(zookeeper_uri, may_create=True, access=CLIENTS) as client,
    ):
        await owner.create("/ledgers/LAYOUT", b"")
        await make_shared_folders(owner, "/ledgers")
        for path in ("/ledgers/underreplication/LAYOUT", "/ledgerstream/namespaces"):
            with pytest.raises(NodeExists):
                await client.create(path, b"")
        with pytest.raises(Unauthorized):
            await client.create("/ledgerstream/permissions", b"{}")
        with pytest.raises(Unauthorized):
            await client.create("/ledgers/cookies/b:3181", b"")
        with pytest.raises(InvalidArgument, match="no row"):
            await owner.create("/ledgerstream/something-new", b"")
        assert await client.next_id("/ledgers/idgen/ID-") >= 0
        await client.create("/ledgers/00/0000/L0001", b"")
        await client.delete("/ledgers/00/0000/L0001")
        with pytest.raises(LedgerError):
            await client.delete("/ledgers/LAYOUT")


# ---- the table is complete


def _own_paths() -> Iterator[tuple[Path, str]]:
    """Yields each path below `/ledgerstream` that a module names, and the module."""
    for package in ("ledger", "bookie", "stream", "connectors"):
        for file in (ROOT / package).rglob("*.py"):
            if file.name == "node_kinds.py":
                continue
            source = file.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source if "/ledgerstream/" in source else "")):
                if isinstance(node, ast.JoinedStr):
                    text = "".join(
                        str(one.value) if isinstance(one, ast.Constant) else "x"
                        for one in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = node.value
                else:
                    continue
                if text.startswith("/ledgerstream/"):
                    yield file, text.rstrip("/")


def test_each_node_that_the_product_names_has_a_row() -> None:
    found = list(_own_paths())
    assert len(found) > 10
    for file, path in found:
        assert kind_of(path) is not None, f"{file}: {path} has no row in NODE_KINDS"


def test_each_row_is_the_one_of_its_sample() -> None:
    for kind in NODE_KINDS:
        assert kind_of(kind.sample.format(root="/others"), "/others") is kind


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", Right.READ),
        ("/ledgers/000/0000/0000/0000/L0001", Right(15)),
        ("/ledgers/L0000000001", Right(15)),
        ("/ledgers/idgen-long/HOB-0000000001/ID-", Right(15)),
        ("/ledgers/available/readonly/b1:3181", Right.READ),
        ("/ledgers/underreplication/auditorelection/V_0000000001", Right.READ),
        ("/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL0000000001", Right(15)),
        ("/ledgerstream/users/ann", Right(0)),
        ("/ledgerstream/namespaces/a/streams/s", Right(15)),
        ("/ledgerstream/gone-segments", Right.READ | Right.WRITE),
    ],
)
def test_clients_have_these_rights(path: str, expected: Right) -> None:
    """Decided by hand, so that a change of the table is noticed."""
    assert rights_of_clients(path) == expected
