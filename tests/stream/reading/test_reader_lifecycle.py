"""Readers of streams that are deleted and created again, or truncated ahead of their end.

The streams may also be committed by clients whose clocks differ, and the readers be cancelled
repeatedly.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.options import ClientOptions
from ledger.reading.read_ahead import EntryRange, _Span
from stream import LATEST, FromTime, Namespace, NoSuchStream, OnTruncated, Position, Truncated
from stream.core.entry.encoder import encode


@asynccontextmanager
async def a_namespace(cluster: SimCluster) -> AsyncIterator[Namespace]:
    """Yields a namespace in which each record is an entry of its own."""
    async with cluster.client("one") as client:
        namespace = Namespace(client, "n")
        await namespace.ensure(batch_bytes=1)
        yield namespace


@pytest.mark.parametrize("has_waited", [False, True])
def test_a_stream_created_again_is_another_one(has_waited: bool) -> None:
    """The segments of the new stream count from 1 again.

    A reader of the old one would wait for its next segment number and skip all earlier ones.
    """

    async def scenario(cluster: SimCluster) -> None:
        async with a_namespace(cluster) as namespace:
            for _ in range(3):
                async with namespace.writer("s", create=True) as writer:
                    await writer.append(b"old")
            async with (
                namespace.reader("s") as reader,
                namespace.backward_batches("s") as backward,
            ):
                for _ in range(3):
                    await reader.next_batch()
                await backward.__anext__()
                if has_waited:
                    with trio.move_on_after(1):
                        await reader.next_batch()
                await namespace.delete_stream("s")
                await namespace.purge("s")
                async with namespace.writer("s", create=True) as writer:
                    await writer.append(b"new")
                    for _ in range(2):
                        with (
                            pytest.raises(NoSuchStream, match="created again"),
                            trio.fail_after(20),
                        ):
                            await reader.next_batch()
                    with pytest.raises(NoSuchStream, match="created again"):
                        await backward.__anext__()

    simulate(scenario, 1)


def test_readers_of_a_stream_created_again_share_nothing_with_those_of_the_old_one() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_namespace(cluster) as namespace:
            await namespace.create_stream("s")
            async with namespace.reader("s", start=LATEST) as old:
                async with namespace.writer("s") as writer:
                    for _ in range(10):
                        await writer.append(b"old")
                        await old.next_batch()
                assert namespace.tails.streams == ["s"], (
                    "the reader must keep its records for a while"
                )
                await namespace.delete_stream("s")
                async with (
                    namespace.writer("s", create=True) as writer,
                    namespace.reader("s", start=LATEST) as reader,
                ):
                    for number in range(5):
                        await writer.append(b"%d" % number)
                        with trio.fail_after(20):
                            assert (await reader.next_batch()).values() == [b"%d" % number]

    simulate(scenario, 1)


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_the_end_is_behind_what_was_truncated_ahead(policy: OnTruncated, is_sealed: bool) -> None:
    """An open segment may be truncated beyond its end."""

    async def scenario(cluster: SimCluster) -> None:
        async with a_namespace(cluster) as namespace:
            async with namespace.writer("s", create=True) as writer:
                await writer.append_many([b"old"] * 5)
                await namespace.truncate("s", Position(1, 8, 0))
                if not is_sealed:
                    async with namespace.reader("s", start=LATEST, on_truncated=policy) as reader:
                        await writer.append_many([b"%d" % number for number in range(5)])
                        with trio.fail_after(20):
                            assert (await reader.next_batch()).values() == [b"3"]
                    return
            assert await namespace.read_last("s", 1) == []
            async with (
                namespace.reader("s", start=LATEST, on_truncated=policy) as reader,
                namespace.writer("s") as writer,
            ):
                await writer.append(b"new")
                with trio.fail_after(20):
                    assert (await reader.next_batch()).values() == [b"new"]

    simulate(scenario, 1)


def test_times_of_ledgers_that_others_wrote_do_not_decrease() -> None:
    """Tasks have clocks of their own, so the time of the commit counts."""

    async def scenario(cluster: SimCluster) -> None:
        async with a_namespace(cluster) as namespace:
            await namespace.create_stream("s")
            ledgers = []
            for times in ((1000, 5000), (2000, 3000), (6000, 7000)):
                async with namespace.client.create_ledger() as writer:
                    for sequence, time_ms in enumerate(times):
                        payload = encode(
                            [b"%d" % time_ms],
                            first_sequence=sequence,
                            append_time_ms=time_ms,
                            is_sequence_in_segment=True,
                        )
                        await writer.append(payload)
                ledgers.append(writer.ledger_id)
            await namespace.commit_segments("s", "sink", 0, ledgers)
            stream = await namespace.stream_metadata("s")
            for start_ms, found in ((stream.last_time_ms, 6), (stream.last_time_ms + 1, 0)):
                async with namespace.reader("s", start=FromTime(start_ms)) as reader:
                    batches = [batch async for batch in reader.read_to_end()]
                assert [batch.first_sequence for batch in batches] == list(range(found))
                assert {batch.append_time_ms for batch in batches} <= {stream.last_time_ms}

    simulate(scenario, 1)


def test_the_read_ahead_of_a_cancelled_call_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise calls with short timeouts accumulate reads, each of a full read-ahead."""
    under_way: list[EntryRange] = []
    most = 0
    run = EntryRange._run

    async def counted(entries: EntryRange, span: _Span) -> None:
        nonlocal most
        under_way.append(entries)
        most = max(most, len(under_way))
        try:
            await run(entries, span)
        finally:
            under_way.remove(entries)

    async def scenario(cluster: SimCluster) -> None:
        options = ClientOptions(batch_read_bytes=4000, read_ahead_bytes=16_000)
        async with cluster.client("one", options) as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(batch_bytes=1)
            async with namespace.writer("s", create=True) as writer:
                await writer.append_many([b"x" * 500] * 500)
            network = cluster.network.options
            network.latency_min_s = network.latency_max_s = 0.2
            monkeypatch.setattr(EntryRange, "_run", counted)
            async with namespace.reader("s") as reader:
                next_sequence = 0
                for _ in range(40):
                    with trio.move_on_after(1):
                        while next_sequence < 500:
                            batch = await reader.next_batch()
                            assert batch.first_sequence == next_sequence
                            next_sequence += len(batch)
                assert next_sequence == 500
            assert 0 < most <= 6, "at most four batches may be read ahead"

    simulate(scenario, 1)


