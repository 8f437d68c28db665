"""Ledgers on which other clients work: fragments that move under a writer and a reader.

There are also bookies of other software, and metadata too old to name a digest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.errors import (
    BookieUnavailable,
    DigestMismatch,
    LedgerError,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchEntry,
    RecoveryIncomplete,
)
from ledger.metastore.bookies import OUR_SOFTWARE, SOFTWARE_PROPERTY, BookieInfo, encode_info
from ledger.writing.writer import LedgerWriter
from tests.ledger.scripted_bookie import ScriptedCluster, scripted_cluster
from tests.real_cluster import SMALL, real_cluster

COUNT = 40


def payload_of(i: int) -> bytes:
    return b"%d" % i


async def move_fragment(
    client: LedgerClient, cluster: ScriptedCluster, ledger_id: int, index: int
) -> tuple[str, str]:
    """Moves a fragment from one of its bookies to a spare one, as auto-recovery does.

    It copies the entries, changes the metadata, and returns the names of the two bookies.
    """

    moved = ("", "")

    def change(stored: LedgerMetadata) -> LedgerMetadata:
        nonlocal moved
        fragments = list(stored.fragments)
        first, bookies = fragments[index].first_entry_id, fragments[index].bookies
        spare = next(name for name in cluster.bookies if name not in bookies)
        moved = (bookies[0], spare)
        cluster.bookie(spare).entries.update(cluster.bookie(bookies[0]).entries)
        fragments[index] = Fragment(first, (spare, *bookies[1:]))
        return replace(stored, fragments=tuple(fragments))

    await client.ledgers.update(ledger_id, change)
    return moved


async def lose_a_bookie(client: LedgerClient, writer: LedgerWriter) -> None:
    """Breaks the writer's connection to its first bookie, which the writer then replaces."""
    changes = writer.statistics().ensemble_changes
    bookie = writer.metadata.last_fragment.bookies[0]
    client.pool.connection(bookie, 2).close(BookieUnavailable("lost"))
    with trio.fail_after(10):
        while writer.statistics().ensemble_changes == changes:
            await writer.append(payload_of(writer.last_add_pushed + 1))
            await trio.sleep(0.01)


async def check_reads(client: LedgerClient, ledger_id: int, count: int) -> None:
    async with client.open_ledger(ledger_id) as reader:
        entries = await reader.read(0, count - 1)
    assert [bytes(e.payload) for e in entries] == [payload_of(i) for i in range(count)]


async def test_a_fragment_moved_under_a_writer_stays_moved() -> None:
    async with scripted_cluster(5) as cluster, cluster.client() as client:
        async with client.create_ledger() as writer:
            await writer.append_many(map(payload_of, range(COUNT)))
            await lose_a_bookie(client, writer)
            _, spare = await move_fragment(client, cluster, writer.ledger_id, 0)
            await lose_a_bookie(client, writer)
            _, spare2 = await move_fragment(client, cluster, writer.ledger_id, 1)
        stored = await client.ledger_metadata(writer.ledger_id)
        assert stored.is_closed
        assert spare in stored.fragments[0].bookies
        assert spare2 in stored.fragments[1].bookies
        assert len(stored.fragments) == 3
        await check_reads(client, writer.ledger_id, writer.last_add_pushed + 1)


async def test_the_last_fragment_is_the_writers_own() -> None:
    """A client copied the entries and replaced a bookie, but the writer continued with its own.

    Only the writer's bookie has all entries.
    """
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        async with client.create_ledger(ack_quorum=3) as writer:
            await writer.append_many(map(payload_of, range(COUNT)))
            old, spare = await move_fragment(client, cluster, writer.ledger_id, 0)
            await writer.append_many(map(payload_of, range(COUNT, 2 * COUNT)))
        stored = await client.ledger_metadata(writer.ledger_id)
        assert old in stored.last_fragment.bookies
        assert spare not in stored.last_fragment.bookies
        await check_reads(client, writer.ledger_id, 2 * COUNT)


async def test_a_writer_closes_while_its_new_ensemble_is_being_stored() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append_many(map(payload_of, range(COUNT)))
        update, is_stored, goes_on = client.ledgers.update, trio.Event(), trio.Event()

        async def update_late(*arguments: Any, **named: Any) -> LedgerMetadata:
            stored = await update(*arguments, **named)
            if not stored.is_closed:
                is_stored.set()
                await goes_on.wait()
            return stored

        available, is_appended = client.bookies.available, trio.Event()

        async def available_late() -> dict[str, BookieInfo]:
            await is_appended.wait()
            return await available()

        client.ledgers.update = update_late  # type: ignore[method-assign]
        client.bookies.available = available_late  # type: ignore[method-assign]
        bookie = writer.metadata.last_fragment.bookies[0]
        client.pool.connection(bookie, 2).close(BookieUnavailable("lost"))
        with trio.fail_after(10):
            await writer.append(payload_of(COUNT))  # only an append searches for a replacement
            is_appended.set()
            await is_stored.wait()
        await writer.close()
        goes_on.set()
        assert writer.metadata.last_entry_id == COUNT
        await check_reads(client, writer.ledger_id, COUNT + 1)


