"""Claims that were forged, on real bookies: they move no end, and a moved end is mended."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.metadata import LedgerMetadata
from ledger.errors import InvalidArgument, LedgerError, RecoveryIncomplete, Status
from ledger.wire.messages import AddRequest
from stream import EARLIEST, Namespace
from stream.repair import repair_stream
from tests.real_cluster import SMALL, real_cluster
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import read_values

pytestmark = pytest.mark.usefixtures("impatient_verification")

FAR = 10**12


class _Died(Exception):
    """Ends a writer's block, which leaves its segment open."""


VALUES = [b"%d" % number for number in range(8)]


async def forge(
    namespace: Namespace, metadata: LedgerMetadata, entry_id: int, bookies: int
) -> None:
    """Sends each of the first `bookies` bookies one frame, which claims all entries before it."""
    digest = Digest(metadata.digest_type or DigestType.CRC32C, metadata.password)
    header, payload = digest.encode_entry(metadata.ledger_id, entry_id, entry_id - 1, 9, b"forged")
    body, key = header + bytes(payload), master_key(metadata.password)
    request = AddRequest(metadata.ledger_id, entry_id, key, body, is_recovery=True)
    for bookie in metadata.last_fragment.bookies[:bookies]:
        answer = await namespace.client.pool.call(bookie, request, timeout_s=5)
        assert answer.status is Status.OK


async def append(namespace: Namespace, values: list[bytes]) -> None:
    async with namespace.writer("s", create=True) as writer:
        for value in values:
            await writer.append(value)


async def newest_ledger(namespace: Namespace) -> LedgerMetadata:
    stream = await namespace.scope.stream_metadata("s")
    return await namespace.client.ledger_metadata(stream.segments[-1].ledger_id)


async def append_and_die(namespace: Namespace) -> LedgerMetadata:
    """Returns the metadata of the ledger whose writer died after it appended the values."""
    with suppress(_Died):
        async with namespace.writer("s", create=True) as writer:
            for value in VALUES:
                await writer.append(value)
            raise _Died
    return await newest_ledger(namespace)


async def close_wrongly(namespace: Namespace, *entry_ids: int) -> LedgerMetadata:
    """Closes the open ledger of a stream behind a hole, as recoveries that believed claims did."""
    metadata = await append_and_die(namespace)
    for entry_id in entry_ids:
        await forge(namespace, metadata, entry_id, 3)
    stored, version = await namespace.client.ledgers.read(metadata.ledger_id)
    wrong = stored.in_recovery().closed(entry_ids[-1], 9)
    await namespace.client.ledgers.compare_and_put(wrong, version)
    return wrong


@pytest.mark.parametrize("bookies", [1, 3])
async def test_a_tail_goes_on_after_a_forged_claim(tmp_path: Path, bookies: int) -> None:
    async with a_namespace(tmp_path) as namespace:
        with trio.fail_after(30), suppress(_Died):
            async with (
                namespace.writer("s", create=True) as writer,
                namespace.reader("s", start=EARLIEST) as reader,
            ):
                await writer.append(VALUES[0])
                assert (await anext(reader)).value == VALUES[0]
                await forge(namespace, await newest_ledger(namespace), FAR, bookies)
                for value in VALUES[1:]:
                    await writer.append(value)
                    assert (await anext(reader)).value == value
                raise _Died
        async with namespace.reader("s", start=EARLIEST) as reader:
            tail = reader.read_to_end()
            with trio.fail_after(30):
                found = [record.value async for batch in tail for record in batch.records()]
        # With a forged frame at each bookie none says what is confirmed, until a takeover.
        assert found == (VALUES if bookies == 1 else [])
        await append(namespace, [b"after"])
        assert await read_values(namespace) == [*VALUES, b"after"]


async def test_a_ledger_that_was_closed_behind_a_hole_is_mended(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        wrong = await close_wrongly(namespace, FAR)
        with trio.move_on_after(5) as gave_up, pytest.raises(LedgerError):
            await append(namespace, [b"never"])
        assert not gave_up.cancelled_caught
        found = await repair_stream(namespace.scope, "s", is_dry_run=True)
        assert found is not None
        assert (found.ledger.hole.missing, found.ledger.hole.behind) == (FAR - len(VALUES), 1)
        assert await newest_ledger(namespace) == wrong  # a dry run changes nothing
        again = await repair_stream(namespace.scope, "s")
        assert again is not None
        assert again.next_sequence == len(VALUES)
        assert (await newest_ledger(namespace)).last_entry_id == len(VALUES) - 1
        assert await repair_stream(namespace.scope, "s") is None
        await append(namespace, [b"after"])
        assert await read_values(namespace) == [*VALUES, b"after"]


async def test_entries_behind_a_small_hole_need_the_operators_word(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        first, count = len(VALUES) + 1, len(VALUES)
        wrong = await close_wrongly(namespace, first, first + 1)
        with pytest.raises(RecoveryIncomplete, match="bookies may have lost those between"):
            await repair_stream(namespace.scope, "s")
        with pytest.raises(InvalidArgument, match=f"is {count - 1}, not 3"):
            await repair_stream(namespace.scope, "s", end=3)
        assert await newest_ledger(namespace) == wrong
        assert await repair_stream(namespace.scope, "s", end=count - 1) is not None
        await append(namespace, [b"after"])
        assert await read_values(namespace) == [*VALUES, b"after"]


async def test_nothing_is_mended_while_a_bookie_is_down(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client(read_timeout_s=1.0) as client,
    ):
        namespace = Namespace(client, "demo")
        await namespace.ensure()
        wrong = await close_wrongly(namespace, FAR)
        await cluster.stop(1)
        with pytest.raises(RecoveryIncomplete, match="every bookie that has been in its ensembles"):
            await repair_stream(namespace.scope, "s")
        assert await newest_ledger(namespace) == wrong
