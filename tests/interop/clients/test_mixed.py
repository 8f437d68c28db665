"""Ledgers on bookies of both kinds, written by either client and ended by the other."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerMetadata
from ledger.errors import NoSuchLedger
from tests.interop.clients.both_clients import (
    ENTRIES,
    WINDOW,
    BothClients,
    Cluster,
    check_ledger,
    end_ledger,
    open_both_clients,
    pace_of,
    payloads_of,
)
from tests.interop.conftest import GetSharedJava
from tests.interop.java_client import JavaError, from_base64
from tests.interop.replicas import read_raw
from tests.interop.takeover.clients import TakeoverClient
from tests.interop.takeover.java_client import PLACEMENT, JavaTakeoverClient
from tests.interop.takeover.judge import WriterResult, lengths_by_java
from tests.interop.takeover.plan import Language, Shape
from tests.interop.timeouts import PATIENCE_S

pytestmark = pytest.mark.interop

MIXED = {
    "two Apache, one ours": ("apache-0", "ours-0", "apache-1", "ours-1", "apache-2"),
    "one Apache, two ours": ("ours-1", "apache-2", "ours-2", "apache-0", "ours-0"),
}
"""Returns bookies in the order of their use: the ensemble, then the spare ones."""

SHAPES = ((3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 1))


@pytest.mark.interop_result(
    area="mixed ensembles",
    feature="written by one client, closed or recovered by the other, every replica compared",
    wire=None,
)
@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize("language", Language, ids=lambda language: f"{language.value} writes")
async def test_a_ledger_is_the_same_to_both_clients_and_on_all_bookies(
    version: str,
    wire: str,
    language: Language,
    kind: str,
    mixed_cluster: Cluster,
    java_shared: GetSharedJava,
) -> None:
    async with open_both_clients(
        mixed_cluster, java_shared, version, MIXED[kind], v2=wire == "v2"
    ) as here:
        for turn, digest_type in enumerate(DigestType):
            shape = Shape(*SHAPES[turn], digest_type)
            password = b"" if turn == 0 else b"p\x00w"
            # Each digest type is closed in one wire version and recovered in the other.
            ends_by = language.other if (turn + (wire == "v2")) % 2 else None
            pace = pace_of(turn)
            writer = await here.client_of(language).begin(shape, password, pace)
            await writer.wait_acked(ENTRIES)
            await end_ledger(here, writer, ends_by, shape, password)
            metadata = await check_ledger(
                here,
                writer.ledger_id,
                shape,
                password,
                payloads_of(pace),
                is_recovered=ends_by is not None,
            )
            ensemble = metadata.fragments[0].bookies
            assert set(ensemble) == set(here.bookies[: shape.ensemble_size])
            assert len(metadata.fragments) == 1


CHANGES = {
    "Apache bookie replaced by ours": ("apache-0", "ours-0", "apache-1", "ours-1"),
    "our bookie replaced by Apache's": ("ours-2", "apache-2", "ours-0", "apache-1"),
}
"""Kills the first bookie; the last one replaces it."""


@pytest.mark.interop_result(
    area="mixed ensembles",
    feature="a bookie killed under writers of both languages, replaced by one of the other kind",
    wire="v2 and v3",
)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_killed_bookie_is_replaced_by_one_of_the_other_kind(
    version: str, change: str, mixed_cluster: Cluster, java_shared: GetSharedJava
) -> None:
    names = CHANGES[change]
    shape, password = Shape(3, 3, 2, DigestType.CRC32C), b"pw"
    uri, _ = mixed_cluster
    async with open_both_clients(mixed_cluster, java_shared, version, names) as here:
        in_v2 = java_shared(version, uri, v2=True, **PLACEMENT)
        sides: list[TakeoverClient] = [
            here.python,
            here.java,
            JavaTakeoverClient(in_v2, in_v2, uri, here.bookies),
        ]
        paces = [pace_of(n, 5000, pause_ms=5.0) for n in range(2 * len(sides))]
        writers = [await sides[n // 2].begin(shape, password, p) for n, p in enumerate(paces)]
        for writer in writers:
            await writer.wait_acked(10)
        await here.processes.kill(names[0])
        saws: list[WriterResult] = []
        for n, writer in enumerate(writers):
            changed = await _wait_changed(here, writer.ledger_id)
            await writer.wait_acked(changed.last_fragment.first_entry_id + 10)
            other = Language.JAVA if n // 2 == 0 else Language.PYTHON
            by = other if n % 2 else None
            saws.append(await end_ledger(here, writer, by, shape, password))
        here.processes.begin_start(names[0])
        await here.processes.wait_serving(names)
        for n, (writer, pace) in enumerate(zip(writers, paces, strict=True)):
            end = (await here.python.metadata(writer.ledger_id)).last_entry_id
            is_by_java = n == 1
            # The writer was fenced with entries in flight.
            lengths = lengths_by_java(pace.sizes, end, saws[n].acked[-1]) if is_by_java else ()
            metadata = await check_ledger(
                here,
                writer.ledger_id,
                shape,
                password,
                payloads_of(pace, end + 1),
                is_recovered=n % 2 == 1,
                is_on_all=False,
                may_be_torn=here.processes.apaches_of(names[:1]),
                lengths=lengths,
            )
            first, second = metadata.fragments
            killed, *kept, replacement = here.bookies
            assert set(first.bookies) == {killed, *kept}
            assert second.bookies == tuple(
                replacement if bookie == killed else bookie for bookie in first.bookies
            )
            assert 10 <= second.first_entry_id < end


async def _wait_changed(here: BothClients, ledger_id: int) -> LedgerMetadata:
    """Waits until the writer has replaced a bookie; returns the metadata."""
    async with (
        here.python.client() as client,
        aclosing(client.ledgers.watch(ledger_id)) as versions,
    ):
        async for metadata in versions:
            if metadata is not None and len(metadata.fragments) > 1:
                return metadata
    raise AssertionError("a watch has no end")


@pytest.mark.interop_result(
    area="mixed ensembles", feature="our reader tails a Java writer by long polls", wire=None
)
async def test_a_python_reader_tails_a_java_writer(
    version: str, wire: str, mixed_cluster: Cluster, java_shared: GetSharedJava
) -> None:
    shape, pace = Shape(3, 3, 2, DigestType.CRC32C), pace_of(5, 60, pause_ms=5.0)
    names = MIXED["two Apache, one ours"]
    async with open_both_clients(
        mixed_cluster, java_shared, version, names, v2=wire == "v2"
    ) as here:
        writer = await here.java.begin(shape, b"", pace)
        read: list[bytes] = []
        is_closing = False
        async with (
            here.python.client() as client,
            client.open_ledger(writer.ledger_id, recover=False) as reader,
        ):
            async for entries in reader.tail(0):
                read += [entry.payload for entry in entries]
                # The last entry has a LAC at most a window before it.
                if len(read) >= len(pace.sizes) - WINDOW and not is_closing:
                    await writer.wait_acked(len(pace.sizes))
                    await writer.begin_close()
                    is_closing = True
            assert reader.is_closed
            assert reader.statistics().long_polls > 0
        saw = await writer.finish()
        assert (saw.error, saw.closed_at) == (None, len(pace.sizes) - 1)
        assert read == payloads_of(pace)


@pytest.mark.interop_result(
    area="mixed ensembles", feature="a Java reader tails our writer by long polls", wire="v3"
)
async def test_a_java_reader_tails_a_python_writer(
    version: str, mixed_cluster: Cluster, java_shared: GetSharedJava
) -> None:
    shape, pace = Shape(3, 3, 2, DigestType.CRC32C), pace_of(6, 60, pause_ms=5.0)
    names = MIXED["one Apache, two ours"]
    async with open_both_clients(mixed_cluster, java_shared, version, names) as here:
        writer = await here.python.begin(shape, b"", pace)
        await writer.wait_acked(1)  # Java fails for a ledger that no bookie knows yet
        client = java_shared(version, mixed_cluster[0], **PLACEMENT)
        opened = await client.call("open", ledger=writer.ledger_id, recovery=False)
        assert not opened["closed"]
        handle, piggybacked = opened["handle"], 0
        read: list[bytes] = []
        while len(read) < len(pace.sizes):
            answer = await client.call(
                "long_poll", handle=handle, entry=len(read), timeout_ms=2000, parallel=True
            )
            if "entry" in answer and answer["entry"]["entry"] == len(read):
                piggybacked += 1
                read.append(from_base64(answer["entry"]["data"]))
            if answer["lac"] >= len(read):
                read += await client.read(handle, len(read), answer["lac"])
        assert read == payloads_of(pace)
        assert piggybacked > 0
        await writer.begin_close()
        assert (await writer.finish()).closed_at == len(pace.sizes) - 1
        await client.call("close", handle=handle)


@pytest.mark.interop_result(
    area="mixed ensembles", feature="explicit LAC of an idle writer, either way", wire="v3"
)
async def test_an_idle_writers_lac_reaches_the_other_client(
    version: str, mixed_cluster: Cluster, java_shared: GetSharedJava
) -> None:
    shape, pace = Shape(3, 3, 2, DigestType.CRC32C), pace_of(7, 5)
    last = len(pace.sizes) - 1
    names = MIXED["two Apache, one ours"]
    async with open_both_clients(
        mixed_cluster, java_shared, version, names, explicitLacInterval=50
    ) as here:
        written = await here.java.begin(shape, b"", pace)
        await written.wait_acked(last + 1)
        async with (
            here.python.client() as client,
            client.open_ledger(written.ledger_id, recover=False) as reader,
        ):
            while await reader.read_last_confirmed() < last:  # noqa: ASYNC110
                await trio.sleep(0.02)  # Java sends it every 50 ms
            assert [e.payload for e in await reader.read(0, last)] == payloads_of(pace)
            assert not reader.is_closed
        await end_ledger(here, written, None, shape, b"")

        ours = await here.python.begin(shape, b"", pace)
        await ours.wait_acked(last + 1)
        java = java_shared(version, mixed_cluster[0], **PLACEMENT, explicitLacInterval=50)
        opened = await java.call("open", ledger=ours.ledger_id, recovery=False)
        answer = {"lac": -1}
        while answer["lac"] < last:
            answer = await java.call("explicit_lac", handle=opened["handle"])
            await trio.sleep(0.02)  # the Python client sends it after a millisecond, to all bookies
        assert await java.read(opened["handle"], 0, last) == payloads_of(pace)
        await java.call("close", handle=opened["handle"])
        await end_ledger(here, ours, None, shape, b"")


@pytest.mark.interop_result(
    area="mixed ensembles", feature="deleted by either client, both kinds of bookies collect it"
)
async def test_a_deleted_ledger_is_missing_for_both_clients_and_on_all_bookies(
    version: str, mixed_cluster: Cluster, java_shared: GetSharedJava
) -> None:
    shape, pace = Shape(3, 3, 2, DigestType.CRC32C), pace_of(8)
    names = MIXED["one Apache, two ours"]
    async with open_both_clients(mixed_cluster, java_shared, version, names) as here:
        java = java_shared(version, mixed_cluster[0], **PLACEMENT)
        deleted: list[LedgerMetadata] = []
        for language in Language:
            writer = await here.client_of(language).begin(shape, b"", pace)
            await writer.wait_acked(ENTRIES)
            await end_ledger(here, writer, None, shape, b"")
            deleted.append(await here.python.metadata(writer.ledger_id))
        async with here.python.client() as client:
            await client.delete_ledger(deleted[1].ledger_id)  # what Java wrote
            await java.call("delete", ledger=deleted[0].ledger_id)
            for metadata in deleted:
                with pytest.raises(JavaError, match="NoSuchLedger"):
                    await java.call("metadata", ledger=metadata.ledger_id)
                with pytest.raises(NoSuchLedger):
                    await client.ledger_metadata(metadata.ledger_id)
                assert metadata.ledger_id not in await client.list_ledgers()
                for bookie in metadata.fragments[0].bookies:
                    await _wait_forgotten(client, metadata.ledger_id, bookie)


async def _wait_forgotten(client: LedgerClient, ledger_id: int, bookie: str) -> None:
    """Waits until a bookie has deleted the ledger; its garbage collection runs every second."""
    with trio.fail_after(PATIENCE_S):
        while await read_raw(client.pool, ledger_id, 0, bookie) is not None:  # noqa: ASYNC110
            await trio.sleep(0.2)