async def test_a_ledger_that_names_a_bookie_twice_is_read_or_refused() -> None:
    """Some tools left such ledgers. Reading entries that no bookie has must fail, not wait."""
    async with scripted_cluster(2) as cluster, cluster.client() as client:
        async with client.create_ledger(ensemble_size=2, write_quorum=2) as writer:
            await writer.append_many(map(payload_of, range(COUNT)))

        def twice(stored: LedgerMetadata) -> LedgerMetadata:
            first = stored.last_fragment.bookies[0]
            return replace(stored, fragments=(Fragment(0, (first, first)),))

        await client.ledgers.update(writer.ledger_id, twice)
        await check_reads(client, writer.ledger_id, COUNT)
        for bookie in cluster.bookies.values():
            bookie.entries.clear()
        with trio.fail_after(20), pytest.raises(NoSuchEntry):
            await check_reads(client, writer.ledger_id, COUNT)


async def test_a_writer_that_finds_its_ledger_in_recovery_is_fenced() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append_many(map(payload_of, range(COUNT)))
        await client.ledgers.update(writer.ledger_id, lambda stored: stored.in_recovery())
        with pytest.raises(LedgerFenced, match="recovered by another client"):
            await writer.close()


async def test_a_reader_finds_entries_that_were_moved_meanwhile() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        async with client.create_ledger(write_quorum=3, ack_quorum=3) as writer:
            await writer.append_many(map(payload_of, range(COUNT)))
        async with client.open_ledger(writer.ledger_id) as reader:
            _, spare = await move_fragment(client, cluster, writer.ledger_id, 0)
            for name, bookie in cluster.bookies.items():
                if name != spare:
                    bookie.entries.clear()
            entries = await reader.read(0, COUNT - 1)
            assert len(entries) == COUNT
            assert spare in reader.metadata.fragments[0].bookies


async def test_recovery_begins_again_when_a_fragment_is_moved_meanwhile() -> None:
    async with scripted_cluster(5) as cluster, cluster.client() as client:
        writer = await client.create_ledger()
        await writer.append_many(map(payload_of, range(COUNT)))
        await lose_a_bookie(client, writer)
        count = writer.last_add_pushed + 1
        writer.abandon()
        put, is_moved = client.ledgers.compare_and_put, False

        async def put_late(metadata: LedgerMetadata, version: int) -> int:
            nonlocal is_moved
            if metadata.is_closed and not is_moved:
                is_moved = True
                await move_fragment(client, cluster, writer.ledger_id, 0)
            return await put(metadata, version)

        client.ledgers.compare_and_put = put_late  # type: ignore[method-assign]
        await check_reads(client, writer.ledger_id, count)
        assert is_moved


@pytest.mark.parametrize("properties", [{SOFTWARE_PROPERTY: OUR_SOFTWARE}, {}])
async def test_only_our_bookies_prove_unannounced_confirmations(properties: dict[str, str]) -> None:
    """Apache's bookies serve unsynced entries, which may be lost in a power cut."""
    async with scripted_cluster(properties=properties) as cluster, cluster.client() as reading:
        async with cluster.client(lac_linger_ms=60_000) as writing:
            writer = await writing.create_ledger()
            await writer.append_many(map(payload_of, range(COUNT)))
        # The client is gone without having announced that the last entries are confirmed.
        async with reading.open_ledger(writer.ledger_id, recover=False) as reader:
            known = reader.last_add_confirmed
            assert known == (COUNT - 1 if properties else -1)
        await check_reads(reading, writer.ledger_id, COUNT)


async def test_a_bookie_that_changed_to_other_software_proves_nothing() -> None:
    """A long-lived client listed the bookie when it was ours."""
    cluster_of_three = scripted_cluster(properties={SOFTWARE_PROPERTY: OUR_SOFTWARE})
    async with cluster_of_three as cluster, cluster.client() as reading:
        listed = await reading.bookies.available()
        async with cluster.client(lac_linger_ms=60_000) as writing:
            writer = await writing.create_ledger()
            await writer.append_many(map(payload_of, range(COUNT)))
        for name, info in listed.items():
            theirs = encode_info(BookieInfo(info.host, info.port))
            await reading.store.put(f"/ledgers/available/{name}", theirs)
        async with reading.open_ledger(writer.ledger_id, recover=False) as reader:
            assert reader.last_add_confirmed < COUNT - 1


