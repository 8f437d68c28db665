"""Behaviour of namespaces, trash, partitions and groups.

It is written once, for asyncio, and runs on every face (see suite.py).
"""

from __future__ import annotations

import pytest

from ledger.errors import InvalidArgument
from stream.aio import (
    Delivery,
    FromSequence,
    IsPartitioned,
    Namespace,
    NoSuchStream,
    NotPartitioned,
    PartitionLost,
    StreamExists,
    WriterOptions,
)
from tests.stream.faces.aio_side import give_up_after, together
from tests.stream.faces.reading import fill, numbers_from


async def check_streams_are_created_listed_and_deleted(namespace: Namespace) -> None:
    assert await namespace.list_streams() == []
    made = await namespace.create_stream("b")
    assert made.name == "b"
    assert await namespace.ensure_stream("a")
    assert not await namespace.ensure_stream("a")
    with pytest.raises(StreamExists):
        await namespace.create_stream("a")
    assert await namespace.list_streams() == ["a", "b"]
    await namespace.delete_stream("a")
    assert await namespace.list_streams() == ["b"]
    with pytest.raises(NoSuchStream):
        await namespace.info("a")
    with pytest.raises(InvalidArgument):
        await namespace.create_stream("not/a name")


async def check_policies_change(namespace: Namespace) -> None:
    assert (await namespace.policy()).linger_ms == 0
    assert (await namespace.set_policy(linger_ms=5, retention_ms=60_000)).linger_ms == 5
    assert (await namespace.policy()).retention_ms == 60_000
    assert (await namespace.set_policy(dry_run=True, linger_ms=9)).linger_ms == 9
    assert (await namespace.policy()).linger_ms == 5
    with pytest.raises(InvalidArgument):
        await namespace.set_policy(ack_quorum=9)
    assert not await namespace.ensure()


async def check_info_describes_a_stream(namespace: Namespace) -> None:
    await fill(namespace, 30)
    info = await namespace.info("s")
    assert (info.records, info.first_sequence, info.next_sequence) == (30, 0, 30)
    assert not info.has_open_segment
    assert (await namespace.stream_metadata("s")).next_sequence == 30
    assert (await namespace.explain_retention("s")).stream == "s"
    assert [plan.stream for plan in await namespace.what_if(retention_ms=0)] == ["s"]


async def check_a_deleted_stream_can_be_restored(namespace: Namespace) -> None:
    await fill(namespace, 30)
    await namespace.delete_stream("s")
    assert [entry.stream for entry in await namespace.trash()] == ["s"]
    await namespace.undelete_stream("s")
    assert await numbers_from(namespace, FromSequence(0)) == list(range(30))
    await namespace.delete_stream("s")
    assert await namespace.purge("s") >= 1
    assert await namespace.trash() == []


async def check_sealing_ends_a_writer(namespace: Namespace) -> None:
    await fill(namespace, 10)
    sealed = await namespace.seal_stream("s")
    assert sealed.open_segment is None
    assert await numbers_from(namespace, FromSequence(0)) == list(range(10))


async def check_records_of_a_key_share_a_partition(namespace: Namespace) -> None:
    async with namespace.partitioned_writer("p", create=3) as writer:
        assert writer.partitions == 3
        places = [await writer.append(b"%d" % n, key=b"k%d" % (n % 7)) for n in range(70)]
        for number, place in enumerate(places):
            assert place.partition == writer.partition_of(b"k%d" % (number % 7))
        tickets = [writer.append_nowait(b"%d" % n, b"k%d" % (n % 7)) for n in range(70, 140)]
        await writer.flush()
        assert all(ticket.is_confirmed for ticket in tickets)
        assert (await tickets[0].wait()).partition == tickets[0].partition
        await writer.append_many(
            [b"%d" % n for n in range(140, 150)], [b"k%d" % (n % 7) for n in range(140, 150)]
        )
        assert (await writer.append(b"150", partition=2)).partition == 2
        assert writer.statistics().records == 151
    names = await namespace.partitions("p")
    assert names == ["p#0", "p#1", "p#2"]
    read = [await numbers_from(namespace, FromSequence(0), name) for name in names]
    assert sorted(number for numbers in read for number in numbers) == list(range(151))
    for numbers in read:
        for key in range(7):
            of_key = [n for n in numbers if n % 7 == key and n < 150]
            assert of_key == sorted(of_key)


