"""The nodes of users: what is in them, what is not, and damaged ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ledger.core.authentication.names import SCRAM_SHA_256, SCRAM_SHA_512
from ledger.core.authentication.scram import ScramVerifier, matches
from ledger.errors import InvalidArgument, MetadataCorrupt, NodeExists, NoSuchNode
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.users import SECRET_PATH, User, UserStore, new_user, path_of

GOLDEN = (
    b'{"version": 1, "name": "ann", "created_ms": 7, "changed_ms": 8, "scram": '
    b'{"SCRAM-SHA-256": {"salt": "c2FsdA==", "iterations": 4096, "stored_key": "c3RvcmVk", '
    b'"server_key": "c2VydmVy"}}, "digest_md5": null}'
)
ANN = User(
    name="ann",
    created_ms=7,
    changed_ms=8,
    verifiers={SCRAM_SHA_256: ScramVerifier(b"salt", 4096, b"stored", b"server")},
)
SALTS = {SCRAM_SHA_256: b"a" * 16, SCRAM_SHA_512: b"b" * 16}


def store() -> MemoryStore:
    return MemoryStore(MemoryTree(), lambda: 0)


@pytest.mark.parametrize(
    ("user", "golden"),
    [
        (ANN, GOLDEN),
        (replace(ANN, digest_md5=b"md5"), GOLDEN.replace(b"null", b'"bWQ1"')),
    ],
)
async def test_the_bytes_stay_as_they_are(user: User, golden: bytes) -> None:
    async with store() as metadata:
        users = UserStore(metadata)
        await users.create(user)
        assert (await metadata.get(path_of("ann"))).data == golden
        assert await users.read("ann") == user


async def test_a_password_is_recognised_and_not_stored() -> None:
    ann = new_user("ann", "swordfish", salts=SALTS, now_ms=5, digest_md5=False)
    async with store() as metadata:
        users = UserStore(metadata)
        await users.create(ann)
        assert b"swordfish" not in (await metadata.get(path_of("ann"))).data
        found = await users.read("ann")
        assert found == ann
        for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512):
            assert matches(mechanism, "swordfish", found.verifiers[mechanism])
            assert not matches(mechanism, "haddock", found.verifiers[mechanism])
        assert found.digest_md5 is None
    assert "swordfish" not in repr(ann)
    assert "digest" not in repr(new_user("a", "x", salts=SALTS, now_ms=5, digest_md5=True))


async def test_users_are_created_once_changed_and_deleted() -> None:
    async with store() as metadata:
        users = UserStore(metadata)
        assert await users.list() == []
        assert await users.read("ann") is None
        await users.create(ANN)
        with pytest.raises(NodeExists, match="user ann exists already; `ledgerstream user passwd"):
            await users.create(ANN)
        await users.change(replace(ANN, created_ms=100, changed_ms=101))
        assert await users.list() == [replace(ANN, changed_ms=101)]
        await users.delete("ann")
        for again in (users.delete("ann"), users.change(ANN)):
            with pytest.raises(NoSuchNode, match="there is no user ann; `ledgerstream user list"):
                await again


async def test_fields_of_a_later_release_are_kept() -> None:
    async with store() as metadata:
        users = UserStore(metadata)
        await users.create(ANN)
        document = json.loads((await metadata.get(path_of("ann"))).data) | {"later": [1]}
        await metadata.put(path_of("ann"), json.dumps(document).encode())
        await users.change(replace(ANN, changed_ms=9))
        assert json.loads((await metadata.get(path_of("ann"))).data)["later"] == [1]


DAMAGED = [
    b"",
    b"[]",
    b"{}",
    b"[" * 100_000,
    GOLDEN.replace(b'"version": 1', b'"version": 2'),
    GOLDEN.replace(b'"ann"', b'"bob"'),
    GOLDEN.replace(b"4096", b'"4096"'),
    GOLDEN.replace(b"4096", b"-1"),
    GOLDEN.replace(b"c2FsdA==", b""),
    GOLDEN.replace(b"c2FsdA==", b"!"),
    GOLDEN.replace(b"null", b"7"),
    GOLDEN.replace(b'{"SCRAM', b'["SCRAM').replace(b'"c2VydmVy"}}', b'"c2VydmVy"}]'),
]


@pytest.mark.parametrize("data", DAMAGED)
async def test_a_damaged_node_is_named_and_hides_no_other(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with store() as metadata:
        users = UserStore(metadata)
        await users.create(replace(ANN, name="bob"))
        await metadata.create(path_of("ann"), data)
        with pytest.raises(MetadataCorrupt, match="/ledgerstream/users/ann cannot be read") as said:
            await users.read("ann")
        assert "c3RvcmVk" not in str(said.value)
        assert [user.name for user in await users.list()] == ["bob"]
        assert "user_ignored user=ann" in caplog.text
        await users.change(ANN)
        found = await users.read("ann")
        assert found is not None
        assert found.verifiers == ANN.verifiers


async def test_odd_names_and_passwords_are_refused() -> None:
    async with store() as metadata:
        with pytest.raises(InvalidArgument, match="user name 'a/b'"):
            await UserStore(metadata).read("a/b")
    with pytest.raises(InvalidArgument, match="user name 'anonymous'"):
        new_user("anonymous", "x", salts=SALTS, now_ms=5, digest_md5=False)
    with pytest.raises(InvalidArgument, match="the password is empty"):
        new_user("ann", "", salts=SALTS, now_ms=5, digest_md5=False)


async def test_the_first_bookie_draws_the_secret_of_the_cluster() -> None:
    async with store() as metadata:
        users = UserStore(metadata)
        assert await users.cluster_secret(b"one") == b"one"
        assert await users.cluster_secret(b"two") == b"one"
        await metadata.put(SECRET_PATH, b"{}")
        with pytest.raises(MetadataCorrupt, match="/ledgerstream/authentication cannot be read"):
            await users.cluster_secret(b"three")
