"""Our copier on Apache's bookies: from them and to them, in both wire versions.

Bookies of 4.16 close a connection on a batch read; then entries are read one by one.
"""

from __future__ import annotations

from typing import Any

import pytest

from ledger.autorecovery.copier import Copier, CopierOptions
from ledger.client import LedgerClient
from ledger.core.availability import expected_ranges
from ledger.core.metadata import LedgerMetadata
from tests.interop.conftest import ApacheBookies, GetApacheBookies
from tests.interop.our_client import PASSWORD, options_of, payloads
from tests.interop.replicas import read_raw

pytestmark = pytest.mark.interop

BOOKIES = 4


@pytest.fixture
def cluster(version: str, apache_bookies: GetApacheBookies) -> ApacheBookies:
    return apache_bookies(version, BOOKIES)


async def _closed(client: LedgerClient, *, is_fenced: bool, **sizes: Any) -> LedgerMetadata:
    entries = payloads(9, [0, 1, 31, 65_537, *[1000] * 500])
    writer = await client.create_ledger(password=PASSWORD, **sizes)
    await writer.append_many(entries)
    if is_fenced:
        writer.abandon()
        async with client.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
            assert reader.last_add_confirmed == len(entries) - 1
    else:
        await writer.close()
    return await client.ledger_metadata(writer.ledger_id)


async def _copy(
    client: LedgerClient, metadata: LedgerMetadata, target: str, ranges: list[tuple[int, int]]
) -> None:
    async with Copier(client, CopierOptions(bytes_per_s=0)) as copier:
        report = await copier.copy(metadata, target, ranges)
    assert report.is_complete, report
    assert report.entries == sum(last - first + 1 for first, last in ranges)
    source = metadata.fragments[0].bookies[0]
    for first, last in ranges:
        for entry_id in range(first, last + 1, 7):
            copy = await read_raw(client.pool, metadata.ledger_id, entry_id, target)
            assert copy is not None
            assert copy == await read_raw(client.pool, metadata.ledger_id, entry_id, source)


@pytest.mark.parametrize("is_fenced", [False, True], ids=["closed", "recovered"])
async def test_copies_have_the_bytes_of_the_others(
    cluster: ApacheBookies, wire: str, is_fenced: bool
) -> None:
    async with LedgerClient.connect(cluster.uri, options=options_of(wire)) as client:
        for sizes in ((2, 2, 2), (3, 2, 2)):
            ensemble, write, ack = sizes
            metadata = await _closed(
                client,
                is_fenced=is_fenced,
                ensemble_size=ensemble,
                write_quorum=write,
                ack_quorum=ack,
            )
            used = metadata.fragments[0].bookies
            target = next(one for one in await client.bookies.available() if one not in used)
            await _copy(client, metadata, target, list(expected_ranges(metadata, used[0])))


async def test_a_fenced_bookie_takes_copies(cluster: ApacheBookies, wire: str) -> None:
    """The target has the ledger already, fenced by a recovery."""
    async with LedgerClient.connect(cluster.uri, options=options_of(wire)) as client:
        metadata = await _closed(
            client, is_fenced=True, ensemble_size=3, write_quorum=3, ack_quorum=2
        )
        target = metadata.fragments[0].bookies[2]
        await _copy(client, metadata, target, [(0, metadata.last_entry_id)])
