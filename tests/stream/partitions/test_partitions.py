"""Partitioned streams on a memory metadata store: created, grown, listed and deleted as one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio

from ledger.errors import InvalidArgument
from stream import EARLIEST, FromTime, Namespace, Position
from stream.core.names import PARTITIONS_MAX
from stream.errors import (
    IsPartitioned,
    NoSuchStream,
    NotPartitioned,
    PartitionsFailed,
    StreamExists,
)
from stream.retention.orphans import orphaned_partitions
from stream.store.partitions import PartitionStore
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import read_all, values


@asynccontextmanager
async def with_clicks(tmp_path: Path) -> AsyncIterator[Namespace]:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("clicks", partitions=3)
        yield namespace


async def test_partitions_are_created_together_and_listed_as_one(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        await namespace.create_stream("plain")
        assert await namespace.list_streams() == ["clicks", "plain"]
        assert await namespace.partitions("clicks") == ["clicks#0", "clicks#1", "clicks#2"]
        assert await namespace.partitions("plain") == ["plain"]
        assert await namespace.partitions("clicks#1") == ["clicks#1"]
        with pytest.raises(NoSuchStream):
            await namespace.partitions("nothing")


async def test_a_name_is_used_once(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        with pytest.raises(StreamExists):
            await namespace.create_stream("clicks")
        with pytest.raises(StreamExists):
            await namespace.create_stream("clicks", partitions=3)
        await namespace.create_stream("plain")
        with pytest.raises(StreamExists):
            await namespace.create_stream("plain", partitions=3)
        with pytest.raises(InvalidArgument, match="made with their stream"):
            await namespace.create_stream("clicks#7")
        assert not await namespace.ensure_stream("clicks", partitions=5)


@pytest.mark.parametrize("partitions", [0, -1, PARTITIONS_MAX + 1])
async def test_impossible_numbers_of_partitions_are_refused(
    tmp_path: Path, partitions: int
) -> None:
    async with a_namespace(tmp_path) as namespace:
        with pytest.raises(InvalidArgument):
            await namespace.create_stream("clicks", partitions=partitions)
        assert await namespace.list_streams() == []


async def test_as_many_partitions_as_there_may_be_are_one_change(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        name = "n" * 200
        await namespace.create_stream(name, partitions=PARTITIONS_MAX)
        assert len(await namespace.partitions(name)) == PARTITIONS_MAX


async def test_plain_calls_say_what_to_call_for_a_partitioned_stream(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        with pytest.raises(IsPartitioned, match="partitioned_writer"):
            async with namespace.writer("clicks"):
                pass
        with pytest.raises(IsPartitioned):
            async with namespace.reader("clicks"):
                pass
        with pytest.raises(IsPartitioned, match="partitioned_info"):
            await namespace.info("clicks")
        with pytest.raises(IsPartitioned):
            await namespace.truncate("clicks", Position(0, 0, 0))


async def test_calls_for_partitions_refuse_a_plain_stream(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("plain")
        for call in (
            namespace.grow_stream("plain", partitions=3),
            namespace.partitioned_info("plain"),
            namespace.truncate_partitions("plain", FromTime(0)),
        ):
            with pytest.raises(NotPartitioned):
                await call


async def test_growth_adds_partitions_and_keeps_the_old_ones(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        async with namespace.writer("clicks#2") as writer:
            await writer.append(b"before")
        await namespace.grow_stream("clicks", partitions=5)
        assert len(await namespace.partitions("clicks")) == 5
        assert values(await read_all(namespace, "clicks#2")) == [b"before"]
        assert values(await read_all(namespace, "clicks#4")) == []
        with pytest.raises(InvalidArgument, match="cannot shrink"):
            await namespace.grow_stream("clicks", partitions=4)


async def test_concurrent_growths_all_succeed(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace, trio.open_nursery() as nursery:

        async def grow(partitions: int) -> None:
            try:
                await namespace.grow_stream("clicks", partitions=partitions)
            except InvalidArgument:
                assert len(await namespace.partitions("clicks")) > partitions

        for partitions in (7, 12, 4, 12, 9):
            nursery.start_soon(grow, partitions)
    assert nursery is not None


async def test_watchers_see_growth_and_the_end(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        store = PartitionStore(namespace.client.store)
        async with aclosing(store.watch("demo", "clicks")) as versions:
            first = await anext(versions)
            await namespace.grow_stream("clicks", partitions=4)
            second = await anext(versions)
            await namespace.delete_stream("clicks")
            assert await anext(versions) is None
        assert first is not None
        assert second is not None
        assert (first.partitions, second.partitions) == (3, 4)


async def test_info_describes_all_partitions(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        for number in range(3):
            async with namespace.writer(f"clicks#{number}") as writer:
                await writer.append_many([b"x"] * (number + 1))
        info = await namespace.partitioned_info("clicks")
        assert [partition.records for partition in info.partitions] == [1, 2, 3]
        assert (info.records, info.segments) == (6, 3)


async def test_truncation_by_time_and_by_position(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        for number in range(3):
            async with namespace.writer(f"clicks#{number}") as writer:
                _, last = await writer.append_many([b"a", b"b", b"c"])
        begins = await namespace.truncate_partitions("clicks", {2: last})
        assert begins == {2: last}
        assert values(await read_all(namespace, "clicks#2")) == [b"c"]
        await namespace.truncate_partitions("clicks", FromTime(namespace.client.now_ms() + 10_000))
        for name in await namespace.partitions("clicks"):
            assert (await namespace.info(name)).records == 0
        with pytest.raises(InvalidArgument, match="partitions 0 to 2"):
            await namespace.truncate_partitions("clicks", {3: last})


async def test_one_partition_that_fails_does_not_stop_others_from_being_truncated(
    tmp_path: Path,
) -> None:
    async with with_clicks(tmp_path) as namespace:
        async with namespace.writer("clicks#0") as writer:
            _, last = await writer.append_many([b"a", b"b"])
        with pytest.raises(PartitionsFailed, match="clicks#1") as caught:
            await namespace.truncate_partitions("clicks", {0: last, 1: Position(9, 0, 0)})
        assert list(caught.value.errors) == [1]
        assert (await namespace.info("clicks#0")).records == 1


async def test_deleting_removes_all_partitions_and_the_name_is_free(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        async with namespace.writer("clicks#1") as writer:
            await writer.append(b"old")
        await namespace.delete_stream("clicks")
        with pytest.raises(NoSuchStream):
            await namespace.partitions("clicks")
        with pytest.raises(NoSuchStream):
            await namespace.delete_stream("clicks")
        await namespace.create_stream("clicks", partitions=2)
        assert values(await read_all(namespace, "clicks#1", EARLIEST)) == []
        await namespace.delete_stream("clicks")
        await namespace.create_stream("clicks")
        assert await namespace.partitions("clicks") == ["clicks"]


async def test_one_partition_alone_is_not_deleted(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        with pytest.raises(InvalidArgument):
            await namespace.delete_stream("clicks#1")


async def test_an_interrupted_deletion_continues(tmp_path: Path) -> None:
    async with with_clicks(tmp_path) as namespace:
        store = PartitionStore(namespace.client.store)
        present, version = await store.read("demo", "clicks")
        assert present is not None
        await store.put("demo", present.deleted(17), version)
        names = await namespace.store.list_streams("demo")
        assert await orphaned_partitions(namespace.client, "demo", names) == [
            "clicks#0", "clicks#1", "clicks#2",
        ]  # fmt: skip
        with pytest.raises(NoSuchStream):
            await namespace.partitions("clicks")
        await namespace.create_stream("clicks", partitions=4)
        assert len(await namespace.partitions("clicks")) == 4
        names = await namespace.store.list_streams("demo")
        assert await orphaned_partitions(namespace.client, "demo", names) == []
