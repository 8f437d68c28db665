"""Ids that were used before their ledgers exist stop no writer: real bookies, real sockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from bookie.core.ledger_state import LedgerState
from bookie.startup.restored_metadata import UnbornIds
from ledger.core.entry import DigestType, master_key
from ledger.core.ledger_keys import ClusterSecret, LedgerKeys
from ledger.credentials import Credentials, Secret
from ledger.errors import LedgerExists, NoSuchLedger, RetryableError, Status, Unauthorized
from ledger.wire import v3
from ledger.writing import creator
from tests.bookie.server.test_master_keys import keyed_add, keyed_fence, keyed_lac
from tests.real_cluster import SMALL, RealCluster, real_cluster

KEYS = LedgerKeys([ClusterSecret(b"a-secret-of-the-cluster-" * 3)])
UNCOLLECTED = SMALL | {"garbage_interval_ms": 3_600_000}
"""Ids that are taken stay taken."""
Attack = Callable[[int, bytes], bytes]


def _fence(ledger_id: int, key: bytes) -> bytes:
    return keyed_fence(ledger_id, key)


def _add(ledger_id: int, key: bytes) -> bytes:
    return keyed_add(ledger_id, key, is_recovery=False)


def _recovery_add(ledger_id: int, key: bytes) -> bytes:
    return keyed_add(ledger_id, key, is_recovery=True)


ATTACKS = pytest.mark.parametrize("attack", [_fence, _add, _recovery_add, keyed_lac])


async def _take(
    cluster: RealCluster, ids: Sequence[int], attack: Attack, bookies: Sequence[int] = (0, 1, 2)
) -> list[Status]:
    """Uses the ids at the bookies, each with a random key, and returns the answers."""
    rng = random.Random(1)
    answers: list[Status] = []
    for number in bookies:
        frames = [attack(ledger_id, rng.randbytes(20)) for ledger_id in ids]
        async with await trio.open_tcp_stream(*cluster.bookies[number].address) as stream:
            await stream.send_all(b"".join(len(f).to_bytes(4, "big") + f for f in frames))
            received = bytearray()
            while frames:
                chunk = await stream.receive_some(1 << 16)
                assert chunk, "the bookie closed the connection"
                received += chunk
                while len(received) >= (size := 4 + int.from_bytes(received[:4], "big")) > 4:
                    answers.append(v3.decode_response(bytes(received[4:size])).body.status)
                    del received[:size], frames[0]
    return answers


def _state(cluster: RealCluster, ledger_id: int, number: int = 0) -> LedgerState | None:
    storage = cluster.bookies[number].storage
    assert storage is not None
    return storage.state(ledger_id)


async def test_an_id_that_is_taken_at_one_bookie_is_given_up(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **UNCOLLECTED) as cluster, cluster.client() as client:
        first = await client.ledgers.next_ledger_id()
        await _take(cluster, [first + 1], _fence, bookies=[1])
        async with client.create_ledger(password=None) as writer:
            assert writer.ledger_id > first + 1
            await writer.append(b"x")
        with pytest.raises(NoSuchLedger):
            await client.ledger_metadata(first + 1)


async def test_a_cluster_whose_ids_are_all_taken_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creator, "CLAIM_TRIES_MAX", 3)
    async with real_cluster(tmp_path, **UNCOLLECTED) as cluster, cluster.client() as client:
        first = await client.ledgers.next_ledger_id()
        await _take(cluster, range(first, first + 20), _fence, bookies=[0])
        with pytest.raises(LedgerExists, match=r"3 .*foreign keys.*Cure"):
            await client.create_ledger(password=None)
        assert await client.list_ledgers() == []


async def test_another_secret_than_the_bookies_is_a_clear_error_and_wastes_few_ids(
    tmp_path: Path,
) -> None:
    async with real_cluster(tmp_path, 1, keys=KEYS, **UNCOLLECTED) as cluster:
        cluster.keys = LedgerKeys([ClusterSecret(b"another-secret-" * 3)])
        async with cluster.client() as client:
            first = await client.ledgers.next_ledger_id()
            with pytest.raises(Unauthorized, match=r"8 in a row.*Cure"):
                await client.create_ledger(
                    ensemble_size=1, write_quorum=1, ack_quorum=1, password=None
                )
            assert await client.list_ledgers() == []
            assert await client.ledgers.next_ledger_id() < first + 300


async def test_a_client_that_bookies_do_not_let_in_leaves_no_ledger(tmp_path: Path) -> None:
    """Its ledger would have a key that no bookie has heard of: behind it, as the last segment of a
    stream, nobody without the right to fence it could continue."""
    who = Credentials(user="ann", password=Secret("a wrong one"))
    mechanisms = ("SCRAM-SHA-256",)
    async with (
        real_cluster(tmp_path, authentication_mechanisms=mechanisms, **UNCOLLECTED) as cluster,
        cluster.client(credentials=who) as client,
    ):
        with pytest.raises(Unauthorized, match=r"refused to authenticate user 'ann'.*Cure"):
            await client.create_ledger(password=None)
        assert await client.list_ledgers() == []


async def test_a_creation_that_is_cancelled_leaves_no_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_cluster(tmp_path, 1, **UNCOLLECTED) as cluster, cluster.client() as client:
        with trio.CancelScope() as scope:

            async def call(*_: object, **__: object) -> None:
                assert await client.list_ledgers() != []
                scope.cancel()
                await trio.sleep_forever()

            monkeypatch.setattr(client.pool, "call", call)
            await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1, password=None)
        assert scope.cancelled_caught
        assert await client.list_ledgers() == []


async def test_a_claim_makes_the_key_of_a_prepared_ledger_known(tmp_path: Path) -> None:
    """Its first entry may come much later: no other key can take the id meanwhile."""
    async with (
        real_cluster(tmp_path, **UNCOLLECTED) as cluster,
        cluster.client() as client,
        client.create_ledger(password=None) as writer,
    ):
        taken = await _take(cluster, [writer.ledger_id], _fence)
        assert set(taken) == {Status.UNAUTHORIZED}
        assert await writer.append(b"x") == 0


async def test_a_claim_costs_one_request_and_one_sync_at_each_bookie(tmp_path: Path) -> None:
    """All claims of one moment share a sync, as those of a sink's many ledgers."""

    def costs(cluster: RealCluster) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for bookie in cluster.bookies.values():
            assert bookie.server is not None
            assert bookie.storage is not None
            claims = bookie.server.statistics().requests.answered["write_lac"]
            found.append((claims, sum(one.statistics().syncs for one in bookie.storage.journals)))
        return found

    async with real_cluster(tmp_path, **UNCOLLECTED) as cluster, cluster.client() as client:
        async with client.create_ledger(password=None):
            pass  # connections are open from now on
        before = costs(cluster)
        async with client.create_ledger(password=None):
            pass
        after = costs(cluster)
        assert [(a - b, c - d) for (a, c), (b, d) in zip(after, before, strict=True)] == [
            (1, 1)
        ] * 3
        async with client.create_ledger(password=b""):
            pass
        assert costs(cluster) == after, "a ledger without a key of its own is not claimed"


