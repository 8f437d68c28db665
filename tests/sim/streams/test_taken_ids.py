"""A client without rights uses the ids of ledgers to come, while bookies die and segments roll: no
record is lost, doubled or refused, with a secret of the cluster and without, and if the client has
the key of another namespace."""

from __future__ import annotations

import random

import pytest
import trio

from bookie.testing import SimCluster, simulate
from bookie.testing.cluster import BOOKIE_PORT
from ledger.client import LedgerClient
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.ledger_keys import NO_KEYS, ClusterSecret, LedgerKeys, NamespaceKey
from ledger.errors import LedgerError, Status
from ledger.options import ClientOptions
from ledger.wire.messages import AddRequest, ReadRequest, RequestBody, WriteLacRequest
from stream.namespace import Namespace
from tests.effort import scaled
from tests.stream.whole_streams import read_values

SECRET = ClusterSecret(b"a-secret-of-the-cluster-" * 3)
KEYS = LedgerKeys([SECRET])
PATIENT = ClientOptions(add_timeout_s=0.5, read_timeout_s=0.5)
RECORDS = 60
AHEAD = 30
_DIGEST = Digest(DigestType.CRC32C)


def _attack(ledger_id: int, rng: random.Random, own: NamespaceKey | None) -> RequestBody:
    """Returns a request that makes a random key that of the ledger, if the bookie lets it, or one
    that is derived from that of another namespace."""
    key = rng.randbytes(20) if own is None else master_key(own.password(ledger_id))
    kind = rng.randrange(4)
    if kind == 0:
        return ReadRequest(ledger_id, -1, key, is_fencing=True)
    if kind == 1:
        return WriteLacRequest(ledger_id, 3, key, _DIGEST.encode_lac(ledger_id, 3))
    header, payload = _DIGEST.encode_entry(ledger_id, 0, -1, 1, b"p")
    return AddRequest(ledger_id, 0, key, header + payload, is_recovery=kind == 2)


async def _use_ids_ahead(
    cluster: SimCluster,
    client: LedgerClient,
    rng: random.Random,
    own: NamespaceKey | None,
    taken: list[Status],
) -> None:
    """Guesses where the counter is by the ledgers that there are."""
    while True:
        newest = max(await client.list_ledgers(), default=0)
        for name in cluster.bookies:
            request = _attack(newest + rng.randrange(AHEAD), rng, own)
            try:
                answer = await client.pool.call(f"{name}:{BOOKIE_PORT}", request, timeout_s=0.5)
            except LedgerError:
                continue
            taken.append(answer.status)
        await trio.sleep(rng.random() * 0.02)


async def _restart_bookies(cluster: SimCluster, rng: random.Random) -> None:
    while True:
        await trio.sleep(1 + rng.random())
        bookie = rng.choice(cluster.bookies)
        await cluster.kill_bookie(bookie)
        await trio.sleep(rng.random())
        await cluster.start_bookie(bookie)


async def _prove(client: LedgerClient, name: str) -> None:
    """Makes bookies recognize the keys of this namespace."""
    namespace = Namespace(client, name)
    await namespace.ensure()
    async with namespace.writer("s", create=True) as writer:
        await writer.append(b"x")


@pytest.mark.parametrize(
    ("keys", "own"),
    [(NO_KEYS, None), (KEYS, None), (KEYS, SECRET.namespace_key("of-the-thief"))],
    ids=["without a secret", "with a secret", "with the key of another namespace"],
)
def test_writers_go_on_while_ids_are_taken_ahead_of_them(
    keys: LedgerKeys, own: NamespaceKey | None
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        taken: list[Status] = []
        rng = cluster.simulation.chance("attacker")
        cluster.keys = keys
        for name in cluster.bookies:
            await cluster.stop_bookie(name)
            await cluster.start_bookie(name)
        async with cluster.client("writer", PATIENT) as client, cluster.client("thief") as thief:
            namespace = Namespace(client, "n")
            # A bookie that is silent while a ledger is claimed may have an entry of the thief under
            # its id. With permissions it would refuse to show it; here the digest unmasks it.
            await namespace.ensure(roll_ms=1000, digest_type="HMAC")
            await namespace.ensure_stream("s")
            if own is not None:
                await _prove(client, own.namespace)
            sent: list[bytes] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_use_ids_ahead, cluster, thief, rng, own, taken)
                nursery.start_soon(_restart_bookies, cluster, cluster.simulation.chance("deaths"))
                for _ in range(3):  # three writers, one after the other, take the stream over
                    async with namespace.writer("s") as writer:
                        for _ in range(RECORDS // 3):
                            with trio.fail_after(60):
                                await writer.append(b"%d" % len(sent))
                            sent.append(b"%d" % len(sent))
                            await trio.sleep(0.3)
                nursery.cancel_scope.cancel()
            await cluster.start_all()
            assert await read_values(namespace) == sent
            assert len(taken) > 100
            assert (Status.OK in taken) == (not keys or own is not None)

    for seed in range(scaled(ci=1, night=100)):
        simulate(scenario, seed, bookies=5)
