"""Consumer groups on a simulated cluster: sharing, handing over, dying, growing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerClosed
from stream import EARLIEST, LATEST, Namespace
from stream.consumer import Consumer
from stream.core.position import BEGINNING
from stream.errors import GroupBusy, MemberExists, NoSuchGroup, NoSuchStream, PartitionLost

PARTITIONS = 4


async def write(namespace: Namespace, prefix: str, count: int = 5) -> set[bytes]:
    """So many records to each partition; their values."""
    values = set()
    for partition in await namespace.partitions("s"):
        async with namespace.writer(partition) as writer:
            sent = [f"{partition}/{prefix}{number}".encode() for number in range(count)]
            await writer.append_many(sent)
            values.update(sent)
    return values


@asynccontextmanager
async def a_stream(
    cluster: SimCluster, partitions: int | None = PARTITIONS
) -> AsyncIterator[Namespace]:
    async with cluster.client("owner") as client:
        namespace = Namespace(client, "n")
        await namespace.ensure(batch_bytes=1)
        if partitions is None:
            await namespace.create_stream("s")
        else:
            await namespace.create_stream("s", partitions=partitions)
        yield namespace


async def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    """In virtual time: looking costs nothing."""
    with trio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.05)


class Worker:
    """A member as a process of its own, that remembers what it handled."""

    def __init__(self, cluster: SimCluster, name: str, **settings: Any) -> None:
        self.handled: list[tuple[str, bytes, float]] = []
        self.consumer: Consumer | None = None
        self.settings: dict[str, Any] = settings
        self.stop = trio.Event()
        self.process = cluster.start_client(self._run, name=name)

    async def _run(self, client: LedgerClient) -> None:
        namespace = Namespace(client, "n")
        async with namespace.consumer("s", "g", **self.settings) as consumer:
            self.consumer = consumer
            async with trio.open_nursery() as nursery:

                async def consume() -> None:
                    async for partition, batch, _ in consumer:
                        now_s = trio.current_time()
                        self.handled += [(partition, value, now_s) for value in batch.values()]

                nursery.start_soon(consume)
                await self.stop.wait()
                nursery.cancel_scope.cancel()

    @property
    def values(self) -> list[bytes]:
        return [value for _, value, _ in self.handled]

    @property
    def partitions(self) -> list[str]:
        return [] if self.consumer is None else self.consumer.partitions


def test_one_member_handles_all_and_the_next_goes_on_behind() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            sent = await write(namespace, "a")
            seen: list[bytes] = []
            async with namespace.consumer("s", "g") as consumer:
                async for delivery in consumer:
                    seen += delivery.batch.values()
                    if len(seen) == len(sent):
                        break
                committed = await consumer.commit()
                assert sorted(committed) == await namespace.partitions("s")
            assert set(seen) == sent
            assert len(seen) == len(sent)
            more = await write(namespace, "b", 1)
            async with namespace.consumer("s", "g", start=LATEST) as consumer:
                again = {(await consumer.next_record()).record.value for _ in more}
            assert again == more

    simulate(story)


def test_a_plain_stream_is_one_partition() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, None) as namespace:
            sent = await write(namespace, "a")
            async with namespace.consumer("s", "g", member="m") as consumer:
                found = [await consumer.next_record() for _ in sent]
                assert {item.partition for item in found} == {"s"}
                info = await namespace.group("s", "g")
                assert [row.holder for row in info.partitions] == ["m"]
            assert await namespace.groups("s") == ["g"]

    simulate(story)


def test_batches_and_records_may_be_mixed_and_nothing_is_left_out() -> None:
    async def story(cluster: SimCluster) -> None:
        async with cluster.client() as client:
            namespace = Namespace(client, "n")
            await namespace.ensure()
            await namespace.create_stream("s", partitions=1)
            sent = sorted(await write(namespace, "a", 9))
            async with namespace.consumer("s", "g") as consumer:
                seen = [(await consumer.next_record()).record.value for _ in range(4)]
                assert (await consumer.commit())["s#0"].slot == 4
                seen += (await consumer.__anext__()).batch.values()
                assert seen == sent

    simulate(story)


def test_what_was_handed_out_last_counts_only_when_more_is_asked_for() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, 1) as namespace:
            await write(namespace, "a", 3)
            async with namespace.consumer("s", "g") as consumer:
                await consumer.__anext__()
                second = await consumer.__anext__()
            async with namespace.consumer("s", "g") as consumer:
                again = await consumer.__anext__()
                assert again.batch.values() == second.batch.values()
                assert again.epoch == second.epoch + 1

    simulate(story)


def test_members_share_and_only_what_moves_pauses() -> None:
    """A second member gets half; the partitions that stay are read without a pause."""

    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            first = Worker(cluster, "first", member="first")
            await wait_for(lambda: len(first.partitions) == PARTITIONS)
            sent: set[bytes] = set()
            async with trio.open_nursery() as nursery:

                async def append(partition: str) -> None:
                    async with namespace.writer(partition) as writer:
                        for number in range(200):
                            value = f"{partition}/{number}".encode()
                            await writer.append(value)
                            sent.add(value)
                            await trio.sleep(0.02)

                for partition in await namespace.partitions("s"):
                    nursery.start_soon(append, partition)
                await trio.sleep(1)
                epochs = {
                    row.partition: row.epoch for row in (await namespace.group("s", "g")).partitions
                }
                second = Worker(cluster, "second", member="second")
                await wait_for(lambda: len(second.partitions) == PARTITIONS // 2, 5)
                assert len(first.partitions) == PARTITIONS // 2
                assert not set(first.partitions) & set(second.partitions)
                stayed = set(first.partitions)
                for row in (await namespace.group("s", "g")).partitions:
                    assert row.epoch == epochs[row.partition] + (row.partition not in stayed)
            await wait_for(lambda: len(set(first.values + second.values)) == len(sent))
            assert sorted(first.values + second.values) == sorted(sent), "each just once"
            for partition in stayed:
                times = [time_s for name, _, time_s in first.handled if name == partition]
                gaps = [b - a for a, b in pairwise(times)]
                assert max(gaps) < 0.2
            moved = {name for name, _, _ in second.handled}
            assert moved == set(await namespace.partitions("s")) - stayed

    simulate(story)


def test_a_member_that_leaves_hands_over_at_once_and_a_dead_one_after_its_session() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            sent = await write(namespace, "a")
            workers = [Worker(cluster, f"w{n}", member=f"w{n}") for n in range(3)]
            await wait_for(lambda: sum(len(w.partitions) for w in workers) == PARTITIONS)
            await wait_for(lambda: {v for w in workers for v in w.values} == sent)
            workers[0].stop.set()
            await workers[0].process.finished.wait()
            rest = workers[1:]
            await wait_for(lambda: sum(len(w.partitions) for w in rest) == PARTITIONS, 2)
            sent |= await write(namespace, "b")
            await wait_for(lambda: {v for w in workers for v in w.values} == sent)
            workers[1].process.kill()
            await wait_for(lambda: len(workers[2].partitions) == PARTITIONS, 10)
            sent |= await write(namespace, "c")
            await wait_for(lambda: {v for w in workers for v in w.values} == sent)
            info = await namespace.group("s", "g")
            assert info.members == ("w2",)
            await trio.sleep(3)
            for row in (await namespace.group("s", "g")).partitions:
                assert row.lag is not None
                assert (row.assigned_to, row.holder, row.lag.records) == ("w2", "w2", 0)

    simulate(story)


def test_a_member_whose_session_was_lost_comes_back_and_commits_nothing_of_others() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            sent = await write(namespace, "a")
            workers = [Worker(cluster, f"w{n}", member=f"w{n}") for n in range(2)]
            await wait_for(lambda: sum(len(w.partitions) for w in workers) == PARTITIONS)
            for _ in range(3):
                cluster.metadata.expire("w0")
                await trio.sleep(2)
                sent |= await write(namespace, f"{trio.current_time()}")
            await wait_for(lambda: {v for w in workers for v in w.values} == sent)
            await wait_for(lambda: [len(w.partitions) for w in workers] == [2, 2])

    for seed in range(3):
        simulate(story, seed)


def test_a_zombie_commits_nothing_and_stops_when_it_hears_of_it() -> None:
    """Cut off from the metadata and dead to the others, it still reads; none of it is committed."""

    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, 1) as namespace:
            await write(namespace, "a", 3)
            zombie = Worker(cluster, "zombie", member="zombie")
            await wait_for(lambda: len(zombie.values) == 3)
            await trio.sleep(3)
            cluster.metadata.cut_off("zombie")
            cluster.metadata.expire("zombie")
            heir = Worker(cluster, "heir", member="heir")
            await wait_for(lambda: heir.partitions == ["s#0"], 20)
            await write(namespace, "b", 3)
            await wait_for(lambda: len(heir.values) == 3)
            assert heir.values == [f"s#0/b{n}".encode() for n in range(3)]
            for number in range(30):
                await write(namespace, f"c{number}-", 1)
                await trio.sleep(1)
            await wait_for(lambda: len(heir.values) == 33)
            assert len(zombie.values) < 25, "after a while in doubt it hands out nothing more"
            row = (await namespace.group("s", "g")).partitions[0]
            assert row.holder == "heir"
            cluster.metadata.heal()
            await wait_for(lambda: zombie.partitions == [], 20)
            await wait_for(lambda: sorted((zombie.partitions, heir.partitions)) == [[], ["s#0"]])

    simulate(story)


def test_partitions_that_are_added_are_read_from_their_begin() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            workers = [Worker(cluster, f"w{n}", start=LATEST) for n in range(2)]
            await wait_for(lambda: [len(w.partitions) for w in workers] == [1, 1])
            await namespace.grow_stream("s", partitions=5)
            sent = await write(namespace, "a")
            await wait_for(lambda: {v for w in workers for v in w.values} == sent)
            assert sorted(len(w.partitions) for w in workers) == [2, 3]

    simulate(story)


def test_a_member_that_handles_slowly_is_waited_for_but_not_for_ever() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            await write(namespace, "a", 1)
            settings: dict[str, Any] = {"auto_advance": False, "hand_over_s": 10.0}
            async with namespace.consumer("s", "g", **settings) as slow:
                deliveries = [await slow.__anext__() for _ in range(2)]
                other = Worker(cluster, "other", hand_over_s=10.0)
                await trio.sleep(5)
                assert other.partitions == [], "it waits for what was handed out"
                moving = [d for d in deliveries if d.partition not in slow.partitions]
                staying = [d for d in deliveries if d.partition in slow.partitions]
                assert len(moving) == len(staying) == 1
                slow.advance(moving[0])
                await wait_for(lambda: len(other.partitions) == 1, 1)
                assert other.values == []
                with pytest.raises(PartitionLost, match="belongs to another"):
                    slow.advance(moving[0])
                other.stop.set()
                await wait_for(lambda: len(slow.partitions) == 2, 5)
                # Now it does not handle what it was given.
                await write(namespace, "b", 1)
                given = [await slow.__anext__() for _ in range(2)]
                third = Worker(cluster, "third", hand_over_s=10.0)
                await wait_for(lambda: len(third.partitions) == 1, 12)
                lost = [d for d in given if d.partition in third.partitions]
                await wait_for(lambda: third.values == lost[0].batch.values())
                with pytest.raises(PartitionLost):
                    slow.advance(lost[0])

    simulate(story)


def test_cursors_set_by_hand_move_a_running_group() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            sent = await write(namespace, "a", 3)
            worker = Worker(cluster, "w")
            await wait_for(lambda: len(worker.values) == len(sent))
            await trio.sleep(2)
            await namespace.set_cursor("s#0", "g", EARLIEST)
            await wait_for(lambda: len(worker.values) == len(sent) + 3, 5)
            assert all(value.startswith(b"s#0/") for value in worker.values[-3:])
            await trio.sleep(2)
            assert (await namespace.cursor_lag("s#0", "g")).records == 0

    simulate(story)


def test_names_are_for_one_living_process_and_come_back_after_a_crash() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            worker = Worker(cluster, "w", member="m")
            await wait_for(lambda: len(worker.partitions) == PARTITIONS)
            with pytest.raises(MemberExists, match="another process is this member"):
                async with namespace.consumer("s", "g", member="m"):
                    pass
            worker.process.kill()
            again = Worker(cluster, "w2", member="m")
            await wait_for(lambda: len(again.partitions) == PARTITIONS, 5)

    simulate(story)


def test_groups_are_listed_shown_and_deleted_when_empty() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            assert await namespace.groups("s") == []
            with pytest.raises(NoSuchGroup):
                await namespace.group("s", "g")
            with pytest.raises(NoSuchGroup):
                await namespace.delete_group("s", "g")
            worker = Worker(cluster, "w")
            await wait_for(lambda: len(worker.partitions) == PARTITIONS)
            with pytest.raises(GroupBusy, match="stop them first"):
                await namespace.delete_group("s", "g")
            worker.stop.set()
            await worker.process.finished.wait()
            assert await namespace.groups("s") == ["g"]
            await namespace.delete_group("s", "g")
            assert await namespace.groups("s") == []
            assert await namespace.cursors("s#0") == []

    simulate(story)


def test_bad_words_are_refused_and_a_stream_that_goes_is_told() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            for stream, group, member, seconds in (
                ("s", "a/b", "m", 1.0), ("s", "g", "a b", 1.0), ("s", "g", "m", -1.0),
                ("s#1", "g", "m", 1.0),
            ):  # fmt: skip
                with pytest.raises(InvalidArgument):
                    async with namespace.consumer(
                        stream, group, member=member, hand_over_s=seconds
                    ):
                        pass
            with pytest.raises(NoSuchStream):
                async with namespace.consumer("nowhere", "g"):
                    pass
            async with namespace.consumer("s", "g") as consumer:
                with pytest.raises(InvalidArgument, match="not Position"):
                    consumer.advance(BEGINNING)  # type: ignore[arg-type]
                with trio.move_on_after(1):
                    await consumer.__anext__()
                await namespace.delete_stream("s")
                with pytest.raises(NoSuchStream), trio.fail_after(10):
                    await consumer.__anext__()
            with pytest.raises((LedgerClosed, NoSuchStream)):
                await consumer.__anext__()

    simulate(story)


def test_cancelled_at_any_moment_asking_loses_and_repeats_nothing() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            sent = await write(namespace, "a", 10)
            seen: list[bytes] = []
            async with namespace.consumer("s", "g") as consumer:
                step = 0
                while len(seen) < len(sent):
                    step += 1
                    with trio.move_on_after(0.0007 * (step % 40)):
                        seen.append((await consumer.next_record()).record.value)
            assert sorted(seen) == sorted(sent)

    simulate(story)


def test_joining_and_leaving_may_be_cancelled_at_any_moment() -> None:
    """Nothing of a member stays behind, and nothing it did not handle is committed."""

    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            sent = await write(namespace, "a", 20)
            seen: list[bytes] = []
            for step in range(70):
                with trio.move_on_after(0.002 * step):
                    async with namespace.consumer("s", "g", auto_advance=False) as consumer:
                        for _ in range(step % 4):
                            item = await consumer.next_record()
                            seen.append(item.record.value)
                            consumer.advance(item)
                await trio.sleep(0.5)
                assert (await namespace.group("s", "g")).members == () if seen else True
            worker = Worker(cluster, "w")
            await wait_for(lambda: set(seen + worker.values) == sent)
            assert len(seen) > 5
            assert len(seen) == len(set(seen)), "what was handled was committed at the end"
            info = await namespace.group("s", "g")
            assert len(info.members) == 1

    simulate(story)


def test_commits_cost_at_most_one_change_per_partition_and_interval() -> None:
    async def story(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            worker = Worker(cluster, "w", commit_interval_ms=1000)
            await wait_for(lambda: len(worker.partitions) == 2)
            await trio.sleep(5)
            changes = count_calls(cluster, "w")
            await trio.sleep(1000)
            assert changes == [], "a member that has nothing to do asks for nothing"
            begin_s = trio.current_time()
            async with namespace.writer("s#0") as writer:
                for number in range(500):
                    await writer.append(b"%d" % number)
                    await trio.sleep(0.02)
            await wait_for(lambda: len(worker.values) == 500)
            await trio.sleep(3)
            puts = [call for call in changes if call.startswith("put")]
            assert 8 <= len(puts) <= trio.current_time() - begin_s
            assert {call.rpartition("/cursors/")[2] for call in puts} == {"s#0/g"}
            assert worker.consumer is not None
            assert (await worker.consumer.lag())["s#0"].records == 0

    simulate(story)


def count_calls(cluster: SimCluster, node: str) -> list[str]:
    """The calls of a node's metadata store from now on, as "kind path"; watches are none."""
    calls: list[str] = []
    trace = cluster.simulation.trace

    def note(*words: object) -> None:
        if words[:2] == ("metadata", node):
            calls.append(f"{words[2]} {words[3]}")
        trace(*words)

    cluster.simulation.trace = note  # type: ignore[method-assign]
    return calls