def test_reading_to_the_end_of_a_dead_writer_does_not_wait() -> None:
    """The bookies report the end: a reader that has followed needs no poll to learn it."""

    async def scenario(cluster: SimCluster) -> None:
        async with a_namespace(cluster) as namespace:
            await namespace.create_stream("s")

            async def write(client: LedgerClient) -> None:
                async with Namespace(client, "n").writer("s") as writer:
                    await writer.append(b"0")
                    await trio.sleep(2)
                    await writer.append(b"1")
                    done.set()
                    await trio.sleep_forever()

            done = trio.Event()
            process = cluster.start_client(write)
            await trio.sleep(1)
            async with namespace.reader("s") as reader:
                assert (await reader.next_batch()).values() == [b"0"]
                await done.wait()
                process.kill()
                await trio.sleep(20)
                with trio.fail_after(2):
                    rest = [batch.values() async for batch in reader.read_to_end()]
                assert rest == [[b"1"]]

    simulate(scenario, 1)


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
def test_reading_to_an_end_that_was_truncated_ahead_does_not_wait(policy: OnTruncated) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            a_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
            namespace.reader("s", on_truncated=policy) as reader,
        ):
            await writer.append_many([b"old"] * 5)
            await reader.next_batch()
            await namespace.truncate("s", Position(1, 8, 0))
            with trio.fail_after(2):
                if policy == "error":
                    with pytest.raises(Truncated):
                        await reader.read_to_end().__anext__()
                else:
                    assert [batch async for batch in reader.read_to_end()] == []

    simulate(scenario, 1)
