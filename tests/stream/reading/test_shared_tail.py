"""Many readers at the end of one stream: each sees every record once, with one fetch for all."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from outcome import Outcome

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.errors import LedgerClosed
from ledger.options import ClientOptions
from ledger.reading.last_confirmed import LacPoll
from ledger.runtime.parking import ParkingSlot
from stream import EARLIEST, LATEST, Namespace, NoSuchStream, StreamReader, StreamWriter
from stream.core.entry.records import decode
from stream.reading import segment_feed as segment_feed_module
from tests.effort import seeds
from tests.task_count import TaskCount

READERS = 100
ENTRIES = 40


async def append_slowly(writer: StreamWriter, count: int, pause_s: float, first: int = 0) -> None:
    """Appends records, each as an entry of its own that readers see before the next one."""
    for number in range(first, first + count):
        await writer.append(b"%d" % number)
        await trio.sleep(pause_s)


async def take(reader: StreamReader, count: int, pause: Callable[[], Awaitable[None]]) -> list[int]:
    seen: list[int] = []
    while len(seen) < count:
        seen += [int(value) for value in (await reader.next_batch()).values()]
        await pause()
    return seen


def test_a_hundred_readers_cost_one_poll_and_one_decoding_per_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each entry costs one poll, one decoding and almost no task for any number of readers."""
    counts = {"polls": 0, "decodes": 0}
    poll = LacPoll.poll

    def counted_poll(self: LacPoll, known: int, poll_s: float) -> object:
        counts["polls"] += 1
        return poll(self, known, poll_s)

    def counted_decode(*args: object, **kwargs: object) -> object:
        counts["decodes"] += 1
        return decode(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(LacPoll, "poll", counted_poll)
    monkeypatch.setattr(segment_feed_module, "decode", counted_decode)

    async def scenario(cluster: SimCluster) -> None:
        # Two clients, so that the writer's tasks are not counted among the readers' tasks.
        async with cluster.client("writing") as one, cluster.client("reading") as other:
            await Namespace(one, "n").ensure()
            namespace = Namespace(other, "n")
            async with (
                Namespace(one, "n").writer("s", create=True) as writer,
                trio.open_nursery() as nursery,
            ):
                spawned = TaskCount()
                done: list[int] = []

                async def follow() -> None:
                    async with namespace.reader("s", start=LATEST) as reader:
                        seen = await take(reader, ENTRIES, trio.lowlevel.checkpoint)
                        assert seen == list(range(ENTRIES))
                        done.append(1)

                for _ in range(READERS):
                    nursery.start_soon(follow)
                await trio.sleep(1)  # all wait at the end
                before = dict(counts)
                trio.lowlevel.add_instrument(spawned)
                await append_slowly(writer, ENTRIES, 0.05)
                await trio.sleep(0.5)
                trio.lowlevel.remove_instrument(spawned)
                assert len(done) == READERS
                assert counts["decodes"] - before["decodes"] == ENTRIES
                assert counts["polls"] - before["polls"] <= ENTRIES + 2
                # The client has a few of its own, for example to read the metadata store.
                assert spawned.count <= ENTRIES, f"{spawned.count} tasks for {ENTRIES} entries"
                delivered, fetched = namespace.tails.counts.delivered, namespace.tails.counts
                assert delivered == READERS * ENTRIES
                assert fetched.batches == ENTRIES
                assert fetched.feeds == 1

    simulate(scenario, 1)


@pytest.mark.parametrize("seed", seeds(ci=1, night=30))
def test_readers_of_any_speed_that_are_cancelled_at_any_time_see_all_of_it(seed: int) -> None:
    """Small bounds make slow readers fall behind, and rolls make feeds cross segments."""

    async def scenario(cluster: SimCluster) -> None:
        chance = random.Random(seed)
        total = 150
        options = ClientOptions(read_ahead_bytes=4000)
        async with cluster.client("one", options) as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(roll_ms=chance.choice((1000, 3_600_000)))

            async def follow(number: int, delay_s: float) -> None:
                # Its own random numbers: the others must not change what it does.
                own = random.Random(f"{seed} {number}")
                slowness_s = own.choice((0.0, 0.001, 0.02, 0.2))
                seen: list[int] = []
                await trio.sleep(delay_s)
                async with namespace.reader("s", start=EARLIEST) as reader:
                    while len(seen) < total:
                        with trio.move_on_after(own.choice((0.001, 0.01, 1.0, 1000.0))):
                            batch = await reader.next_batch()
                            seen += [int(value) for value in batch.values()]
                        await trio.sleep(own.uniform(0, slowness_s))
                assert seen == list(range(total)), f"reader {number}"

            async with (
                namespace.writer("s", create=True) as writer,
                trio.open_nursery() as nursery,
            ):
                for number in range(12):
                    nursery.start_soon(follow, number, chance.uniform(0, 4))
                for number in range(total):
                    await writer.append(b"%d" % number)
                    await trio.sleep(chance.choice((0, 0, 0.01, 0.1)))
            counts = namespace.tails.counts
            assert counts.delivered > counts.batches, "no fetch was shared"

    simulate(scenario, seed)


def test_a_slow_reader_falls_behind_catches_up_and_shares_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("one", ClientOptions(read_ahead_bytes=4000)) as client:
            namespace = Namespace(client, "n")
            await namespace.ensure()
            async with (
                namespace.writer("s", create=True) as writer,
                namespace.reader("s", start=LATEST) as quick,
                namespace.reader("s", start=LATEST) as slow,
                trio.open_nursery() as nursery,
            ):

                async def follow() -> None:
                    seen = await take(quick, 110, trio.lowlevel.checkpoint)
                    assert seen == list(range(110))

                nursery.start_soon(follow)
                # It may have read the first records alone.
                nursery.start_soon(append_slowly, writer, 2, 0.01)
                assert await take(slow, 2, trio.lowlevel.checkpoint) == [0, 1]
                await append_slowly(writer, 98, 0.01, first=2)  # it sleeps all the time
                counts = namespace.tails.counts
                assert counts.fell_behind == 0
                seen = await take(slow, 98, trio.lowlevel.checkpoint)
                assert seen == list(range(2, 100))
                assert counts.fell_behind == 1
                fetched, delivered = counts.batches, counts.delivered
                nursery.start_soon(append_slowly, writer, 10, 0.05, 100)
                await take(slow, 10, trio.lowlevel.checkpoint)
                await trio.sleep(1)
                assert counts.batches - fetched <= 10
                assert counts.delivered - delivered >= 18, "the reader does not share again"

    simulate(scenario, 3)


def test_when_the_stream_is_deleted_every_reader_is_notified() -> None:
    async def scenario(cluster: SimCluster) -> None:
        notified: list[int] = []
        async with cluster.client("one") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure()
            async with trio.open_nursery() as nursery:

                async def follow(number: int) -> None:
                    async with namespace.reader("s", start=EARLIEST) as reader:
                        await reader.next_batch()
                        with pytest.raises(NoSuchStream):
                            await reader.next_batch()
                        notified.append(number)

                async with namespace.writer("s", create=True) as writer:
                    await writer.append(b"only")
                    for number in range(5):
                        nursery.start_soon(follow, number)
                    await trio.sleep(2)
                await trio.sleep(2)
                with trio.fail_after(60):
                    await namespace.delete_stream("s")
                    while len(notified) < 5:  # noqa: ASYNC110 - virtual time
                        await trio.sleep(0.1)

    simulate(scenario, 5)


def test_the_end_of_the_client_ends_its_shared_tails() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("writing") as writing, trio.open_nursery() as nursery:
            await Namespace(writing, "n").ensure()
            async with Namespace(writing, "n").writer("s", create=True) as writer:
                await writer.append(b"only")
                notified: list[int] = []

                async def follow(client: LedgerClient, namespace: Namespace) -> None:
                    async with namespace.reader("s", start=EARLIEST) as reader:
                        await reader.next_batch()
                        with pytest.raises(LedgerClosed):
                            await reader.next_batch()
                        notified.append(1)

                async with cluster.client("reading") as client:
                    namespace = Namespace(client, "n")
                    for _ in range(3):
                        nursery.start_soon(follow, client, namespace)
                    await trio.sleep(2)
                with trio.fail_after(60):
                    while len(notified) < 3:  # noqa: ASYNC110 - virtual time
                        await trio.sleep(0.1)

    simulate(scenario, 7)


def test_the_last_reader_that_leaves_ends_the_shared_tail() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("one") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure()
            async with namespace.writer("s", create=True) as writer:
                await writer.append(b"only")
                for _ in range(3):
                    async with (
                        namespace.reader("s", start=EARLIEST) as one,
                        namespace.reader("s", start=EARLIEST) as other,
                    ):
                        for reader in (one, other):
                            await reader.next_batch()
                            with trio.move_on_after(1):
                                await reader.next_batch()
                        assert namespace.tails.streams == ["s"]
                    await trio.sleep(1)
                    assert namespace.tails.streams == []
            assert namespace.tails.counts.feeds == 3

    simulate(scenario, 9)


@pytest.mark.parametrize("leaves_at", range(1, 13))
def test_the_last_reader_may_leave_when_an_answer_arrives(
    leaves_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetching task, which is one of the client's, keeps running for a moment then."""

    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("one") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(batch_bytes=1)
            async with (
                namespace.writer("s", create=True) as writer,
                namespace.reader("s", start=LATEST) as reader,
                trio.open_nursery() as nursery,
            ):
                values = [b"%d" % number for number in range(39)]
                answers = 0

                class LeavingSlot(ParkingSlot):
                    def unpark(self, result: Outcome[Any] | None = None) -> None:
                        nonlocal answers
                        super().unpark(result)
                        answers += 1
                        if answers == leaves_at:
                            reader._feed._leave_tail()  # as `aclose` does

                async def append() -> None:
                    for first in range(0, 39, 3):
                        await writer.append_many(values[first : first + 3])
                        await trio.sleep(0.1)

                monkeypatch.setattr("ledger.reading.replica_call.ParkingSlot", LeavingSlot)
                nursery.start_soon(append)
                seen: list[bytes] = []
                while len(seen) < len(values):
                    seen += (await reader.next_batch()).values()
                assert seen == values

    simulate(scenario, 1)


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("after_s", [0.001, 0.003, 0.01, 1.0, 3.0])
def test_a_reader_that_another_task_closes_returns_nothing_more(
    after_s: float, others: int
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with cluster.client("one") as client:
            namespace = Namespace(client, "n")
            await namespace.ensure(batch_bytes=1)
            async with (
                namespace.writer("s", create=True) as writer,
                trio.open_nursery() as nursery,
            ):
                await writer.append_many([b"x"] * 20)

                async def follow() -> None:
                    async with namespace.reader("s") as other:
                        for _ in range(21):
                            await other.next_batch()

                async def read(reader: StreamReader) -> None:
                    while True:
                        try:
                            await reader.next_batch()
                        except LedgerClosed:
                            closed.set()
                            return
                        assert not is_closed

                closed, is_closed = trio.Event(), False
                for _ in range(others):
                    nursery.start_soon(follow)
                async with namespace.reader("s") as reader:
                    nursery.start_soon(read, reader)
                    await trio.sleep(after_s)
                is_closed = True
                with trio.fail_after(0.5):
                    await closed.wait()
                await writer.append(b"last")
            assert namespace.tails.streams == []

    simulate(scenario, 1)
