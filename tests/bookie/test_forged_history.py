"""Forged frames to real bookies: of a sealed ledger no byte changes, and nothing is added to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import Status
from ledger.wire.messages import AddRequest, AddResponse, ReadRequest, ReadResponse
from tests.bookie.server.test_server import Peer, peer_of
from tests.real_cluster import SMALL, RealCluster, real_cluster

ENTRIES = 30
SETTINGS = SMALL | {"garbage_interval_ms": 3_600_000}
DIGEST = Digest(DigestType.CRC32C, b"")
KINDS = [(version, is_recovery) for version in (2, 3) for is_recovery in (False, True)]


def _forged(ledger_id: int, entry_id: int, *, is_recovery: bool) -> AddRequest:
    """With a valid digest, and with the length that the ledger has up to it."""
    body = b"".join(DIGEST.encode_entry(ledger_id, entry_id, -1, 8 * (entry_id + 1), b"a forgery"))
    return AddRequest(ledger_id, entry_id, master_key(b""), body, is_recovery=is_recovery)


async def _sealed(cluster: RealCluster) -> int:
    async with (
        cluster.client() as client,
        await client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C
        ) as writer,
    ):
        for entry_id in range(ENTRIES):
            await writer.append(b"%08d" % entry_id)
        await writer.close()
        return writer.ledger_id


async def _forge(peer: Peer, ledger_id: int) -> None:
    for version, is_recovery in KINDS:
        for entry_id in (0, 7, ENTRIES - 1):
            sent = _forged(ledger_id, entry_id, is_recovery=is_recovery)
            answer = await peer.ask(AddResponse, sent, version)
            assert answer.status is Status.BAD_REQUEST, (version, is_recovery, entry_id)


async def _read_all(cluster: RealCluster, ledger_id: int) -> None:
    async with cluster.client() as client:
        reader = await client.open_ledger(ledger_id, password=b"", recover=False)
        async with reader:
            entries = await reader.read(0, ENTRIES - 1)
    assert [bytes(one.payload) for one in entries] == [b"%08d" % n for n in range(ENTRIES)]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_forged_frame_changes_no_byte_of_a_sealed_ledger(
    tmp_path: Path, is_restarted: bool
) -> None:
    async with real_cluster(tmp_path, bookies=1, **SETTINGS) as cluster:
        ledger_id = await _sealed(cluster)
        if is_restarted:
            await cluster.stop(0)
            await cluster.start(0)
        async with peer_of(cluster) as peer:
            await _forge(peer, ledger_id)
            assert cluster.bookies[0].storage is not None
            await cluster.bookies[0].storage.checkpoint()
            await _forge(peer, ledger_id)
        await _read_all(cluster, ledger_id)


async def test_nothing_is_added_behind_the_end_that_the_metadata_names(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, bookies=1, **SETTINGS) as cluster:
        ledger_id = await _sealed(cluster)
        bookie = cluster.bookies[0]
        assert bookie.storage is not None
        assert bookie.over_replication is not None
        await bookie.storage.checkpoint()
        await bookie.over_replication.round(is_forced=True)
        for is_restarted in (False, True):
            if is_restarted:
                await cluster.stop(0)
                await cluster.start(0)
            async with peer_of(cluster) as peer:
                for version, is_recovery in KINDS:
                    for entry_id in (ENTRIES, 10**12):
                        sent = _forged(ledger_id, entry_id, is_recovery=is_recovery)
                        answer = await peer.ask(AddResponse, sent, version)
                        assert answer.status is Status.FENCED
                        read = await peer.ask(ReadResponse, ReadRequest(ledger_id, entry_id))
                        assert read.status is Status.NO_SUCH_ENTRY
        await _read_all(cluster, ledger_id)
