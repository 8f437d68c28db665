"""verify_ledger with bookies whose responses a test scripts, and with real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from ledger.client import LedgerClient
from ledger.core.copies import CopyState, CopyVerdict, LedgerReport
from ledger.core.entry import Digest, DigestType
from ledger.errors import NoSuchLedger, Status, Unauthorized
from ledger.verify import ExpectedEntry, verify_entry, verify_ledger
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
)
from tests.ledger.scripted_bookie import Hangup, ScriptedBookie, scripted_cluster
from tests.real_cluster import SMALL, real_cluster

pytestmark = pytest.mark.usefixtures("impatient_verification")

COUNT = 40


async def filled(client: LedgerClient, count: int = COUNT, **settings: int) -> int:
    async with client.create_ledger(**settings) as writer:  # type: ignore[arg-type]
        await writer.append_many(b"entry %d" % n * (n % 50) for n in range(count))
    return writer.ledger_id


def faults_of(report: LedgerReport) -> list[tuple[str, str, int, int]]:
    return [(f.bookie, f.state.value, f.first_entry, f.last_entry) for f in report.faults]


def refusing(status: Status, entries: range) -> Callable[[Request], ResponseBody | None]:
    """Returns a script that answers reads of these entries with `status`.

    A batch read ends before them.
    """

    def script(request: Request) -> ResponseBody | None:
        body = request.body
        if isinstance(body, ListEntriesRequest):
            return ListEntriesResponse(status, body.ledger_id)
        if isinstance(body, ReadRequest | BatchReadRequest) and body.entry_id in entries:
            kind = ReadResponse if isinstance(body, ReadRequest) else BatchReadResponse
            return kind(status, body.ledger_id, body.entry_id)
        return None

    return script


def cut_before(bookie: ScriptedBookie, entry_id: int) -> None:
    """Makes every batch end before this entry."""
    ordinary = bookie.ordinary

    def answer(request: Request) -> ResponseBody:
        found = ordinary(request)
        if isinstance(found, BatchReadResponse) and found.entry_id < entry_id:
            bodies = found.bodies[: entry_id - found.entry_id]
            return BatchReadResponse(found.status, found.ledger_id, found.entry_id, bodies)
        return found

    bookie.ordinary = answer  # type: ignore[method-assign]


@pytest.mark.parametrize("sizes", [(3, 3, 2), (5, 3, 2), (4, 2, 2), (1, 1, 1)])
@pytest.mark.parametrize("wire_version", [2, 3])
async def test_a_whole_ledger(
    tmp_path: Path, sizes: tuple[int, int, int], wire_version: int
) -> None:
    ensemble, write, ack = sizes
    async with (
        real_cluster(tmp_path, 5, **SMALL) as cluster,
        cluster.client(wire_version=wire_version, batch_read_bytes=2000) as client,
    ):
        ledger_id = await filled(
            client, 700, ensemble_size=ensemble, write_quorum=write, ack_quorum=ack
        )
        steps: list[int] = []
        report = await verify_ledger(
            client, ledger_id, on_entries=lambda entries, nbytes: steps.append(entries)
        )
    assert report.verdict is CopyVerdict.WHOLE
    assert report.copies == {CopyState.WHOLE: 700 * write}
    assert report.faults == ()
    assert (report.first_entry, report.last_entry, report.entries) == (0, 699, 700)
    assert report.payload_bytes == sum(len(b"entry %d" % n * (n % 50)) for n in range(700))
    assert sum(steps) == 700
    assert len(steps) > 2


async def test_each_response_proves_a_state_of_the_copy() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        ledger_id = await filled(client)
        bookies = cluster.bookies
        for status, state, verdict in [
            (Status.NO_SUCH_ENTRY, "missing", CopyVerdict.REDUCED),
            (Status.UNKNOWN_LEDGER_STATE, "unknown", CopyVerdict.DOUBT),
            (Status.IO_ERROR, "unreadable", CopyVerdict.DOUBT),
            (Status.UNAUTHORIZED, "unreadable", CopyVerdict.DOUBT),
        ]:
            cut_before(bookies["b1"], 10)
            bookies["b1"].script = refusing(status, range(10, 13))
            report = await verify_ledger(client, ledger_id)
            reported = faults_of(report)
            assert {fault[:2] for fault in reported} == {("b1", state)}, reported
            if status in (Status.NO_SUCH_ENTRY, Status.IO_ERROR):
                assert reported == [("b1", state, 10, 12)]
            assert report.verdict is verdict
            assert report.lost_entries == 0


async def test_a_bookie_that_does_not_know_the_ledger_lacks_its_copies() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        ledger_id = await filled(client)
        for name in ("b1", "b2"):
            cluster.bookie(name).script = refusing(Status.NO_SUCH_LEDGER, range(COUNT))
        report = await verify_ledger(client, ledger_id)
        last = COUNT - 1
        assert faults_of(report) == [("b1", "missing", 0, last), ("b2", "missing", 0, last)]
        assert report.verdict is CopyVerdict.DAMAGE
        assert report.lost_entries == 0
        cluster.bookie("b0").script = refusing(Status.NO_SUCH_LEDGER, range(COUNT))
        report = await verify_ledger(client, ledger_id)
        assert report.lost_entries == COUNT


async def test_a_wrong_byte_a_foreign_entry_and_a_valid_copy_of_other_bytes_are_reported() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        ledger_id = await filled(client)
        held = cluster.bookie("b2").entries
        rotten = bytearray(held[ledger_id, 5])
        rotten[-1] ^= 1
        held[ledger_id, 5] = bytes(rotten)
        held[ledger_id, 9] = held[ledger_id, 8]
        async with client.create_ledger() as other:
            await other.append_many([b"x", b"other bytes"])
        report = await verify_ledger(client, ledger_id)
        assert faults_of(report) == [("b2", "corrupt", 5, 5), ("b2", "corrupt", 9, 9)]
        assert report.verdict is CopyVerdict.DAMAGE
        assert report.verdicts == {CopyVerdict.WHOLE: COUNT - 2, CopyVerdict.DAMAGE: 2}

        held.clear()
        held.update(cluster.bookie("b1").entries)
        header, payload = other.digest.encode_entry(ledger_id, 3, 2, 17, b"forged, but valid")
        held[ledger_id, 3] = header + bytes(payload)
        report = await verify_ledger(client, ledger_id)
        assert faults_of(report) == [("b2", "differs", 3, 3)]
        assert report.copies[CopyState.WHOLE] == 3 * COUNT - 1


async def test_a_bookie_that_closes_the_connection_is_unreachable_and_others_are_read() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        ledger_id = await filled(client)

        def script(request: Request) -> ResponseBody | None:
            if isinstance(request.body, ReadRequest | BatchReadRequest):
                raise Hangup
            return None

        cluster.bookie("b0").script = script
        report = await verify_ledger(client, ledger_id)
        assert faults_of(report) == [("b0", "unreachable", 0, COUNT - 1)]
        assert report.verdict is CopyVerdict.DOUBT
        assert report.copies[CopyState.WHOLE] == 2 * COUNT


async def test_an_open_ledger_is_verified_up_to_its_last_add_confirmed(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        client.create_ledger() as writer,
    ):
        await writer.append_many([b"x"] * 30)
        with trio.fail_after(5):
            while True:
                report = await verify_ledger(client, writer.ledger_id)
                if report.last_entry == 29:
                    break
        assert (report.is_closed, report.entries) == (False, 30)
        assert report.verdict is CopyVerdict.WHOLE
        await writer.append(b"it was not fenced")


@pytest.mark.parametrize(
    ("digest_type", "verdict"),
    [(DigestType.HMAC, CopyVerdict.DAMAGE), (DigestType.CRC32C, CopyVerdict.WHOLE)],
)
async def test_only_hmac_proves_that_no_outsider_made_an_entry(
    digest_type: DigestType, verdict: CopyVerdict
) -> None:
    """A bookie gone bad changes an entry, and makes a digest of what it knows."""
    async with scripted_cluster() as cluster, cluster.client() as client:
        async with client.create_ledger(password=None, digest_type=digest_type) as writer:
            await writer.append(b"hello")
        forger = Digest(digest_type, b"not the password")
        head, payload = forger.encode_entry(writer.ledger_id, 0, -1, 5, b"HELLO")
        for bookie in cluster.bookies.values():
            assert (writer.ledger_id, 0) in bookie.entries
            bookie.entries[writer.ledger_id, 0] = head + bytes(payload)
        assert (await verify_ledger(client, writer.ledger_id)).verdict is verdict


async def test_the_end_of_an_open_ledger_may_be_unknown(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client() as client,
        cluster.client(read_timeout_s=0.5) as other,
    ):
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 30)
        for number in (0, 1):
            await cluster.stop(number)
        report = await verify_ledger(other, writer.ledger_id)
        assert (report.entries, report.verdict) == (0, CopyVerdict.DOUBT)
        writer.abandon()


async def test_a_receipt_is_compared_with_the_stored_copies() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        async with client.create_ledger() as writer:
            entry_id = writer.append_nowait(b"hello")
            acks = writer.watch_acks(entry_id)
            await writer.flush()
            receipt = await acks.settle(5.0)
        assert sorted(ack.bookie for ack in receipt.acks) == ["b0", "b1", "b2"]
        assert receipt.not_yet == ()
        assert receipt.is_confirmed
        assert all(ack.after_ms >= 0 for ack in receipt.acks)
        held = [bookie.entries[writer.ledger_id, 0] for bookie in cluster.bookies.values()]
        assert all(entry[32:36] == receipt.digest for entry in held)

        acked = tuple(ack.bookie for ack in receipt.acks)
        expected = ExpectedEntry(0, receipt.digest, acked)
        assert (await verify_entry(client, writer.ledger_id, expected)).verdict is CopyVerdict.WHOLE

        forged = ExpectedEntry(0, b"\0\0\0\0", acked)
        report = await verify_entry(client, writer.ledger_id, forged)
        assert {state for _, state, _, _ in faults_of(report)} == {"differs"}
        assert report.verdict is CopyVerdict.DAMAGE

        cluster.bookie("b1").entries.clear()  # it acknowledged the entry and lost it
        assert (await verify_ledger(client, writer.ledger_id)).verdict is CopyVerdict.REDUCED
        report = await verify_entry(client, writer.ledger_id, expected)
        assert report.verdict is CopyVerdict.DAMAGE
        cluster.bookie("b1").script = refusing(Status.UNKNOWN_LEDGER_STATE, range(1))
        report = await verify_entry(client, writer.ledger_id, expected)
        assert report.verdict is CopyVerdict.DOUBT


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
@pytest.mark.parametrize("wire_version", [2, 3])
@pytest.mark.parametrize("payload_bytes", [100, 50_000], ids=["gathered", "sent"])
async def test_the_digest_of_a_receipt_is_the_stored_one(
    sizes: tuple[int, int, int], wire_version: int, payload_bytes: int
) -> None:
    ensemble, write, ack = sizes
    async with (
        scripted_cluster(4) as cluster,
        cluster.client(wire_version=wire_version) as client,
        client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack) as writer,
    ):
        # A burst of large entries is sent before a watch can begin.
        for number in range(10):
            writer.append_nowait(b"%d" % number * payload_bytes)
        watched = [writer.watch_acks(entry_id) for entry_id in (9, 0, 4)]
        await writer.flush()
        for acks in watched:
            receipt = await acks.settle(5.0)
            assert len(receipt.acks) == write
            for ack_of in receipt.acks:
                held = cluster.bookie(ack_of.bookie).entries[writer.ledger_id, acks.entry_id]
                assert held[32:36] == receipt.digest


async def test_a_bookie_that_does_not_acknowledge_in_time_is_not_named() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        let_go = trio.Event()
        cluster.bookie("b2").hold = lambda request: (
            let_go if isinstance(request.body, AddRequest) else None
        )
        async with client.create_ledger() as writer:
            acks = writer.watch_acks(writer.append_nowait(b"hello"))
            await writer.flush()
            receipt = await acks.settle(0.05)
            assert sorted(ack.bookie for ack in receipt.acks) == ["b0", "b1"]
            assert receipt.not_yet == ("b2",)
            assert not writer.core.ack_log.entries

            acks = writer.watch_acks(writer.append_nowait(b"again"))
            await writer.flush()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(acks.settle, 10.0)
                await trio.testing.wait_all_tasks_blocked()
                let_go.set()
            assert sorted(ack.bookie for ack in acks.receipt().acks) == ["b0", "b1", "b2"]


async def test_a_bookie_that_was_replaced_is_not_named() -> None:
    async with scripted_cluster(4) as cluster, cluster.client() as client:
        async with client.create_ledger(ack_quorum=3) as writer:
            first = writer.metadata.last_fragment.bookies
            failing = cluster.bookie(first[1])
            failing.script = lambda request: (
                AddResponse(Status.IO_ERROR, request.body.ledger_id, request.body.entry_id, 0)
                if isinstance(request.body, AddRequest)
                else None
            )
            acks = writer.watch_acks(writer.append_nowait(b"hello"))
            await writer.flush()
            receipt = await acks.settle(5.0)
        bookies = writer.metadata.last_fragment.bookies
        assert first[1] not in bookies
        assert sorted(ack.bookie for ack in receipt.acks) == sorted(bookies)


async def test_only_entries_in_flight_can_be_watched() -> None:
    async with (
        scripted_cluster() as cluster,
        cluster.client() as client,
        client.create_ledger() as writer,
    ):
        await writer.append(b"confirmed")
        for entry_id in (-1, 0, 1):
            with pytest.raises(ValueError, match="not in flight"):
                writer.watch_acks(entry_id)


async def test_verifying_a_missing_ledger_or_with_a_wrong_password_raises() -> None:
    async with scripted_cluster() as cluster, cluster.client() as client:
        with pytest.raises(NoSuchLedger):
            await verify_ledger(client, 404)
        async with client.create_ledger(password=b"secret") as writer:
            await writer.append(b"x")
        with pytest.raises(Unauthorized):
            await verify_ledger(client, writer.ledger_id)
        report = await verify_ledger(client, writer.ledger_id, password=b"secret")
        assert report.verdict is CopyVerdict.WHOLE