async def check_records_need_no_key(namespace: Namespace) -> None:
    options = WriterOptions(pending_bytes_max=1 << 20)
    async with namespace.partitioned_writer("p", create=2, options=options) as writer:
        for number in range(40):
            await writer.append(b"%d" % number)
    info = await namespace.partitioned_info("p")
    assert sum(each.records for each in info.partitions) == 40


async def check_partitioned_streams_are_distinguished_from_others(namespace: Namespace) -> None:
    await namespace.create_stream("p", partitions=2)
    await namespace.create_stream("s")
    with pytest.raises(IsPartitioned):
        async with namespace.writer("p"):
            pass
    with pytest.raises(NotPartitioned):
        async with namespace.partitioned_writer("s"):
            pass
    grown = await namespace.grow_stream("p", partitions=3)
    assert grown.partitions == 3
    assert await namespace.partitions("s") == ["s"]
    assert await namespace.list_streams() == ["p", "s"]
    await namespace.delete_stream("p")
    assert await namespace.list_streams() == ["s"]


async def check_a_consumer_receives_everything_and_commits(namespace: Namespace) -> None:
    async with namespace.partitioned_writer("p", create=2) as writer:
        await writer.append_many(
            [b"%d" % n for n in range(50)], keys=[b"%d" % n for n in range(50)]
        )
    seen: list[int] = []
    async with namespace.consumer("p", "billing") as consumer:
        assert (consumer.group, consumer.stream) == ("billing", "p")
        async for delivery in consumer:
            seen += [int(value) for value in delivery.batch.values()]
            if len(seen) == 50:
                break
        assert consumer.partitions == ["p#0", "p#1"]
        assert set(await consumer.commit()) == {"p#0", "p#1"}
    assert sorted(seen) == list(range(50))
    assert await namespace.groups("p") == ["billing"]
    assert (await namespace.group("p", "billing")).name == "billing"
    async with namespace.consumer("p", "billing") as consumer, give_up_after(0.3):
        await consumer.next_record()
        raise AssertionError("every record was handled before")
    await namespace.delete_group("p", "billing")


async def check_a_consumer_advances_explicitly(namespace: Namespace) -> None:
    await fill(namespace, 30)
    async with namespace.consumer("s", "g", auto_advance=False) as consumer:
        first = await anext(consumer)
        second = await anext(consumer)
        consumer.advance(first)
        assert await consumer.commit() == {"s": first.batch.after}
        with pytest.raises(PartitionLost):
            consumer.advance(Delivery(second.partition, second.batch, second.epoch - 1))
    async with namespace.consumer("s", "g") as consumer:
        assert int((await consumer.next_record()).record.value) == 10
        async for each in consumer.records():
            assert int(each.record.value) == 11
            break


async def check_two_members_share_the_partitions(namespace: Namespace) -> None:
    async with namespace.partitioned_writer("p", create=4) as writer:
        await writer.append_many(
            [b"%d" % n for n in range(200)], keys=[b"%d" % n for n in range(200)]
        )
    handled: list[int] = []

    async def member() -> None:
        async with (
            namespace.consumer("p", "g", commit_interval_ms=0) as consumer,
            give_up_after(10),
        ):
            while len(set(handled)) < 200:
                async with give_up_after(0.2):
                    delivery = await anext(consumer)
                    handled.extend(int(value) for value in delivery.batch.values())
            await consumer.commit()

    await together(member, member)
    assert set(handled) == set(range(200))
