"""Nodes that belong to their creator: another user's session can neither read nor change them."""

from __future__ import annotations

import pytest

from ledger.errors import LedgerError, Unauthorized
from ledger.metastore import open_store
from ledger.metastore.base import Create, Put
from ledger.metastore.zookeeper.access import ZooKeeperAccess

pytestmark = pytest.mark.zookeeper

OURS = ZooKeeperAccess(credentials="bookies:the password", acl="creator")
STRANGERS = [
    ZooKeeperAccess(),
    ZooKeeperAccess(credentials="bookies:another password"),
    ZooKeeperAccess(credentials="stranger:the password", acl="creator"),
]


@pytest.mark.parametrize("stranger", STRANGERS, ids=["nobody", "wrong password", "another user"])
async def test_nodes_of_a_creator_are_closed_to_others(
    zookeeper_uri: str, stranger: ZooKeeperAccess
) -> None:
    async with open_store(zookeeper_uri, may_create=True, access=OURS) as ours:
        await ours.create("/ledgers/LAYOUT", b"made with its parents")
        await ours.transaction([Create("/ledgers/a", b"1"), Put("/ledgers/LAYOUT", b"2", 0)])
        await ours.create("/ledgers/alive", b"", is_ephemeral=True)
        await ours.next_id("/ledgers/idgen/ID-")
        async with open_store(zookeeper_uri, may_create=True, access=stranger) as theirs:
            for path in ("/ledgers/LAYOUT", "/ledgers/a", "/ledgers/alive"):
                with pytest.raises(Unauthorized, match="zookeeper_credentials_file"):
                    await theirs.get(path)
                with pytest.raises(LedgerError):
                    await theirs.put(path, b"x", 0)
            with pytest.raises(Unauthorized):
                await theirs.create("/ledgers/b", b"")
            with pytest.raises(LedgerError):
                await theirs.next_id("/ledgers/idgen/ID-")
        async with open_store(zookeeper_uri, may_create=True, access=OURS) as again:
            assert (await again.get("/ledgers/LAYOUT")).data == b"2"
            await again.put("/ledgers/a", b"3", 0)
            await again.delete("/ledgers/a")


async def test_what_others_made_open_stays_open(zookeeper_uri: str) -> None:
    async with open_store(zookeeper_uri, may_create=True, access=ZooKeeperAccess()) as before:
        await before.create("/ledgers/LAYOUT", b"1")
        async with open_store(zookeeper_uri, may_create=True, access=OURS) as ours:
            await ours.put("/ledgers/LAYOUT", b"2", 0)
            await ours.create("/ledgers/closed", b"")
        assert (await before.get("/ledgers/LAYOUT")).data == b"2"
        with pytest.raises(Unauthorized):
            await before.get("/ledgers/closed")
