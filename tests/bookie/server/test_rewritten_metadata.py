"""A tenant that may write to the metadata store rewrites what it says of another tenant's ledgers:
bookies show it nothing and take nothing from it, and readers are shown none of its entries."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ledger.autorecovery.copier import Copier
from ledger.client import LedgerClient
from ledger.connection.claims import check_key_at
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.ledger_keys import NO_KEYS, ClusterSecret, LedgerKeys
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.metadata_format import encode
from ledger.core.permissions import STREAM_TAG, Grant, Role
from ledger.errors import LedgerError, Status, Unauthorized
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    RequestBody,
    WriteLacRequest,
)
from stream import Namespace
from tests.bookie.server.permitted_cluster import (
    Named,
    connection_of,
    named_users,
    permitted_cluster,
)
from tests.real_cluster import RealCluster, now_ms
from tests.stream.whole_streams import read_values

pytestmark = pytest.mark.usefixtures(named_users.__name__)

SECRET = ClusterSecret(b"a-secret-of-the-cluster-" * 3)
KEY_A, KEY_B = SECRET.namespace_key("a"), SECRET.namespace_key("b")
ALICE, BOB = LedgerKeys((), [KEY_A]), LedgerKeys((), [KEY_B])
GRANTS = (
    Grant("alice", Role.MANAGE, "a"),
    Grant("alice", Role.LEDGER),
    Grant("bob", Role.MANAGE, "b"),
    Grant("healer", Role.ADMIN),
)
VALUES = [b"%d" % number for number in range(20)]
FORGED = b"forged"


@asynccontextmanager
async def client_of(
    cluster: RealCluster, user: str, keys: LedgerKeys
) -> AsyncIterator[LedgerClient]:
    async with (
        MemoryStore(cluster.tree, now_ms) as store,
        LedgerClient(
            store, TcpNetwork(), rng=random.Random(7), now_ms=now_ms, keys=keys,
            options=ClientOptions(read_timeout_s=2.0, add_timeout_s=2.0), auth=Named(user),
        ) as client,
    ):  # fmt: skip
        yield client


@dataclass
class Scene:
    """A stream of bob's on three bookies of four, and what alice may do to the metadata."""

    cluster: RealCluster
    ledgers: LedgerStore
    ledger_id: int
    spare: int
    """The number of the bookie that has nothing of the ledger."""

    async def rewrite(self, change: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        """Changes the metadata as alice can, and has bookies forget what they knew of it."""
        await self.ledgers.update(self.ledger_id, change)
        for bookie in self.cluster.bookies.values():
            assert bookie.access is not None
            bookie.access._owners.clear()

    async def values(self) -> list[bytes]:
        async with client_of(self.cluster, "bob", BOB) as client:
            return await read_values(Namespace(client, "b"))


@asynccontextmanager
async def scene_of(directory: Path, keys: LedgerKeys, **settings: object) -> AsyncIterator[Scene]:
    opened = permitted_cluster(directory, GRANTS, {}, bookies=4, keys=keys, **settings)
    async with opened as (cluster, _), MemoryStore(cluster.tree, now_ms) as store:
        async with client_of(cluster, "bob", BOB if keys else NO_KEYS) as client:
            namespace = Namespace(client, "b")
            await namespace.ensure()
            async with namespace.writer("s", create=True) as writer:
                await writer.append_many(VALUES)
            stream, _version = await namespace.store.read_stream("b", "s")
            (ledger_id,) = stream.ledgers()
            ensemble = (await client.ledger_metadata(ledger_id)).last_fragment.bookies
        (spare,) = (n for n, one in cluster.bookies.items() if one.bookie_id not in ensemble)
        yield Scene(cluster, LedgerStore(store), ledger_id, spare)


def requests(ledger_id: int, key: bytes, password: bytes) -> list[RequestBody]:
    """Returns each request by which something of a ledger is learnt or changed."""
    digest = Digest(DigestType.CRC32C, password)
    entry = b"".join(digest.encode_entry(ledger_id, 0, -1, len(FORGED), FORGED))
    later = b"".join(digest.encode_entry(ledger_id, 100, 99, 100, FORGED))
    return [
        ReadRequest(ledger_id, 0),
        ReadRequest(ledger_id, -1),
        ReadRequest(ledger_id, -1, previous_lac=-1, timeout_ms=1, is_piggyback=True),
        ReadRequest(ledger_id, 0, key, is_fencing=True),
        BatchReadRequest(ledger_id, 0, 10, 1000),
        BatchReadRequest(ledger_id, 0, 10, 1000, key, is_fencing=True),
        ReadLacRequest(ledger_id),
        ListEntriesRequest(ledger_id),
        ForceLedgerRequest(ledger_id),
        WriteLacRequest(ledger_id, 100, key, digest.encode_lac(ledger_id, 100)),
        AddRequest(ledger_id, 0, key, entry),
        AddRequest(ledger_id, 0, key, entry, is_recovery=True),
        AddRequest(ledger_id, 100, key, later, is_recovery=True),
    ]


async def is_refused(scene: Scene, password: bytes, bookies: list[int]) -> None:
    """Tries everything as alice, over both versions, with this password's key."""
    for number in bookies:
        for version in (2, 3):
            async with connection_of(scene.cluster, "alice", version, number) as connection:
                for body in requests(scene.ledger_id, master_key(password), password):
                    is_of_2 = isinstance(body, ReadRequest | AddRequest | BatchReadRequest)
                    is_poll = isinstance(body, ReadRequest) and body.timeout_ms is not None
                    if is_poll if version == 2 else isinstance(body, BatchReadRequest):
                        continue
                    if version == 2 and not is_of_2:
                        continue
                    answer = await connection.call(body, 5.0)
                    said = f"{body} at {number}: {answer}"
                    assert answer.status in (Status.UNAUTHORIZED, Status.TOO_MANY_REQUESTS), said
                    assert not getattr(answer, "body", b""), said
                    assert not getattr(answer, "bodies", ()), said


def retagged(namespace: str | None, key_tag: bytes | None, password: bytes) -> Callable[
    [LedgerMetadata], LedgerMetadata
]:  # fmt: skip
    """Returns the change to another namespace, with a derived key or with this password."""

    def change(metadata: LedgerMetadata) -> LedgerMetadata:
        custom = {k: v for k, v in metadata.custom.items() if k != STREAM_TAG}
        if namespace is not None:
            custom[STREAM_TAG] = f"{namespace}/s".encode()
        if key_tag != b"kept":
            custom.pop("ledgerstream-key", None)
        if key_tag is not None and key_tag != b"kept":
            custom["ledgerstream-key"] = key_tag
        kept = metadata.password if key_tag == b"kept" else password
        return replace(metadata, custom=custom, password=kept)

    return change


def without_password(metadata: LedgerMetadata) -> LedgerMetadata:
    """As releases before Apache BookKeeper 4.2 stored it, but with custom metadata."""
    changed = retagged("a", None, b"")(metadata)
    return replace(changed, digest_type=None)


PASSWORD = b"of alice"
REWRITES: dict[str, tuple[Callable[[LedgerMetadata], LedgerMetadata], bytes]] = {
    "derived in her namespace": (retagged("a", b"kept", b""), b""),
    "a password of her own": (retagged("a", b"1", PASSWORD), PASSWORD),
    "a password, and no tag": (retagged("a", None, PASSWORD), PASSWORD),
    "no password": (retagged("a", None, b""), b""),
    "nothing said of passwords": (without_password, b""),
    "an unknown secret": (retagged("a", b"derived:0123456789abcdef", b""), b""),
    "no namespace": (retagged(None, b"kept", b""), b""),
    "no namespace, and a password": (retagged(None, b"1", PASSWORD), PASSWORD),
}


@pytest.mark.parametrize("keys", [LedgerKeys([SECRET]), NO_KEYS], ids=["secret", "no secret"])
async def test_a_ledger_that_is_given_to_another_namespace_stays_its_own(
    tmp_path: Path, keys: LedgerKeys
) -> None:
    async with scene_of(tmp_path, keys) as scene:
        before, _ = await scene.ledgers.read(scene.ledger_id)
        holders = [number for number in scene.cluster.bookies if number != scene.spare]
        for change, password in REWRITES.values():
            await scene.rewrite(change)
            changed, _ = await scene.ledgers.read(scene.ledger_id)
            if not keys and changed.password == before.password:
                continue  # without a secret nothing binds a password to a namespace
            for one in {password, KEY_A.password(scene.ledger_id), b""}:
                await is_refused(scene, one, holders[:1])
            await scene.rewrite(lambda _: before)
        assert await scene.values() == VALUES


async def test_entries_that_were_put_under_anothers_ledger_are_shown_to_nobody(
    tmp_path: Path,
) -> None:
    """At a bookie that has nothing of the ledger, alice may begin one of this id while the metadata
    says that it is hers. Once it says that it is bob's again, with that bookie, bob reads his."""
    async with scene_of(tmp_path, LedgerKeys([SECRET])) as scene:
        before, _ = await scene.ledgers.read(scene.ledger_id)
        await scene.rewrite(retagged("a", b"kept", b""))
        password = KEY_A.password(scene.ledger_id)
        forged = requests(scene.ledger_id, master_key(password), password)[-3]
        async with connection_of(scene.cluster, "alice", 2, scene.spare) as connection:
            assert (await connection.call(forged, 5.0)).status is Status.OK
        spare = scene.cluster.bookies[scene.spare].bookie_id
        kept = before.last_fragment.bookies[1:]
        ensemble = (Fragment(0, (spare, *kept)),)
        for is_known in (True, False):
            await scene.rewrite(lambda _: replace(before, fragments=ensemble))
            if is_known:  # what bookies remember from before must not count
                for bookie in scene.cluster.bookies.values():
                    assert bookie.access is not None
                    await bookie.access.resolve(scene.ledger_id)
            assert await scene.values() == VALUES
            async with connection_of(scene.cluster, "bob", 3, scene.spare) as connection:
                answer = await connection.call(ReadRequest(scene.ledger_id, 0), 5.0)
                assert answer.status is Status.UNAUTHORIZED
        await is_refused(scene, password, [scene.spare])


COPIED = (
    "derived in her namespace",
    "a password of her own",
    "no password",
    "nothing said of passwords",
    "no namespace, and a password",
)


async def test_no_copy_is_made_under_a_key_that_is_not_that_of_the_entries(tmp_path: Path) -> None:
    """Replication workers may read everything, so that alice could have them copy bob's entries to
    a bookie that has nothing of the ledger, under a key of her own."""
    keys = LedgerKeys([SECRET])
    async with (
        scene_of(tmp_path, keys) as scene,
        client_of(scene.cluster, "healer", keys) as client,
    ):
        before = await client.ledger_metadata(scene.ledger_id)
        spare = scene.cluster.bookies[scene.spare].bookie_id
        holder, *_ = before.last_fragment.bookies
        wanted = [(0, before.last_entry_id)]
        for how in COPIED:
            await scene.rewrite(REWRITES[how][0])
            changed = await client.ledger_metadata(scene.ledger_id)
            with pytest.raises(Unauthorized, match="another key"):
                await check_key_at(client.pool, holder, changed, timeout_s=2.0)
            for metadata in (before, changed):
                await check_key_at(client.pool, spare, metadata, timeout_s=2.0)
            async with Copier(client) as copier:
                report = await copier.copy(changed, spare, wanted)
                assert report.entries == 0, how
                assert "another key" in repr(report.failures)
            async with connection_of(scene.cluster, "alice", 2, scene.spare) as connection:
                answer = await connection.call(ReadRequest(scene.ledger_id, 0), 5.0)
                assert answer.status is Status.NO_SUCH_LEDGER
            await scene.rewrite(lambda _: before)
        async with Copier(client) as copier:
            await check_key_at(client.pool, holder, before, timeout_s=2.0)
            assert (await copier.copy(before, spare, wanted)).is_complete


async def test_a_password_beside_an_unknown_secret_counts_for_nothing(tmp_path: Path) -> None:
    """A ledger with such metadata looks as if its key were derived, and its key is alice's."""
    settings = {"derived_keys_required": True, "cluster_secret_file": "given above"}
    async with scene_of(tmp_path, LedgerKeys([SECRET]), **settings) as scene:
        stored, _ = await scene.ledgers.read(scene.ledger_id)
        own = replace(stored, ledger_id=scene.ledger_id + 1000)
        data = encode(retagged("b", b"Derived:0123456789abcdef", PASSWORD)(own))
        assert PASSWORD in data
        path = await scene.ledgers.path(own.ledger_id)
        await scene.ledgers._store.create(path, data.replace(b"Derived:", b"derived:"))
        forged = requests(own.ledger_id, master_key(PASSWORD), PASSWORD)[-3]
        expected = {"alice": Status.UNAUTHORIZED, "bob": Status.TOO_MANY_REQUESTS}
        for user, status in expected.items():
            async with connection_of(scene.cluster, user, 2) as connection:
                assert (await connection.call(forged, 5.0)).status is status, user
        read, _ = await scene.ledgers.read(own.ledger_id)
        assert (read.password, read.is_key_missing) == (b"", True)


async def test_an_id_that_belonged_to_one_before_it_was_generated_shows_nothing_of_the_next(
    tmp_path: Path,
) -> None:
    """Alice makes metadata of ids to come, has bookies read it, and deletes it."""
    async with scene_of(tmp_path, LedgerKeys([SECRET])) as scene:
        first = scene.ledger_id + 1
        stored, _ = await scene.ledgers.read(scene.ledger_id)
        planted = range(first, first + 6)
        async with AsyncExitStack() as stack:
            opened = [connection_of(scene.cluster, "alice", 2, n) for n in scene.cluster.bookies]
            connections = [await stack.enter_async_context(one) for one in opened]
            for ledger_id in planted:
                own = retagged("a", b"kept", b"")(replace(stored, ledger_id=ledger_id))
                await scene.ledgers.create(own)
                for connection in connections:
                    answer = await connection.call(ReadRequest(ledger_id, 0), 5.0)
                    assert answer.status is Status.NO_SUCH_LEDGER, "it is hers"
                await scene.ledgers.delete(ledger_id)
            async with client_of(scene.cluster, "bob", BOB) as client:
                namespace = Namespace(client, "b")
                async with namespace.writer("t", create=True) as writer:
                    await writer.append_many(VALUES)
                stream, _ = await namespace.store.read_stream("b", "t")
                taken = set(stream.ledgers()) & set(planted)
                assert taken
                assert await read_values(namespace, "t") == VALUES
            for ledger_id in taken:
                answers = [await one.call(ReadRequest(ledger_id, 0), 5.0) for one in connections]
                assert not any(getattr(answer, "body", None) for answer in answers)
                refused = [one.status is Status.UNAUTHORIZED for one in answers]
                assert refused.count(True) == 3, "those that have it"


@pytest.mark.parametrize("is_required", [False, True])
async def test_a_ledger_of_ones_own_is_passed_off_as_anothers_unless_keys_must_be_derived(
    tmp_path: Path, is_required: bool
) -> None:
    settings = {"derived_keys_required": is_required, "cluster_secret_file": "given above"}
    async with scene_of(tmp_path, LedgerKeys([SECRET]), **settings) as scene:
        async with client_of(scene.cluster, "alice", ALICE) as client:
            made = client.create_ledger(password=PASSWORD, custom={})
            try:
                async with made as writer:
                    await writer.append(FORGED)
            except LedgerError:
                assert is_required
                return
            ledger_id = writer.ledger_id
        scene.ledger_id = ledger_id
        await scene.rewrite(retagged("b", b"1", PASSWORD))
        async with client_of(scene.cluster, "bob", BOB) as client:
            read = client.open_ledger(ledger_id, recover=False)
            if is_required:
                with pytest.raises(LedgerError):
                    async with read as reader:
                        await reader.read(0, 0)
            else:
                async with read as reader:
                    assert [entry.payload for entry in await reader.read(0, 0)] == [FORGED]
