"""Copies between real bookies: real files and sockets."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from ledger.autorecovery.copier import Copier, CopierOptions
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.errors import InvalidArgument, LedgerClosed
from ledger.verify import verify_ledger
from ledger.wire.messages import FRAME_BYTES_MAX
from ledger.writing.frames import ENTRY_PAYLOAD_BYTES_MAX
from tests.ledger.autorecovery.copies import (
    entries_of,
    lacking,
    other_bookie,
    raw_copies,
    written,
)
from tests.real_cluster import SMALL, real_cluster

UNBOUNDED = CopierOptions(bytes_per_s=0)


@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize("wire_version", [2, 3])
@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 2), (4, 3, 2), (1, 1, 1)])
async def test_a_copy_has_the_bytes_of_the_others(
    tmp_path: Path, sizes: tuple[int, int, int], wire_version: int, digest_type: DigestType
) -> None:
    rng = random.Random(repr((sizes, wire_version, digest_type)))
    payloads = [rng.randbytes(rng.choice([0, 1, 50, 3000])) for _ in range(300)]
    async with (
        real_cluster(tmp_path, sizes[0] + 1, **SMALL) as cluster,
        cluster.client(wire_version=wire_version) as client,
    ):
        metadata = await written(client, payloads, sizes, digest_type)
        target = await other_bookie(client, metadata)
        lost = metadata.fragments[0].bookies[0]
        wanted = lacking(metadata)
        async with Copier(client, UNBOUNDED) as copier:
            report = await copier.copy(metadata, target, wanted)
        ids = entries_of(wanted)
        assert report.is_complete
        assert report.failures == ()
        assert report.entries == len(ids)
        assert report.payload_bytes == sum(len(payloads[n]) for n in ids)
        assert (copier.entries, copier.payload_bytes) == (len(ids), report.payload_bytes)
        copies = await raw_copies(client, target, metadata.ledger_id, range(300))
        assert list(copies) == ids
        assert copies == await raw_copies(client, lost, metadata.ledger_id, ids)


async def test_the_copied_ledger_is_whole_and_can_be_fenced(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        metadata = await written(client, [b"%d" % n for n in range(1000)])
        target = await other_bookie(client, metadata)
        async with Copier(client, UNBOUNDED) as copier:
            assert (await copier.copy(metadata, target, lacking(metadata))).is_complete
        lost, kept = metadata.last_fragment.bookies

        def moved(stored: LedgerMetadata) -> LedgerMetadata:
            return replace(stored, fragments=(Fragment(0, (target, kept)),))

        await client.ledgers.update(metadata.ledger_id, moved)
        report = await verify_ledger(client, metadata.ledger_id, password=b"secret")
        assert report.verdict.name == "WHOLE"
        assert lost not in {one.bookie for one in report.faults}


async def test_an_empty_ledger_and_one_entry(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        for payloads in ([], [b""]):
            metadata = await written(client, payloads)
            target = await other_bookie(client, metadata)
            async with Copier(client) as copier:
                report = await copier.copy(metadata, target, lacking(metadata))
            assert report.is_complete
            assert (report.entries, report.payload_bytes) == (len(payloads), 0)


@pytest.mark.parametrize("wire_version", [2, 3])
async def test_the_largest_entries(tmp_path: Path, wire_version: int) -> None:
    payloads = [bytes([n]) * (ENTRY_PAYLOAD_BYTES_MAX if n % 2 else 10) for n in range(5)]
    large = {
        "frame_bytes_max": FRAME_BYTES_MAX,
        "entry_log_bytes_max": 32 << 20,
        "write_cache_bytes": 32 << 20,
        "journal_file_bytes_max": 32 << 20,
        "journal_queue_bytes_max": 32 << 20,
    }
    async with (
        real_cluster(tmp_path, 3, **(SMALL | large)) as cluster,
        cluster.client(wire_version=wire_version) as client,
    ):
        metadata = await written(client, payloads)
        target = await other_bookie(client, metadata)
        async with Copier(client, UNBOUNDED) as copier:
            report = await copier.copy(metadata, target, lacking(metadata))
        assert report.is_complete
        assert report.payload_bytes == sum(map(len, payloads))
        copies = await raw_copies(client, target, metadata.ledger_id, range(5))
        assert [copy[36:] for copy in copies.values()] == payloads


async def test_only_the_fixed_part_of_an_open_ledger_is_copied_while_its_writer_appends(
    tmp_path: Path,
) -> None:
    """The target is a bookie that the same client is writing the same ledger to: no ack is taken
    for one of the other."""
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        async with client.create_ledger(
            ensemble_size=2, write_quorum=2, ack_quorum=1, password=b"secret"
        ) as writer:
            await writer.append_many(b"a%d" % n for n in range(500))
            first = await client.ledger_metadata(writer.ledger_id)
            ids = [cluster.bookies[n].bookie_id for n in range(3)]
            await cluster.stop(ids.index(first.last_fragment.bookies[0]))
            metadata = first
            while len(metadata.fragments) < 2:
                await writer.append(b"more")
                metadata = await client.ledger_metadata(writer.ledger_id)
            target = metadata.last_fragment.bookies[0]
            assert target not in metadata.fragments[0].bookies
            fixed = metadata.fragments[1].first_entry_id - 1
            async with Copier(client, UNBOUNDED) as copier:
                with pytest.raises(InvalidArgument, match=f"end at entry {fixed}"):
                    await copier.copy(metadata, target, [(0, fixed + 1)])
                async with trio.open_nursery() as nursery:

                    async def append() -> None:
                        for n in range(200):
                            await writer.append(b"b%d" % n)

                    nursery.start_soon(append)
                    report = await copier.copy(metadata, target, [(0, fixed)])
            assert report.is_complete
            assert report.entries == fixed + 1
            last = writer.last_add_confirmed
        copies = await raw_copies(client, target, metadata.ledger_id, range(last + 1))
        assert list(copies) == list(range(last + 1))


@pytest.mark.parametrize(
    "ranges", [[(0, 10)], [(3, 4), (4, 5)], [(5, 6), (1, 2)], [(4, 3)], [(-1, 2)]]
)
async def test_wrong_ranges_are_refused(tmp_path: Path, ranges: list[tuple[int, int]]) -> None:
    async with real_cluster(tmp_path, 3, **SMALL) as cluster, cluster.client() as client:
        metadata = await written(client, [b""] * 10)
        async with Copier(client) as copier:
            with pytest.raises(InvalidArgument, match="ranges ascend"):
                await copier.copy(metadata, "b", ranges)
        with pytest.raises(LedgerClosed):
            await copier.copy(metadata, "b", [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes_per_s": -1},
        {"ledgers_at_once": 0},
        {"target_bytes_max": 0},
        {"source_bytes_max": -5},
        {"delay_target_ms": 0.0},
        {"held_bytes_max": 0},
    ],
)
def test_limits_that_can_never_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        CopierOptions(**wrong)


async def test_a_thousand_entries_cost_few_sends_requests_and_acks(tmp_path: Path) -> None:
    """Per 1,000 entries of 1 KiB, after the windows have grown."""
    async with real_cluster(tmp_path, 3) as cluster, cluster.client() as client:
        metadata = await written(client, [b"x" * 1024] * 20_000)
        target = await other_bookie(client, metadata)
        async with Copier(client, CopierOptions(bytes_per_s=0, delay_target_ms=1000)) as copier:
            report = await copier.copy(metadata, target, lacking(metadata))
            statistics = copier.pool.statistics()
        assert report.is_complete
        to_target = statistics.pop((target, 2))
        requests = sum(one.sends for one in statistics.values())
        assert requests / 20 <= 6
        assert to_target.sends / 20 <= 10, "pieces that the socket takes"
        assert to_target.receives / 20 <= 6
        assert to_target.bytes_received / 32 / 20 <= 30, "range acks"


def test_a_client_that_copies_nothing_does_not_import_it() -> None:
    program = "import sys, ledger.client; print([m for m in sys.modules if 'autorecovery' in m])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