async def test_an_ensemble_that_may_have_been_replaced_proves_no_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer replaced a bookie before it died, and a reader cannot reach the metadata.

    Two bookies of the new ensemble may deny to a recovery what two of the old one hold.
    """
    cluster_of_four = scripted_cluster(4, {SOFTWARE_PROPERTY: OUR_SOFTWARE})
    async with cluster_of_four as cluster, cluster.client() as reading:
        async with cluster.client(lac_linger_ms=60_000) as writing:
            writer = await writing.create_ledger()
            await writer.append_many(map(payload_of, range(COUNT)))
            reader = await reading.open_ledger(writer.ledger_id, recover=False)
            last = COUNT - 1

            def replaced(stored: LedgerMetadata) -> LedgerMetadata:
                bookies = stored.last_fragment.bookies
                spare = next(name for name in cluster.bookies if name not in bookies)
                return stored.with_ensemble(last, (spare, *bookies[1:]))

            stored = await writing.ledgers.update(writer.ledger_id, replaced)
            del cluster.bookie(stored.last_fragment.bookies[2]).entries[writer.ledger_id, last]

        async def unavailable(_ledger_id: int) -> None:
            raise MetadataUnavailable("out of reach")

        with monkeypatch.context() as outage:
            outage.setattr(reading.ledgers, "read", unavailable)
            assert await reader.read_last_confirmed() < last
        assert await reader.read_last_confirmed() == last - 1


async def test_a_reserved_ledger_that_was_handed_over_has_an_active_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client that reserved the ledger is gone, and the client that writes it is alive."""
    cluster_of_three = scripted_cluster(properties={SOFTWARE_PROPERTY: OUR_SOFTWARE})
    async with cluster_of_three as cluster, cluster.client() as reading:
        async with cluster.client() as reserving:
            ledger_id = await reserving.reserve_ledger()
        reader = await reading.open_ledger(ledger_id, recover=False)
        is_gone, found = reading.ledgers.is_writer_gone, list[bool]()

        async with cluster.client(lac_linger_ms=60_000) as writing:
            writing.rng.seed(4)  # so that it has a name of its own

            async def claimed_meanwhile(metadata: LedgerMetadata) -> bool:
                found.append(await is_gone(metadata))
                if len(found) == 1:
                    writer = await writing.write_reserved(ledger_id)
                    await writer.append_many(map(payload_of, range(COUNT)))
                return found[-1]

            monkeypatch.setattr(reading.ledgers, "is_writer_gone", claimed_meanwhile)
            for _ in range(2):
                assert await reader.read_last_confirmed() < COUNT - 1
        assert found == [True, False]
        assert await reader.read_last_confirmed() == COUNT - 1


async def test_our_bookies_are_registered_as_ours(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, **SMALL) as cluster, cluster.client() as client:
        infos = await client.bookies.available()
    assert len(infos) == 3
    assert all(i.properties[SOFTWARE_PROPERTY] == OUR_SOFTWARE for i in infos.values())


@pytest.mark.parametrize("format_version", [1, 2])
async def test_the_digest_of_a_ledger_that_names_none(format_version: int) -> None:
    password = b"secret"
    async with scripted_cluster() as cluster, cluster.client() as client:
        writer = await client.create_ledger(
            ack_quorum=3, digest_type=DigestType.HMAC, password=password
        )
        await writer.append_many(map(payload_of, range(COUNT)))
        writer.abandon()
        await client.ledgers.update(
            writer.ledger_id,
            lambda stored: replace(
                stored, format_version=format_version, digest_type=None, password=b"", custom={}
            ),
        )
        with pytest.raises(RecoveryIncomplete, match="bad entry"):
            await client.open_ledger(writer.ledger_id, password=password)
        async with client.open_ledger(
            writer.ledger_id, password=password, digest_type=DigestType.HMAC
        ) as reader:
            entries = await reader.read(0, COUNT - 1)
            assert [bytes(e.payload) for e in entries] == [payload_of(i) for i in range(COUNT)]
        with pytest.raises(DigestMismatch):
            async with client.open_ledger(
                writer.ledger_id, password=password, digest_type=DigestType.CRC32C
            ) as reader:
                await reader.read(0, COUNT - 1)


@pytest.mark.parametrize("wire_version", [2, 3])
@pytest.mark.parametrize("deferred_sync", [False, True])
async def test_our_bookies_work_with_every_protocol_version_and_sync_mode(
    tmp_path: Path, wire_version: int, deferred_sync: bool
) -> None:
    async with (
        real_cluster(tmp_path, 4, **SMALL) as cluster,
        cluster.client(wire_version=wire_version) as client,
    ):
        for sizes in ((3, 3, 2), (4, 2, 2)):
            async with client.create_ledger(
                ensemble_size=sizes[0],
                write_quorum=sizes[1],
                ack_quorum=sizes[2],
                deferred_sync=deferred_sync,
            ) as writer:
                await writer.append_many(map(payload_of, range(500)))
                assert writer.last_add_confirmed == (-1 if deferred_sync else 499)
                assert await writer.force() == 499
            await check_reads(client, writer.ledger_id, 500)
        space = await client.bookie_info()
        assert len(space) == 4
        assert not any(isinstance(s, LedgerError) for s in space.values())
