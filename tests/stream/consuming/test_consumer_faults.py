"""Consumer groups on a simulated cluster whose members die, hang, are slow or are cancelled."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.errors import InvalidArgument, LedgerClosed
from stream import EARLIEST, Namespace
from stream.core.position import BEGINNING
from stream.errors import MemberExists, NoSuchStream, PartitionLost
from stream.store.cursors import cursor_path
from tests.effort import scaled
from tests.stream.consuming.simulated_group import PARTITIONS, Worker, a_stream, wait_for, write


def test_a_member_that_leaves_hands_over_at_once_and_a_dead_one_after_its_session() -> None:
    async def scenario(cluster: SimCluster) -> None:
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

    simulate(scenario)


def test_a_member_whose_session_was_lost_returns_and_commits_nothing_of_others() -> None:
    async def scenario(cluster: SimCluster) -> None:
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

    for seed in range(scaled(ci=1, night=12)):
        simulate(scenario, seed)


def test_a_zombie_commits_nothing_and_stops_when_it_is_notified() -> None:
    """A member that is cut off from the metadata still reads, but commits nothing.

    To the other members it is dead.
    """

    async def scenario(cluster: SimCluster) -> None:
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
            assert len(zombie.values) < 25, "unverified for a while, it delivers nothing more"
            row = (await namespace.group("s", "g")).partitions[0]
            assert row.holder == "heir"
            cluster.metadata.heal()
            await wait_for(lambda: zombie.partitions == [], 20)
            await wait_for(lambda: sorted((zombie.partitions, heir.partitions)) == [[], ["s#0"]])

    simulate(scenario)


def test_a_member_that_handles_slowly_is_waited_for_but_not_forever() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 2) as namespace:
            await write(namespace, "a", 1)
            settings: dict[str, Any] = {"auto_advance": False, "hand_over_s": 10.0}
            async with namespace.consumer("s", "g", **settings) as slow:
                deliveries = [await slow.__anext__() for _ in range(2)]
                other = Worker(cluster, "other", hand_over_s=10.0)
                await trio.sleep(5)
                assert other.partitions == [], "it waits until the delivered records are handled"
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
                # Now it does not handle its delivery.
                await write(namespace, "b", 1)
                given = [await slow.__anext__() for _ in range(2)]
                third = Worker(cluster, "third", hand_over_s=10.0)
                await wait_for(lambda: len(third.partitions) == 1, 12)
                lost = [d for d in given if d.partition in third.partitions]
                await wait_for(lambda: third.values == lost[0].batch.values())
                with pytest.raises(PartitionLost):
                    slow.advance(lost[0])

    simulate(scenario)


def test_cursors_set_by_hand_move_a_running_group() -> None:
    async def scenario(cluster: SimCluster) -> None:
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

    simulate(scenario)


def test_names_are_for_one_living_process_and_free_after_a_crash() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster) as namespace:
            worker = Worker(cluster, "w", member="m")
            await wait_for(lambda: len(worker.partitions) == PARTITIONS)
            with pytest.raises(MemberExists, match="another process is this member"):
                async with namespace.consumer("s", "g", member="m"):
                    pass
            worker.process.kill()
            again = Worker(cluster, "w2", member="m")
            await wait_for(lambda: len(again.partitions) == PARTITIONS, 5)

    simulate(scenario)


def test_bad_arguments_are_refused_and_a_deletion_is_reported() -> None:
    async def scenario(cluster: SimCluster) -> None:
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

    simulate(scenario)


def test_a_request_cancelled_at_any_moment_loses_and_repeats_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
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

    simulate(scenario)


def test_joining_and_leaving_may_be_cancelled_at_any_moment() -> None:
    """Nothing of a member remains, and nothing it did not handle is committed."""

    async def scenario(cluster: SimCluster) -> None:
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

    simulate(scenario)


def test_a_long_outage_of_the_metadata_in_the_middle_of_a_batch_skips_no_record() -> None:
    """During the outage the consumer delivers nothing; then it continues where it was."""

    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 1) as namespace:
            await namespace.set_policy(batch_bytes=60_000)
            async with namespace.writer("s#0") as writer:
                await writer.append_many([b"%d" % number for number in range(30)])
                await writer.append_many([b"%d" % number for number in range(30, 40)])
            async with (
                cluster.client("member") as client,
                Namespace(client, "n").consumer("s", "g") as consumer,
                trio.open_nursery() as nursery,
            ):
                seen: list[bytes] = []

                async def consume() -> None:
                    async for _, record, _ in consumer.records():
                        seen.append(record.value)
                        await trio.sleep(1)

                nursery.start_soon(consume)
                await trio.sleep(3)
                cluster.metadata.cut_off("member")
                await trio.sleep(20)
                assert len(seen) < 20, "unverified, it delivers nothing"
                cluster.metadata.heal()
                await trio.sleep(60)
                nursery.cancel_scope.cancel()
                assert seen == [b"%d" % number for number in range(40)]

    simulate(scenario)


def test_a_removed_cursor_is_created_again() -> None:
    """Even if a commit of the application's own found it missing."""

    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, 1) as namespace:
            await write(namespace, "a", 3)
            async with namespace.consumer("s", "g") as consumer:
                await consumer.__anext__()
                await consumer.commit()
                await consumer.__anext__()
                await namespace.client.store.delete(cursor_path("n", "s#0", "g"))
                assert await consumer.commit() == {}
                await trio.sleep(5)
                await write(namespace, "b", 1)
                with trio.fail_after(20):
                    while (await consumer.__anext__()).batch.values() != [b"s#0/b0"]:
                        pass
                assert list(await consumer.commit()) == ["s#0"]
                assert (await namespace.cursor_lag("s#0", "g")).records == 0

    simulate(scenario)


def test_all_members_of_a_plain_stream_created_again_are_notified() -> None:
    """Idle members, too; otherwise they and the members of the new stream would undo each other's
    assignments forever."""

    async def scenario(cluster: SimCluster) -> None:
        async with a_stream(cluster, None) as namespace:
            await write(namespace, "a", 3)
            notified: list[str] = []

            async def consume(name: str) -> None:
                async with cluster.client(name) as client:
                    consumer = Namespace(client, "n").consumer("s", "g", member=name)
                    try:
                        async with consumer as member:
                            async for _ in member:
                                pass
                    except NoSuchStream:
                        notified.append(name)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume, "one")
                nursery.start_soon(consume, "other")
                await trio.sleep(5)
                await namespace.delete_stream("s")
                await namespace.create_stream("s")
                await wait_for(lambda: sorted(notified) == ["one", "other"], 5)
            sent = await write(namespace, "b", 3)
            worker = Worker(cluster, "new")
            await wait_for(lambda: set(worker.values) == sent, 5)

    simulate(scenario)
