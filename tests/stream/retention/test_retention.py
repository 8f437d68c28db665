"""Truncation, retention, deletion, commits and repair delete what they must and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from stream import (
    LATEST,
    FromSequence,
    Janitor,
    Namespace,
    NoSuchStream,
    Position,
    Truncated,
    encode,
)
from tests.real_cluster import SMALL, real_cluster
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import drain, read_all, values


async def test_truncated_records_are_gone_and_the_reader_is_notified(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=1000, roll_bytes=1 << 16) as namespace:
        async with namespace.writer("s", create=True) as writer:
            for number in range(0, 3000, 10):
                await writer.append_many(
                    [b"%06d" % n + bytes(60) for n in range(number, number + 10)]
                )
            everything = await read_all(namespace, "s")
            async with namespace.reader("s") as slow:
                assert (await slow.__anext__()).sequence == 0
                cut = everything[2500].position
                before = len((await namespace.stream_metadata("s")).segments)
                stream = await namespace.truncate("s", cut)
                assert stream.truncated_to == cut
                assert 0 < len(stream.live()) < before == len(stream.segments)
                with pytest.raises(Truncated) as caught:
                    await drain(slow)
                assert caught.value.first_available == cut
            assert (await read_all(namespace, "s"))[0] == everything[2500]
            with pytest.raises(Truncated):
                await read_all(namespace, "s", everything[2499].position)
            with pytest.raises(Truncated):
                await read_all(namespace, "s", FromSequence(2499))
            assert (await namespace.truncate("s", everything[0].position)).truncated_to == cut
            assert (await namespace.info("s")).first_sequence == 2500
        with pytest.raises(InvalidArgument, match="cannot truncate"):
            await namespace.truncate("s", Position(99, 0, 0))


async def test_retention_by_size_deletes_old_ledgers_and_no_more(tmp_path: Path) -> None:
    keep = 100_000
    async with a_namespace(
        tmp_path, batch_bytes=4000, roll_bytes=1 << 16, retention_bytes=keep, trash_ms=0
    ) as namespace:
        async with namespace.writer("s", create=True) as writer:
            for _ in range(100):
                await writer.append_many([bytes(100)] * 40)
        before = await namespace.stream_metadata("s")
        janitor = Janitor(namespace.client, "demo")
        report = await janitor.sweep()
        assert report.ledgers_deleted > 0
        after = await namespace.stream_metadata("s")
        left = sum(segment.nbytes for segment in after.segments)
        assert keep <= left <= keep + max(segment.nbytes for segment in before.segments)
        assert await namespace.client.list_ledgers() == list(after.ledgers())
        again = await janitor.sweep()
        assert (again.ledgers_deleted, again.orphans_deleted) == (0, 0)


async def test_the_janitor_deletes_orphans_and_only_those(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"kept")
            tag = {"ledgerstream.stream": b"demo/s"}
            orphan = await namespace.client.create_ledger(custom=tag)
            other = await namespace.client.create_ledger()
            assert (await Janitor(namespace.client, "demo").sweep()).orphans_deleted == 0
            janitor = Janitor(namespace.client, "demo", orphan_age_ms=-1)
            assert (await janitor.sweep()).orphans_deleted == 1
            left = await namespace.client.list_ledgers()
            assert orphan.ledger_id not in left
            assert other.ledger_id in left
            await writer.append(b"still")
            orphan.abandon()
            other.abandon()
        assert values(await read_all(namespace, "s")) == [b"kept", b"still"]


async def test_a_deleted_stream_is_gone_for_writer_and_reader(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        block = namespace.writer("s", create=True)
        writer = await block.__aenter__()
        await writer.append(b"x")
        async with namespace.reader("s", start=LATEST) as reader:
            await namespace.delete_stream("s")
            with pytest.raises(NoSuchStream), trio.fail_after(10):
                await reader.__anext__()
        with pytest.raises(NoSuchStream):
            await writer.append(b"y")
        with pytest.raises(NoSuchStream):
            await block.__aexit__(None, None, None)
        assert await namespace.list_streams() == []
        await namespace.purge("s")
        assert await namespace.client.list_ledgers() == []
        async with namespace.writer("s", create=True) as writer:
            assert await writer.append(b"new") == Position(2, 0, 0)  # behind all the old one had


async def test_ledgers_are_committed_once_per_batch(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        client: LedgerClient = namespace.client

        async def closed_ledger(*records: bytes) -> int:
            async with client.create_ledger() as writer:
                await writer.append(encode(records, is_sequence_in_segment=True))
            return writer.ledger_id

        await namespace.create_stream("s")
        ledgers = [await closed_ledger(b"a", b"b"), await closed_ledger(b"c")]
        once = await namespace.commit_segments("s", "sink", 0, ledgers)
        assert await namespace.commit_segments("s", "sink", 0, [99]) == once
        await namespace.commit_segments("s", "sink", 1, [await closed_ledger(b"d")])
        records = await read_all(namespace, "s")
        assert values(records) == [b"a", b"b", b"c", b"d"]
        assert [record.sequence for record in records] == [0, 1, 2, 3]
        assert values(await read_all(namespace, "s", FromSequence(2))) == [b"c", b"d"]


async def test_a_writer_continues_when_its_ledger_fails(tmp_path: Path) -> None:
    """Two of four bookies stop in turn while records are in flight.

    Each record is stored once, in order, at the position that the writer returned.
    """
    async with (
        real_cluster(tmp_path, 4, **SMALL) as cluster,
        cluster.client(ensemble_change_timeout_s=0.3, add_timeout_s=0.5) as client,
    ):
        namespace = Namespace(client, "demo")
        await namespace.ensure(batch_bytes=500, write_quorum=2, ensemble_size=2)
        positions: list[Position] = []
        is_flowing = trio.Event()
        async with namespace.writer("s", create=True) as writer:

            async def append() -> None:
                for number in range(600):
                    positions.append(await writer.append(b"%d" % number))
                    if number == 100:
                        is_flowing.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                await is_flowing.wait()
                for number in range(3):
                    await cluster.stop(number)
                await trio.sleep(1)  # longer than the ledger looks for other bookies
                for number in range(3):
                    await cluster.start(number)
            assert writer.statistics().repairs >= 1
        records = await read_all(namespace, "s")
        assert [int(record.value) for record in records] == list(range(600))
        assert [record.position for record in records] == positions
