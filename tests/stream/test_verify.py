"""Receipts of appended records and the verification of streams, on real bookies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from ledger.core.copies import CopyState, CopyVerdict
from ledger.errors import InvalidArgument, NoSuchLedger
from stream import Namespace, Position
from stream.core.position import Truncated
from stream.core.receipt import Receipt
from stream.errors import NoSuchStream
from stream.verify import VerifyProgress
from tests.real_cluster import SMALL, real_cluster
from tests.stream.real_namespace import a_namespace

pytestmark = pytest.mark.usefixtures("impatient_verification")


async def test_a_receipt_names_all_replicas_and_is_found_whole(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"before")
            receipt = await writer.append(b"hello", key=b"k", receipt=True)
            assert receipt.position == Position(1, 1, 0)
            assert receipt.sequence == 1
            assert (receipt.digest_type, len(receipt.digest or b"")) == ("CRC32C", 4)
            assert not receipt.is_recovered
            metadata = await namespace.client.ledger_metadata(receipt.ledger_id)
            assert sorted(receipt.bookies) == sorted(metadata.last_fragment.bookies)
            assert receipt.not_yet == ()
            # The verification leaves the segment open.
            report = await namespace.verify("s", receipt=receipt)
            assert report.verdict is CopyVerdict.WHOLE
            assert report.copies == {CopyState.WHOLE: 3}
            await writer.append(b"after")
        again = Receipt.from_json(receipt.to_json())
        assert (await namespace.verify("s", receipt=again)).verdict is CopyVerdict.WHOLE


async def test_receipts_of_records_in_one_entry_share_its_digest(tmp_path: Path) -> None:
    async with (
        a_namespace(tmp_path) as namespace,
        namespace.writer("s", create=True) as writer,
    ):
        receipts: list[Receipt] = []

        async def append(number: int) -> None:
            receipts.append(await writer.append(b"%d" % number, receipt=True))

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(append, number)
        assert sorted(r.sequence for r in receipts) == list(range(50))
        by_entry: dict[int, set[bytes | None]] = {}
        for receipt in receipts:
            assert len(receipt.acks) == 3
            by_entry.setdefault(receipt.entry_id, set()).add(receipt.digest)
        assert all(len(digests) == 1 for digests in by_entry.values())
        assert len(by_entry) < 50
        for receipt in receipts[::10]:
            assert (await namespace.verify("s", receipt=receipt)).verdict is CopyVerdict.WHOLE


async def test_a_receipt_must_be_requested_before_the_record_is_confirmed(tmp_path: Path) -> None:
    async with (
        a_namespace(tmp_path) as namespace,
        namespace.writer("s", create=True) as writer,
    ):
        small, large = writer.append_nowait(b"x"), writer.append_nowait(b"y" * 200_000)
        wanted = [writer.receipt_of(small), writer.receipt_of(large)]
        receipts = [await ticket.receipt() for ticket in wanted]
        assert [len(receipt.acks) for receipt in receipts] == [3, 3]
        # A requested receipt is kept; for other records there is none.
        assert (await writer.receipt_of(small).receipt()).position == receipts[0].position
        other = writer.append_nowait(b"z")
        await other.wait()
        with pytest.raises(InvalidArgument, match="confirmed already"):
            writer.receipt_of(other)


async def test_a_whole_stream_is_verified_with_progress(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, roll_bytes=1 << 16, batch_bytes=2_000) as namespace:
        async with namespace.writer("s", create=True) as writer:
            with trio.fail_after(20):
                while writer.statistics().rolls < 3:
                    await writer.append_many([b"%d" % n * 20 for n in range(1000)])
            steps: list[VerifyProgress] = []
            report = await namespace.verify("s", on_progress=steps.append)
            assert report.verdict is CopyVerdict.WHOLE
        assert len(report.segments) > 3
        assert report.copies == {CopyState.WHOLE: 3 * report.entries}
        assert report.lost_entries == 0
        assert steps[0].segments_done == 0
        assert steps[-1].segments_done == steps[-1].segments == len(report.segments)
        assert (steps[-1].entries, steps[-1].payload_bytes) == (
            report.entries, report.payload_bytes,
        )  # fmt: skip
        facts = report.as_dict()
        assert (facts["verdict"], facts["copies"]) == ("whole", {"whole": 3 * report.entries})


async def test_an_unreachable_bookie_leaves_the_verdict_unknown(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        cluster.client(read_timeout_s=1.0) as client,
    ):
        namespace = Namespace(client, "demo")
        await namespace.ensure()
        async with namespace.writer("s", create=True) as writer:
            receipt = await writer.append(b"hello", receipt=True)
        victim = cluster.bookies[1].bookie_id
        assert victim in receipt.bookies
        await cluster.stop(1)
        report = await namespace.verify("s")
        assert report.verdict is CopyVerdict.DOUBT
        assert report.copies == {CopyState.WHOLE: 2, CopyState.UNREACHABLE: 1}
        assert (await namespace.verify("s", receipt=receipt)).verdict is CopyVerdict.DOUBT


async def test_a_missing_ledger_is_damage(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            receipt = await writer.append(b"hello", receipt=True)
        await namespace.client.delete_ledger(receipt.ledger_id)
        with pytest.raises(NoSuchLedger):
            await namespace.client.ledger_metadata(receipt.ledger_id)
        for report in (await namespace.verify("s"), await namespace.verify("s", receipt=receipt)):
            assert report.verdict is CopyVerdict.DAMAGE
            assert "ledger" in report.segments[0].problem


async def test_receipts_of_truncated_recreated_or_foreign_records(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, trash_ms=0) as namespace:
        async with namespace.writer("s", create=True) as writer:
            receipt = await writer.append(b"hello", receipt=True)
            await writer.append(b"more")
        beyond = replace(receipt, position=Position(1, 7, 0))
        report = await namespace.verify("s", receipt=beyond)
        assert report.verdict is CopyVerdict.DAMAGE
        assert "not in it" in report.segments[0].problem
        moved = replace(receipt, ledger_id=receipt.ledger_id + 1000)
        report = await namespace.verify("s", receipt=moved)
        assert "no segment 1 on ledger" in report.segments[0].problem
        with pytest.raises(InvalidArgument, match="demo/s, not for"):
            await namespace.verify("other", receipt=receipt)

        await namespace.truncate("s", (await namespace.info("s")).end_position)
        with pytest.raises(Truncated):
            await namespace.verify("s", receipt=receipt)
        assert (await namespace.verify("s")).segments == ()
        await namespace.delete_stream("s")
        with pytest.raises(NoSuchStream):
            await namespace.verify("s", receipt=receipt)
        await namespace.create_stream("s")
        with pytest.raises(Truncated):
            await namespace.verify("s", receipt=receipt)


async def test_all_partitions_are_verified(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("p", partitions=3)
        for number in range(3):
            async with namespace.writer(f"p#{number}") as writer:
                await writer.append(b"x")
        report = await namespace.verify("p")
        assert [segment.stream for segment in report.segments] == ["p#0", "p#1", "p#2"]
        assert report.copies == {CopyState.WHOLE: 9}


async def test_an_abandoned_receipt_does_no_harm(tmp_path: Path) -> None:
    async with (
        a_namespace(tmp_path) as namespace,
        namespace.writer("s", create=True) as writer,
    ):
        for ticks in range(12):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def append() -> None:
                        await writer.append(b"x", receipt=True)

                    nursery.start_soon(append)
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
        receipt = await writer.append(b"last", receipt=True)
        assert len(receipt.acks) == 3
        assert (await namespace.verify("s", receipt=receipt)).verdict is CopyVerdict.WHOLE
        with trio.CancelScope() as scope:
            scope.cancel()
            await namespace.verify("s")
        assert (await namespace.verify("s")).verdict is CopyVerdict.WHOLE
