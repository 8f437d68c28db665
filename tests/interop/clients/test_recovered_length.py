"""The end and the length after recovery if one bookie alone has an entry far after the LAC.

A writer that is fenced with many entries in flight leaves such entries if one bookie was ahead of
the others. They were never acknowledged, so that recovery may ignore them. Apache's recovery then
stores the length up to the last of them, on bookies of either kind; ledgerstream stores the right
one.
"""

from __future__ import annotations

import pytest

from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.quorum import write_set
from ledger.errors import InvalidArgument, Status
from ledger.wire.messages import AddRequest, AddResponse
from tests.interop.clients.both_clients import BothClients, Cluster, open_both_clients, payloads_of
from tests.interop.conftest import GetSharedJava
from tests.interop.java_client import payload
from tests.interop.takeover.judge import LedgerEnd, lengths_by_java
from tests.interop.takeover.plan import Language, Pace, Shape

pytestmark = pytest.mark.interop

ENTRIES = 10
LONE_ENTRY = 15
SIZE = 100
PACE = Pace(seed=1, sizes=(SIZE,) * ENTRIES, pauses_ms=(0.0,) * ENTRIES, window=ENTRIES)
SHAPE = Shape(3, 3, 2, DigestType.CRC32C)
PASSWORD = b"open sesame"
RIGHT = LedgerEnd(ENTRIES - 1, ENTRIES * SIZE)
MISJUDGED = LedgerEnd(ENTRIES - 1, (LONE_ENTRY + 1) * SIZE)
ENDS = {Language.PYTHON: RIGHT, Language.JAVA: MISJUDGED}
BOOKIES = {
    "our bookies": ("ours-0", "ours-1", "ours-2"),
    "Apache's bookies": ("apache-0", "apache-1", "apache-2"),
}


async def add_lone_entry(here: BothClients, ledger_id: int, bookie: str, wire: str) -> None:
    """Adds to one bookie an entry that the ledger's writer might have sent.

    Entries up to ENTRIES - 1 are confirmed, and the next ones are still in flight.
    """
    entry = Digest(SHAPE.digest_type, PASSWORD).encode_entry(
        ledger_id,
        LONE_ENTRY,
        ENTRIES - 1,
        MISJUDGED.length,
        payload(PACE.seed, LONE_ENTRY, SIZE),
    )
    request = AddRequest(ledger_id, LONE_ENTRY, master_key(PASSWORD), b"".join(map(bytes, entry)))
    async with here.python.client() as client:
        connection = client.pool.connection(bookie, int(wire[1]))
        await connection.wait_connected()
        response = await connection.call(request, 15)
    assert isinstance(response, AddResponse)
    assert response.status is Status.OK


async def check_our_reader(here: BothClients, ledger_id: int, end: LedgerEnd) -> None:
    """Checks that the Python client accepts the metadata, and reads the ledger in all its ways."""
    expected = payloads_of(PACE)
    async with here.python.client() as client:
        async with client.open_ledger(ledger_id, password=PASSWORD) as reader:
            assert reader.is_closed
            assert LedgerEnd(reader.last_add_confirmed, reader.length) == end
            (last,) = await reader.read(ENTRIES - 1, ENTRIES - 1)
            assert (last.payload, last.length) == (expected[-1], RIGHT.length)
            with pytest.raises(InvalidArgument):
                await reader.read(0, ENTRIES)
            with pytest.raises(InvalidArgument):
                await reader.read(LONE_ENTRY, LONE_ENTRY)
            tailed = [entry.payload async for entries in reader.tail(0) for entry in entries]
            assert tailed == expected
        async with client.open_ledger(ledger_id, password=PASSWORD, recover=False) as reader:
            assert await reader.read_last_confirmed() == ENTRIES - 1
            assert LedgerEnd(reader.last_add_confirmed, reader.length) == end


@pytest.mark.parametrize("recovered_by", Language, ids=lambda language: f"by {language.value}")
@pytest.mark.parametrize("kind", BOOKIES)
async def test_a_lone_entry_after_the_lac_causes_a_wrong_length_in_apaches_recovery(
    version: str,
    wire: str,
    kind: str,
    recovered_by: Language,
    mixed_cluster: Cluster,
    java_shared: GetSharedJava,
) -> None:
    names = BOOKIES[kind]
    async with open_both_clients(
        mixed_cluster, java_shared, version, names, v2=wire == "v2"
    ) as here:
        writer = await here.java.begin(SHAPE, PASSWORD, PACE)
        ledger_id = writer.ledger_id
        await writer.wait_acked(ENTRIES)
        ensemble = (await here.python.metadata(ledger_id)).last_fragment.bookies
        # In the order in which a reader requests the entry after the LAC.
        lone, _, silent = (ensemble[i] for i in write_set(ENTRIES, 3, 3))
        await add_lone_entry(here, ledger_id, lone, wire)
        # Two responses of three suffice; now the LAC of the lone entry is among them.
        with here.processes.paused(here.processes.name_of(silent)):
            recovered = await here.client_of(recovered_by).recover(ledger_id, SHAPE, PASSWORD)
        saw = await writer.finish()
        assert saw.error == "LedgerFenced"
        assert saw.acked == list(range(ENTRIES))

        assert recovered == ENDS[recovered_by]
        metadata = await here.python.metadata(ledger_id)
        assert metadata.is_closed
        assert LedgerEnd(metadata.last_entry_id, metadata.length) == recovered
        assert metadata.length in lengths_by_java(
            [SIZE] * (LONE_ENTRY + 1), recovered.last_entry_id, ENTRIES - 1
        )
        for side in (here.python, here.java):
            read_end, read = await side.read_closed(ledger_id, SHAPE, PASSWORD)
            assert read_end == recovered
            assert read == payloads_of(PACE)
        await check_our_reader(here, ledger_id, recovered)
