"""A partitioned writer on real bookies: routing, order, growth, and failures of one partition."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledger.errors import InvalidArgument, LedgerClosed
from stream import Namespace, NoSuchStream, Record, TakenOver, WriterOptions
from stream.core.routing import SLICE_RECORDS, partition_of
from stream.errors import NotPartitioned, PartitionsFailed
from stream.partitions.ticket import PartitionPosition
from stream.partitions.writer import PartitionedWriter
from stream.partitions.writers import PENDING_BYTES_MIN
from stream.store.streams import stream_path
from tests.stream.real_namespace import a_namespace
from tests.stream.whole_streams import read_all, values


def is_taken(writer: PartitionedWriter, value: bytes) -> bool:
    try:
        writer.append_nowait(value, key=b"k")
    except trio.WouldBlock:
        return False
    return True


async def all_records(namespace: Namespace, stream: str) -> dict[int, list[Record]]:
    names = await namespace.partitions(stream)
    return {number: await read_all(namespace, name) for number, name in enumerate(names)}


async def grown_to(writer: PartitionedWriter, partitions: int) -> None:
    with trio.fail_after(5):
        while writer.partitions < partitions:
            await trio.lowlevel.checkpoint()


async def test_records_of_a_key_are_in_its_partition_in_order(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        keys = [b"user-%d" % (number % 40) for number in range(1000)]
        async with namespace.partitioned_writer("clicks", create=4) as writer:
            begin = await writer.append(b"first", key=b"user-0")
            assert begin.partition == writer.partition_of(b"user-0") == partition_of(b"user-0", 4)
            sent = [b"%d" % number for number in range(1000)]
            positions = await writer.append_many(sent[:500], keys[:500])
            assert set(positions) == {0, 1, 2, 3}
            tickets = [
                writer.append_nowait(value, key)
                for value, key in zip(sent[500:], keys[500:], strict=True)
            ]
            ends = [await ticket.wait() for ticket in tickets]
            assert writer.statistics().records == 1001
        found = await all_records(namespace, "clicks")
        for number, records in found.items():
            expected = [
                int(v) for v, k in zip(sent, keys, strict=True) if partition_of(k, 4) == number
            ]
            assert [int(r.value) for r in records if r.value != b"first"] == expected
            for record in records:
                assert record.key is not None
                assert partition_of(record.key, 4) == number
        last = ends[-1]
        assert found[last.partition][-1].position <= last.position
        assert found[begin.partition][0].position == begin.position


async def test_records_without_a_key_go_to_all_partitions_in_turn(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.partitioned_writer("clicks", create=3) as writer:
            for number in range(30):
                await writer.append(b"%d" % number)
            positions = await writer.append_many(
                [b"x"] * (3 * SLICE_RECORDS), event_times=[7] * (3 * SLICE_RECORDS)
            )
            assert len(positions) == 3
        found = await all_records(namespace, "clicks")
        assert all(len(records) > SLICE_RECORDS for records in found.values())
        assert sum(map(len, found.values())) == 30 + 3 * SLICE_RECORDS


async def test_a_partition_can_be_chosen_and_must_be_there(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.partitioned_writer("clicks", create=3) as writer:
            assert (await writer.append(b"a", key=b"k", partition=1)).partition == 1
            assert list(await writer.append_many([b"b", b"c"], partition=1)) == [1]
            for impossible in (3, -1):
                with pytest.raises(InvalidArgument, match="partitions 0 to 2"):
                    await writer.append(b"d", partition=impossible)
                with pytest.raises(InvalidArgument, match="partitions 0 to 2"):
                    await writer.append_many([b"d"], partition=impossible)
        assert values(await read_all(namespace, "clicks#1")) == [b"a", b"b", b"c"]


async def test_an_invalid_record_does_not_affect_others(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.partitioned_writer("clicks", create=3) as writer:
            with pytest.raises(InvalidArgument, match="the largest is"):
                await writer.append_many([b"ok", bytes(2 << 20)], keys=[b"a", b"b"])
            with pytest.raises(InvalidArgument, match="at least one"):
                await writer.append_many([])
            await writer.append(b"kept", key=b"a")
        found = await all_records(namespace, "clicks")
        assert [r.value for records in found.values() for r in records] == [b"kept"]


async def test_only_partitions_that_get_records_are_taken_over(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.partitioned_writer("clicks", create=8) as writer:
            await writer.append(b"a", partition=5)
            assert list(writer.statistics().by_partition) == [5]
        epochs = [(await namespace.stream_metadata(f"clicks#{n}")).epoch for n in range(8)]
        assert epochs == [0, 0, 0, 0, 0, 1, 0, 0]


async def test_two_writers_with_partitions_of_their_own_do_not_interfere(
    tmp_path: Path,
) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("clicks", partitions=4)
        async with (
            namespace.partitioned_writer("clicks", own=[0, 1]) as one,
            namespace.partitioned_writer("clicks", own=[2, 3]) as other,
        ):
            for _ in range(6):
                assert (await one.append(b"one")).partition in (0, 1)
                assert (await other.append(b"other")).partition in (2, 3)
            with pytest.raises(InvalidArgument, match="0, 1"):
                await one.append(b"not ours", partition=3)
        assert (await namespace.partitioned_info("clicks")).records == 12


async def test_a_partition_that_fails_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("clicks", partitions=3)
        with pytest.raises(PartitionsFailed) as at_end:  # noqa: PT012
            async with namespace.partitioned_writer("clicks", own=[0, 1, 2]) as writer:
                await writer.append_many([b"a", b"b", b"c"], keys=[b"x", b"y", b"z"])
                async with namespace.writer("clicks#1") as thief:
                    with pytest.raises(TakenOver, match="clicks#1"):
                        await writer.append(b"lost", partition=1)
                    await thief.append(b"stolen")
                assert (await writer.append(b"d", partition=0)).partition == 0
                keys = [b"%d" % number for number in range(60)]
                with pytest.raises(PartitionsFailed, match="clicks#1") as caught:
                    await writer.append_many([b"v"] * 60, keys)
                assert isinstance(caught.value.errors[1], TakenOver)
                assert sorted(caught.value.done) == [0, 2]
                # Records without a key avoid the failed partition.
                for _ in range(6):
                    assert (await writer.append(b"e")).partition in (0, 2)
                assert list(writer.statistics().failed) == [1]
                await writer.append_many([b"e"] * (3 * SLICE_RECORDS))
        assert list(at_end.value.errors) == [1]
        for number in (0, 2):
            assert (await namespace.stream_metadata(f"clicks#{number}")).open_segment is None


async def test_a_partition_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("clicks", partitions=3)
        await namespace.client.store.delete(stream_path("demo", "clicks#1"))
        with pytest.raises(PartitionsFailed) as caught:
            async with namespace.partitioned_writer("clicks", own=[0, 1, 2]):
                pass
        assert list(caught.value.errors) == [1]
        assert isinstance(caught.value.errors[1], NoSuchStream)


async def test_a_partition_that_failed_can_be_opened_again(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.partitioned_writer("clicks", create=2) as writer:
            await writer.append(b"a", partition=1)
            async with namespace.writer("clicks#1"):
                with pytest.raises(TakenOver):
                    await writer.append(b"lost", partition=1)
            await writer.reopen(1)
            await writer.reopen(1)
            await writer.append(b"b", partition=1)
        assert values(await read_all(namespace, "clicks#1")) == [b"a", b"b"]


async def test_growth_is_noticed_and_keys_keep_their_order(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        keys = [b"user-%d" % number for number in range(50)]
        async with namespace.partitioned_writer("clicks", create=2) as writer:
            await writer.append_many([b"0"] * 50, keys)
            await namespace.grow_stream("clicks", partitions=5)
            await grown_to(writer, 5)
            await writer.append_many([b"1"] * 50, keys)
        found = await all_records(namespace, "clicks")
        moved = 0
        for key in keys:
            old, new = partition_of(key, 2), partition_of(key, 5)
            assert next(r.value for r in found[old] if r.key == key) == b"0"
            assert [r.value for r in found[new] if r.key == key][-1] == b"1"
            moved += old != new
        assert 10 < moved < 45


async def test_records_in_flight_while_the_stream_grows_are_kept_in_order(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.partitioned_writer("clicks", create=1) as writer:
            ends: dict[bytes, list[PartitionPosition]] = {}

            async def append(key: bytes) -> None:
                ends[key] = [await writer.append(b"%d" % number, key) for number in range(40)]

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(append, b"user-%d" % number)
                for partitions in (2, 3, 8):
                    await namespace.grow_stream("clicks", partitions=partitions)
                    await grown_to(writer, partitions)
        found = await all_records(namespace, "clicks")
        for key, positions in ends.items():
            read = [
                (number, record.position, int(record.value))
                for number, records in found.items()
                for record in records
                if record.key == key
            ]
            assert sorted(value for _, _, value in read) == list(range(40))
            by_value = {value: PartitionPosition(number, at) for number, at, value in read}
            assert [by_value[value] for value in range(40)] == positions
            last: dict[int, int] = {}
            for number, _, value in read:
                assert value > last.get(number, -1)
                last[number] = value


async def test_records_beyond_the_bound_are_refused_and_then_accepted(tmp_path: Path) -> None:
    async with a_namespace(tmp_path, batch_bytes=1000) as namespace:
        options = WriterOptions(pending_bytes_max=1)
        async with namespace.partitioned_writer("clicks", create=2, options=options) as writer:
            with pytest.raises(trio.WouldBlock):
                writer.append_nowait(b"no writer yet", key=b"k")
            await writer.wait_room()
            taken = 0
            while is_taken(writer, bytes(1000)):
                taken += 1
            assert taken * 1000 < 2 * PENDING_BYTES_MIN
            assert writer.statistics().bytes_pending < 2 * PENDING_BYTES_MIN
            await writer.wait_room()
            writer.append_nowait(b"last", key=b"k")
            await writer.flush()
            assert writer.statistics().records == taken + 1


async def test_a_cancelled_append_leaves_the_writer_usable(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.partitioned_writer("clicks", create=2) as writer:
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.append(b"cancelled", partition=0)
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.append_many([b"cancelled"] * 9, keys=[b"%d" % n for n in range(9)])
            await writer.append(b"kept", partition=0)
        assert values(await read_all(namespace, "clicks#0"))[-1] == b"kept"


async def test_a_closed_writer_accepts_nothing(tmp_path: Path) -> None:
    async with (
        a_namespace(tmp_path) as namespace,
        namespace.partitioned_writer("clicks", create=2) as writer,
    ):
        await writer.append(b"a", partition=0)
        await writer.close()
        await writer.close()
        for partition in (0, 1):
            with pytest.raises(LedgerClosed):
                await writer.append(b"b", partition=partition)
            with pytest.raises(LedgerClosed):
                await writer.reopen(partition)


async def test_an_error_in_the_block_is_raised_unchanged(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with namespace.partitioned_writer("clicks", create=2) as writer:
                await writer.append(b"a", partition=0)
                raise ZeroDivisionError
        assert (await namespace.stream_metadata("clicks#0")).open_segment is not None


async def test_a_plain_stream_has_a_plain_writer(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        await namespace.create_stream("plain")
        with pytest.raises(NotPartitioned):
            async with namespace.partitioned_writer("plain"):
                pass


async def test_a_writer_of_a_deleted_stream_is_notified(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        with pytest.raises(PartitionsFailed):  # noqa: PT012
            async with namespace.partitioned_writer("clicks", create=2) as writer:
                await writer.append(b"a", partition=0)
                await namespace.delete_stream("clicks")
                for partition in (0, 1):
                    with pytest.raises(Exception, match="clicks"):
                        await writer.append(b"b", partition=partition)