async def test_a_bookie_that_is_down_holds_up_no_new_ledger(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **UNCOLLECTED) as cluster, cluster.client() as client:
        await cluster.stop(2)
        with trio.fail_after(20):
            async with client.create_ledger(
                ensemble_size=2, write_quorum=2, ack_quorum=1, password=None
            ) as writer:
                assert await writer.append(b"x") == 0


async def test_one_bookie_with_the_id_under_another_key_is_replaced(tmp_path: Path) -> None:
    """It was silent when the ledger was claimed, or came into the ensemble later."""
    async with (
        real_cluster(tmp_path, 4, **UNCOLLECTED) as cluster,
        cluster.client() as client,
        client.create_ledger(
            ensemble_size=2, write_quorum=2, ack_quorum=1, password=None
        ) as writer,
    ):
        await writer.append(b"x")
        numbers = {bookie.bookie_id: number for number, bookie in cluster.bookies.items()}
        ensemble = writer.metadata.last_fragment.bookies
        spares = [name for name in numbers if name not in ensemble]
        await _take(cluster, [writer.ledger_id], _fence, bookies=[numbers[spares[0]]])
        await cluster.stop(numbers[ensemble[0]])
        for number in range(200):
            assert await writer.append(b"%d" % number) == number + 1
        assert writer.error is None


