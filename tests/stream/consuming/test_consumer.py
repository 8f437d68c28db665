"""Consumer groups on a simulated cluster: sharing, growth, records and batches, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.metastore.base import Change, Put
from stream import LATEST, Janitor
from stream.core.metadata.groups import decode_group
from stream.errors import GroupBusy, NoSuchGroup
from tests.effort import scaled
from tests.stream.consuming.simulated_group import (
    PARTITIONS,
    Worker,
    a_stream,
    count_calls,
    wait_for,
    write,
)
from tests.stream.sim_namespace import sim_namespace


def test_one_member_handles_all_and_the_next_continues_after_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
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

    simulate(scenario)


def test_a_plain_stream_is_one_partition() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, None) as namespace:
            sent = await write(namespace, "a")
            async with namespace.consumer("s", "g", member="m") as consumer:
                found = [await consumer.next_record() for _ in sent]
                assert {item.partition for item in found} == {"s"}
                info = await namespace.group("s", "g")
                assert [row.holder for row in info.partitions] == ["m"]
            assert await namespace.groups("s") == ["g"]

    simulate(scenario)


def test_batches_and_records_may_be_mixed_and_nothing_is_skipped() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            await namespace.create_stream("s", partitions=1)
            sent = sorted(await write(namespace, "a", 9))
            async with namespace.consumer("s", "g") as consumer:
                seen = [(await consumer.next_record()).record.value for _ in range(4)]
                assert (await consumer.commit())["s#0"].slot == 4
                seen += (await consumer.__anext__()).batch.values()
                assert seen == sent

    simulate(scenario)


def test_the_last_delivery_counts_only_when_more_is_requested() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 1) as namespace:
            await write(namespace, "a", 3)
            async with namespace.consumer("s", "g") as consumer:
                await consumer.__anext__()
                second = await consumer.__anext__()
            async with namespace.consumer("s", "g") as consumer:
                again = await consumer.__anext__()
                assert again.batch.values() == second.batch.values()
                assert again.epoch == second.epoch + 1

    simulate(scenario)


def test_members_share_and_only_what_moves_pauses() -> None:
    """A second member gets half; the partitions that stay are read without a pause."""

    async def scenario(cluster: SimCluster) -> None:
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
            assert sorted(first.values + second.values) == sorted(sent), "each exactly once"
            for partition in stayed:
                times = [time_s for name, _, time_s in first.handled if name == partition]
                gaps = [b - a for a, b in pairwise(times)]
                assert max(gaps) < 0.2
            moved = {name for name, _, _ in second.handled}
            assert moved == set(await namespace.partitions("s")) - stayed

    simulate(scenario)


def test_partitions_that_are_added_are_read_from_their_beginning() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            workers = [Worker(cluster, f"w{n}", start=LATEST) for n in range(2)]
            await wait_for(lambda: [len(w.partitions) for w in workers] == [1, 1])
            await namespace.grow_stream("s", partitions=5)
            sent = await write(namespace, "a")
            await wait_for(lambda: {v for w in workers for v in w.values} == sent)
            assert sorted(len(w.partitions) for w in workers) == [2, 3]

    simulate(scenario)


def test_groups_are_listed_shown_and_deleted_when_empty() -> None:
    async def scenario(cluster: SimCluster) -> None:
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

    simulate(scenario)


def test_commits_cost_at_most_one_change_per_partition_and_interval() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            worker = Worker(cluster, "w", commit_interval_ms=1000)
            await wait_for(lambda: len(worker.partitions) == 2)
            await trio.sleep(5)
            changes = count_calls(cluster, "w")
            await trio.sleep(scaled(ci=100, night=1000))
            assert changes == [], "an idle member sends no requests"
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

    simulate(scenario)


def test_several_tasks_may_request_if_they_advance_themselves() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            sent = await write(namespace, "a", 30)
            seen: list[bytes] = []
            async with namespace.consumer("s", "g", auto_advance=False) as consumer:

                async def work(seconds: float) -> None:
                    while len(seen) < len(sent):
                        item = await consumer.next_record()
                        seen.append(item.record.value)
                        await trio.sleep(seconds)
                        consumer.advance(item)

                with trio.move_on_after(20):
                    async with trio.open_nursery() as nursery:
                        for number in range(5):
                            nursery.start_soon(work, 0.01 * number)
                await consumer.commit()
            assert sorted(seen) == sorted(sent), "each exactly once"
            for partition in await namespace.partitions("s"):
                assert (await namespace.cursor_lag(partition, "g")).records == 0

    simulate(scenario)


def test_with_auto_advance_only_one_task_may_request() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            a_stream(cluster) as namespace,
            namespace.consumer("s", "g") as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(consumer.__anext__)
            await trio.sleep(1)
            with pytest.raises(trio.BusyResourceError, match="auto_advance=False"):
                await consumer.__anext__()
            nursery.cancel_scope.cancel()

    simulate(scenario)


def test_in_a_day_of_joins_and_leaves_few_partitions_move() -> None:
    """Each move of a partition is owed to a change of its assignment, and there are no more changes
    than a balanced group needs."""

    async def scenario(cluster: SimCluster) -> None:
        chance = cluster.simulation.chance("members")
        moved = count_moves(cluster)
        async with a_stream(cluster, 6) as namespace:
            workers: list[Worker] = []
            for number in range(30):
                if workers and chance.random() < 0.5:
                    workers.pop(chance.randrange(len(workers))).stop.set()
                else:
                    workers.append(Worker(cluster, f"w{number}", member=f"w{number}"))
                await trio.sleep(chance.choice((0.05, 1.0, 5.0)))
            while len(workers) < 2:
                workers.append(Worker(cluster, f"x{len(workers)}"))
            await wait_for(lambda: sum(len(worker.partitions) for worker in workers) == 6)
            await trio.sleep(5)
            info = await namespace.group("s", "g")
            for row in info.partitions:
                assert row.holder == row.assigned_to
                assert row.epoch <= moved[row.partition]

    for seed in range(scaled(ci=1, night=20)):
        simulate(scenario, seed)


def count_moves(cluster: SimCluster) -> dict[str, int]:
    """Counts how often each partition was assigned to another member, at the metadata store."""
    moved: dict[str, int] = {}
    before: dict[str, str] = {}
    tree = cluster.metadata.tree
    change_tree = tree.apply

    def apply(changes: Sequence[Change], session: Any, now_ms: int) -> None:
        change_tree(changes, session, now_ms)
        for change in changes:
            if isinstance(change, Put) and change.path.endswith("/groups/s/g"):
                for partition, member in decode_group("g", change.data).assignment.items():
                    if before.get(partition) != member:
                        moved[partition] = moved.get(partition, 0) + 1
                        before[partition] = member

    tree.apply = apply  # type: ignore[method-assign]
    return moved


@pytest.mark.parametrize("partitions", [None, 2])
def test_a_group_is_deleted_with_its_stream(partitions: int | None) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, partitions) as namespace:
            await namespace.set_policy(trash_ms=0)
            worker = Worker(cluster, "w")
            await wait_for(lambda: len(worker.partitions) == (partitions or 1))
            worker.stop.set()
            await worker.process.finished.wait()
            await namespace.delete_stream("s")
            janitor = Janitor(namespace.client, "n")
            for _ in range(4):
                await trio.sleep(600)
                await janitor.sweep()
            store, root = namespace.client.store, "/ledgerstream/namespaces/n"
            assert await store.children(f"{root}/groups") == []
            assert await store.children(f"{root}/cursors") == []

    simulate(scenario)
