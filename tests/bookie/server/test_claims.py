"""The claim of a ledger, an explicit LAC of -1, makes its key known durably, and nothing else."""

from __future__ import annotations

from pathlib import Path

from ledger.core.entry import master_key
from ledger.errors import Status
from ledger.wire.messages import (
    AddResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from tests.bookie.server.test_server import DIGEST, KEY, SETTINGS, add, peer_of
from tests.real_cluster import real_cluster


async def test_a_claim_outlives_the_bookie_and_is_no_lac(tmp_path: Path) -> None:
    claim = WriteLacRequest(7, -1, KEY, DIGEST.encode_lac(7, -1))
    foreign = WriteLacRequest(7, -1, master_key(b"other"), DIGEST.encode_lac(7, -1))
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        async with peer_of(cluster) as peer:
            assert (await peer.ask(WriteLacResponse, claim)).status is Status.OK
            assert (await peer.ask(WriteLacResponse, foreign)).status is Status.UNAUTHORIZED
        await cluster.stop(0)  # a stop is a crash: nothing is flushed
        await cluster.start(0)
        async with peer_of(cluster) as peer:
            assert (await peer.ask(WriteLacResponse, foreign)).status is Status.UNAUTHORIZED
            assert (await peer.ask(WriteLacResponse, claim)).status is Status.OK
            lac = await peer.ask(ReadLacResponse, ReadLacRequest(7))
            assert (lac.status, lac.lac_body, lac.last_entry_body) == (
                Status.NO_SUCH_ENTRY,
                None,
                None,
            )
            read = await peer.ask(ReadResponse, ReadRequest(7, -1))
            assert read.status is Status.NO_SUCH_ENTRY
            assert (await peer.ask(AddResponse, add(7, 0), 2)).status is Status.OK
            storage = cluster.bookies[0].storage
            assert storage is not None
            storage.gate.set(is_read_only=True, takes_recovery=False)
            assert (await peer.ask(WriteLacResponse, foreign)).status is Status.UNAUTHORIZED
            assert (await peer.ask(WriteLacResponse, claim)).status is Status.READ_ONLY