async def test_ids_that_were_never_generated_are_forgotten_with_their_keys(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **UNCOLLECTED) as cluster, cluster.client() as client:
        create = partial(
            client.create_ledger, ensemble_size=1, write_quorum=1, ack_quorum=1, password=None
        )
        async with create() as deleted:
            await deleted.append(b"x")
        await client.delete_ledger(deleted.ledger_id)
        first = await client.ledgers.next_ledger_id()
        await _take(cluster, range(first, first + 50), _add, bookies=[0])
        bookie = cluster.bookies[0]
        assert bookie.storage is not None
        await bookie.storage.checkpoint()  # a round asks about the ledgers in the index
        unborn = UnbornIds(bookie.ledgers)

        async def is_deleted(ledger_id: int) -> bool:
            return not await bookie.ledgers.exists(ledger_id)

        await bookie.storage.collect_garbage(is_deleted, is_unborn=unborn.contain)
        assert all(_state(cluster, ledger_id) is None for ledger_id in range(first + 2, first + 50))
        known = _state(cluster, deleted.ledger_id)
        assert known is not None
        assert known.is_deleted  # its writer might live, so it is remembered
        async with create() as writer:
            assert writer.ledger_id <= first + 2
            assert await writer.append(b"x") == 0


# ---- with a secret


@ATTACKS
@pytest.mark.parametrize("version", [2, 3])
async def test_with_a_secret_no_id_can_be_taken(
    tmp_path: Path, attack: Attack, version: int
) -> None:
    async with (
        real_cluster(tmp_path, keys=KEYS, **UNCOLLECTED) as cluster,
        cluster.client(wire_version=version) as client,
    ):
        first = await client.ledgers.next_ledger_id()
        ids = range(first, first + 20)
        assert set(await _take(cluster, ids, attack)) == {Status.UNAUTHORIZED}
        for number in range(3):
            assert all(_state(cluster, ledger_id, number) is None for ledger_id in ids)
        lookups = _lookups(cluster)
        async with client.create_ledger(password=None) as writer:
            assert writer.ledger_id == first + 1
        proven = _lookups(cluster)
        assert lookups < proven <= lookups + 3, "the first ledger of a namespace proves its key"
        async with client.create_ledger(password=None) as writer:
            assert writer.ledger_id == first + 2
            assert [await writer.append(b"%d" % n) for n in range(5)] == list(range(5))
        assert _lookups(cluster) == proven, "the next ones need no look at the metadata"
        assert set(await _take(cluster, [writer.ledger_id], attack)) == {Status.UNAUTHORIZED}
        async with client.open_ledger(writer.ledger_id) as reader:
            assert [entry.payload for entry in await reader.read(0, 4)] == [
                b"%d" % n for n in range(5)
            ]


def _lookups(cluster: RealCluster) -> int:
    checks = [bookie.requests.key_check for bookie in cluster.bookies.values() if bookie.requests]
    assert len(checks) == len(cluster.bookies)
    return sum(check.lookups for check in checks)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("password", [b"", b"of an application"])
