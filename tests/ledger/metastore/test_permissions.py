"""The table of grants in the metadata: its bytes, changes by several operators, watches, damage."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio

from ledger.core.permissions import GRANTS_MAX, Grant, PermissionTable, Role
from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.permissions import PATH, Permissions
from tests.ledger.metastore.conftest import OpenSession

GOLDEN = (
    b'{"version":1,"users":{"alice":{"read":["team-*"],"write":["team-a","team-b"]},'
    b'"ops":{"cluster":["operate","admin"]}}}'
)
GRANTS = (
    Grant("ops", Role.ADMIN),
    Grant("ops", Role.OPERATE),
    Grant("alice", Role.WRITE, "team-b"),
    Grant("alice", Role.READ, "team-*"),
    Grant("alice", Role.WRITE, "team-a"),
)


async def test_grants_are_added_and_removed(open_session: OpenSession) -> None:
    async with open_session() as store:
        permissions = Permissions(store)
        assert await permissions.read() == PermissionTable()
        assert await permissions.revoke(GRANTS) == ()
        assert await store.children("/ledgerstream") == [], "nothing was to be changed"
        assert await permissions.grant(GRANTS) == PermissionTable(frozenset(GRANTS))
        assert (await store.get(PATH)).data == GOLDEN
        version = (await store.get(PATH)).version
        await permissions.grant(GRANTS[:2])
        assert (await store.get(PATH)).version == version, "nothing was to be changed"
        other = Grant("alice", Role.MANAGE, "team-a")
        assert await permissions.revoke([other, GRANTS[0]]) == (GRANTS[0],)
        assert await permissions.read() == PermissionTable(frozenset(GRANTS[1:]))


async def test_the_stored_form_is_read_as_it_was_written() -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        await store.create(PATH, GOLDEN)
        assert await Permissions(store).read() == PermissionTable(frozenset(GRANTS))


async def test_operators_do_not_overwrite_each_other(open_session: OpenSession) -> None:
    async with open_session() as one, open_session() as two:
        both = Permissions(one), Permissions(two)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                given = [Grant(f"user{number}", Role.READ, "demo")]
                nursery.start_soon(both[number % 2].grant, given)
        assert len((await both[0].read()).grants) == 20


async def test_a_deleted_namespace_takes_its_grants_with_it_but_no_pattern() -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        permissions = Permissions(store)
        assert await permissions.forget_namespace("team-a") == ()
        await permissions.grant(GRANTS)
        assert await permissions.forget_namespace("team-a") == (GRANTS[4],)
        assert await permissions.read() == PermissionTable(frozenset(GRANTS[:4]))


async def test_watches_see_each_table_and_damage(open_session: OpenSession) -> None:
    async with (
        open_session() as watching,
        open_session() as changing,
        aclosing(Permissions(watching).watch()) as tables,
    ):
        assert await anext(tables) == PermissionTable()
        await Permissions(changing).grant(GRANTS)
        assert await anext(tables) == PermissionTable(frozenset(GRANTS))
        await changing.put(PATH, b"damage")
        assert isinstance(await anext(tables), MetadataCorrupt)
        await changing.delete(PATH)
        assert await anext(tables) == PermissionTable()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"[" * 100_000, b'{"version":2,"users":{}}', b'{"version":1}',
     b'{"version":1,"users":[]}', b'{"version":1,"users":{"a":[]}}',
     b'{"version":1,"users":{"a":{"read":"demo"}}}', b'{"version":1,"users":{"a":{"read":[1]}}}',
     b'{"version":1,"users":{"a":{"own":["demo"]}}}', b'{"version":1,"users":{"":{"read":["n"]}}}',
     b'{"version":1,"users":{"a":{"admin":["demo"]}}}',
     b'{"version":1,"users":{"a":{"cluster":["read"]}}}'],
)  # fmt: skip
async def test_a_damaged_table_is_an_error_and_is_never_overwritten(data: bytes) -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        await store.create(PATH, data)
        permissions = Permissions(store)
        with pytest.raises(
            MetadataCorrupt, match=r"/ledgerstream/permissions cannot be read.*Cure"
        ):
            await permissions.read()
        for change in (permissions.grant, permissions.revoke):
            with pytest.raises(MetadataCorrupt):
                await change(GRANTS)
        assert (await store.get(PATH)).data == data


async def test_a_table_that_is_too_large_is_refused() -> None:
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        permissions = Permissions(store)
        many = [Grant(f"{'u' * 120}{number}", Role.ADMIN) for number in range(9_000)]
        with pytest.raises(InvalidArgument, match=r"9000 grants in \d+ bytes, at most 1000000"):
            await permissions.grant(many)
        with pytest.raises(InvalidArgument, match="more than the 10000"):
            await permissions.grant(
                Grant(f"u{number}", Role.ADMIN) for number in range(GRANTS_MAX + 1)
            )
        assert await permissions.read() == PermissionTable()
