"""Streams under permissions, on real bookies: tenants, takeovers, readers, revocations."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bookie.bookie import Bookie
from ledger.client import LedgerClient
from ledger.core.authentication.names import ANONYMOUS
from ledger.core.permissions import Grant, Role
from ledger.errors import LedgerError, Unauthorized
from ledger.metastore.memory import MemoryStore
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork
from stream import Namespace
from tests.bookie.server.permitted_cluster import Named, named_users, permitted_cluster, until
from tests.real_cluster import RealCluster, now_ms
from tests.stream.whole_streams import read_values

pytestmark = pytest.mark.usefixtures(named_users.__name__)

GRANTS = (
    Grant("alice", Role.WRITE, "a"),
    Grant("ann", Role.WRITE, "a"),
    Grant("bob", Role.WRITE, "b"),
    Grant("rita", Role.READ, "*"),
    Grant("healer", Role.ADMIN),
)


@asynccontextmanager
async def client_of(cluster: RealCluster, user: str) -> AsyncIterator[LedgerClient]:
    auth = None if user == ANONYMOUS else Named(user)
    async with (
        MemoryStore(cluster.tree, now_ms) as store,
        LedgerClient(
            store, TcpNetwork(), rng=random.Random(7), now_ms=now_ms,
            options=ClientOptions(read_timeout_s=2.0, add_timeout_s=2.0), auth=auth,
        ) as client,
    ):  # fmt: skip
        yield client


@asynccontextmanager
async def namespace_of(cluster: RealCluster, user: str, name: str) -> AsyncIterator[Namespace]:
    async with client_of(cluster, user) as client:
        namespace = Namespace(client, name)
        await namespace.ensure()
        yield namespace


async def test_tenants_share_bookies_and_see_only_their_own(tmp_path: Path) -> None:
    async with permitted_cluster(tmp_path, GRANTS, {}, bookies=3) as (cluster, _):
        for user, name in (("alice", "a"), ("bob", "b")):
            async with (
                namespace_of(cluster, user, name) as namespace,
                namespace.writer("s", create=True) as writer,
            ):
                await writer.append_many([f"{user} {n}".encode() for n in range(100)])
        for user, name, may in (
            ("alice", "a", True), ("ann", "a", True), ("bob", "b", True), ("rita", "a", True),
            ("rita", "b", True), ("healer", "b", True), ("alice", "b", False),
            ("bob", "a", False), (ANONYMOUS, "a", False),
        ):  # fmt: skip
            async with namespace_of(cluster, user, name) as namespace:
                if may:
                    assert len(await read_values(namespace)) == 100
                else:
                    with pytest.raises(LedgerError) as refused:
                        await read_values(namespace)
                    assert "nauthorized" in repr(refused.value)


async def test_another_writer_of_the_namespace_takes_over_and_no_other(tmp_path: Path) -> None:
    async with permitted_cluster(tmp_path, GRANTS, {}, bookies=3) as (cluster, _):
        async with (
            namespace_of(cluster, "alice", "a") as one,
            one.writer("s", create=True) as writer,
        ):
            await writer.append(b"1")
            for user in ("bob", "rita", ANONYMOUS):
                async with namespace_of(cluster, user, "a") as other:
                    with pytest.raises(LedgerError) as refused:
                        async with other.writer("s") as thief:
                            await thief.append(b"stolen")
                    assert "nauthorized" in repr(refused.value)
        async with namespace_of(cluster, "ann", "a") as two, two.writer("s") as writer:
            await writer.append(b"2")
            assert await read_values(two) == [b"1", b"2"]


def may_write(bookie: Bookie) -> bool:
    assert bookie.access is not None
    return bookie.access.rights_of("alice").allows(Role.WRITE, "a")


async def test_a_writer_whose_right_is_revoked_fails_and_loses_nothing(tmp_path: Path) -> None:
    async with permitted_cluster(tmp_path, GRANTS, {}, bookies=3) as (cluster, permissions):
        acknowledged = [b"%d" % number for number in range(10)]

        async def write_after_a_revocation() -> None:
            async with (
                namespace_of(cluster, "alice", "a") as namespace,
                namespace.writer("s", create=True) as writer,
            ):
                for value in acknowledged:
                    await writer.append(value)
                await permissions.revoke([Grant("alice", Role.WRITE, "a")])
                await until(lambda: not any(may_write(one) for one in cluster.bookies.values()))
                with pytest.raises(Unauthorized):
                    await writer.append(b"too late")

        with pytest.raises(Unauthorized):  # closing it says so, too
            await write_after_a_revocation()
        async with namespace_of(cluster, "ann", "a") as namespace:
            async with namespace.writer("s") as writer:
                await writer.append(b"next")
            assert await read_values(namespace) == [*acknowledged, b"next"]