async def test_with_a_secret_other_passwords_are_accepted_from_the_metadata(
    tmp_path: Path, version: int, password: bytes
) -> None:
    """Such ledgers are those of Apache's clients, and all that are older than the secret."""
    async with (
        real_cluster(tmp_path, keys=KEYS, **UNCOLLECTED) as cluster,
        cluster.client(wire_version=version) as client,
    ):
        writer = await client.create_ledger(password=password)
        for number in range(5):
            await writer.append(b"%d" % number)
        writer.abandon()
        async with client.open_ledger(writer.ledger_id, password=password) as reader:
            assert reader.last_add_confirmed == 4
        assert 1 <= _lookups(cluster) <= 3
        with pytest.raises(Unauthorized):
            await client.open_ledger(writer.ledger_id, password=b"wrong")


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.HMAC])
async def test_ledgers_from_before_the_secret_go_on(
    tmp_path: Path, digest_type: DigestType
) -> None:
    """Bookies that never heard of the ledger, as of one without entries, believe its metadata."""
    async with real_cluster(tmp_path, **UNCOLLECTED) as cluster:
        async with cluster.client() as client:
            writer = await client.create_ledger(
                password=None, digest_type=digest_type, write_quorum=1, ack_quorum=1
            )
            await writer.append(b"x")
            writer.abandon()
            old = await client.ledger_metadata(writer.ledger_id)
        cluster.keys = KEYS
        for number in range(3):
            await cluster.stop(number)
            await cluster.start(number)
        async with cluster.client() as client:
            assert await client.ledger_metadata(writer.ledger_id) == old
            async with client.open_ledger(writer.ledger_id) as reader:
                assert [entry.payload for entry in await reader.read(0, 0)] == [b"x"]


async def test_a_client_without_the_secret_can_read_and_cannot_fence(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, keys=KEYS, **UNCOLLECTED) as cluster,
        cluster.client() as client,
        client.create_ledger(password=None) as writer,
    ):
        await writer.append(b"x")
        await writer.append(b"y")
        cluster.keys = LedgerKeys()
        async with cluster.client() as outsider:
            metadata = await outsider.ledger_metadata(writer.ledger_id)
            assert metadata.password == b""
            with pytest.raises(Unauthorized, match=r"secret.*Cure"):
                await outsider.open_ledger(writer.ledger_id)
            async with outsider.open_ledger(writer.ledger_id, recover=False) as reader:
                assert [entry.payload for entry in await reader.read(0, 0)] == [b"x"]
            # Nor has it marked the ledger as being recovered.
            assert (await client.ledger_metadata(writer.ledger_id)).state == metadata.state
        await writer.append(b"z")


async def test_a_hmac_ledger_cannot_be_checked_without_the_secret(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, keys=KEYS, **UNCOLLECTED) as cluster,
        cluster.client() as client,
        client.create_ledger(password=None, digest_type=DigestType.HMAC) as writer,
    ):
        await writer.append(b"x")
        cluster.keys = LedgerKeys()
        async with cluster.client() as outsider:
            with pytest.raises(Unauthorized, match="secret"):
                await outsider.open_ledger(writer.ledger_id, recover=False)


async def test_a_foreign_key_is_in_doubt_while_the_metadata_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with real_cluster(tmp_path, 1, keys=KEYS, **UNCOLLECTED) as cluster:
        bookie = cluster.bookies[0]

        async def unavailable(_ledger_id: int) -> None:
            raise RetryableError("the metadata store does not answer")

        with monkeypatch.context() as patched:
            patched.setattr(bookie.ledgers, "read", unavailable)
            for attack in (_fence, _add, _recovery_add, keyed_lac):
                doubtful = await _take(cluster, [70], attack, bookies=[0])
                assert doubtful == [Status.TOO_MANY_REQUESTS]
        assert _state(cluster, 70) is None
        assert await _take(cluster, [70], _fence, bookies=[0]) == [Status.UNAUTHORIZED]


async def test_a_refusal_is_not_held_against_a_ledger_that_is_created_later(tmp_path: Path) -> None:
    """Its key may be known to everybody, as that of the empty password."""
    async with (
        real_cluster(tmp_path, 1, keys=KEYS, **UNCOLLECTED) as cluster,
        cluster.client() as client,
    ):
        first = await client.ledgers.next_ledger_id()
        requests = cluster.bookies[0].requests
        assert requests is not None
        contact = first + 1, master_key(b"")
        assert await requests.key_check.prove(contact) is Status.UNAUTHORIZED
        async with client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, password=b""
        ) as writer:
            assert writer.ledger_id == first + 1
            assert await writer.append(b"x") == 0
