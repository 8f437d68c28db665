"""A sink commits to a stream that has an active writer: the writer continues by itself."""

from __future__ import annotations

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.core.copies import CopyVerdict
from ledger.errors import LedgerFenced
from stream import HandedOver, Janitor, Namespace, SequenceMismatch, StreamWriter
from stream.core.entry.records import Record
from stream.core.metadata.streams import SegmentEnd
from stream.core.position import EARLIEST, Position
from stream.core.takeover import Takeover
from stream.sinks import commit as sink_commit
from stream.sinks.sinks import commit_batch
from stream.takeover import StreamLedgers
from stream.writing.segment_owner import SegmentOwner
from tests.effort import seeds
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger


async def commit(namespace: Namespace, *values: bytes, stream: str = "s") -> None:
    ledger = await write_ledger(namespace.client, stream, [[value] for value in values])
    await commit_batch(namespace.client, [ledger])


async def read_all(namespace: Namespace, stream: str = "s") -> list[Record]:
    async with namespace.reader(stream, start=EARLIEST) as reader:
        records = [record async for batch in reader.read_to_end() for record in batch.records()]
    assert [record.sequence for record in records] == list(range(len(records)))
    times = [record.append_time_ms for record in records]
    assert times == sorted(times)
    return records


def test_a_writer_continues_behind_each_batch() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            async with namespace.writer("s", create=True) as writer:
                epoch = writer.epoch
                assert await writer.append(b"1") == Position(1, 0, 0)
                await commit(namespace, b"a", b"b")
                await commit(namespace, b"c")
                ticket = writer.append_nowait(b"2")
                assert await ticket.wait() == Position(4, 0, 0)
                assert ticket.sequence == 4
                await commit(namespace, b"d")
                assert await writer.append(b"3") == Position(6, 0, 0)
                assert writer.next_sequence == 7
                await commit(namespace, b"e")
            stream = await namespace.stream_metadata("s")
            assert (stream.epoch, stream.interrupted) == (epoch, None)
            found = [record.value for record in await read_all(namespace)]
            assert found == [b"1", b"a", b"b", b"c", b"2", b"d", b"3", b"e"]

    simulate(scenario)


def test_an_idle_writer_whose_segment_is_empty_continues() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await commit(namespace, b"a")
            stream = await namespace.stream_metadata("s")
            assert stream.garbage
            assert stream.interrupted is not None
            assert await writer.append(b"1") == Position(3, 0, 0)

    simulate(scenario)


@pytest.mark.parametrize("is_empty", [True, False])
def test_the_fence_of_an_idle_writer_stays_until_it_has_continued(is_empty: bool) -> None:
    """A bookie that has forgotten a deleted ledger accepts adds to it, and they would be lost."""

    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster, trash_ms=0) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            if not is_empty:
                await writer.append(b"0")
            await commit(namespace, b"a")
            await namespace.truncate("s", Position(2, 1, 0))
            interrupted = (await namespace.stream_metadata("s")).interrupted
            assert interrupted is not None
            await Janitor(namespace.client, "n", orphan_age_ms=0).sweep()
            assert interrupted.ledger_id in await namespace.client.list_ledgers()
            assert await writer.append(b"1") == Position(3, 0, 0)
            await Janitor(namespace.client, "n", orphan_age_ms=0).sweep()
            assert interrupted.ledger_id not in await namespace.client.list_ledgers()

    simulate(scenario)


def test_a_slow_commit_gets_past_a_busy_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit to many streams takes long from the first fence to the change: writers must not
    begin new segments in between forever."""

    class Slow(StreamLedgers):
        async def recovered_end(self, ledger_id: int, first_sequence: int) -> SegmentEnd:
            end = await super().recovered_end(ledger_id, first_sequence)
            await trio.sleep(3)
            return end

    async def scenario(cluster: SimCluster) -> None:
        monkeypatch.setattr(sink_commit, "StreamLedgers", Slow)
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
            trio.open_nursery() as nursery,
        ):

            async def append() -> None:
                while True:
                    await writer.append(b"own")
                    await trio.sleep(0.1)

            nursery.start_soon(append)
            with trio.fail_after(60):
                await commit(namespace, b"a")
            nursery.cancel_scope.cancel()

    simulate(scenario)


@pytest.mark.parametrize("seed", seeds(ci=1, night=30))
def test_records_in_flight_follow_the_batch(seed: int) -> None:
    """There are many records, small entries, and a commit every few milliseconds."""

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, batch_bytes=64) as namespace:
            await namespace.create_stream("s")
            chance = namespace.client.rng
            confirmed: dict[bytes, Position] = {}

            async def append(writer: StreamWriter, task: int) -> None:
                for number in range(300):
                    value = b"%d/%d" % (task, number)
                    confirmed[value] = await writer.append(value, event_time_ms=number)

            async with namespace.writer("s") as writer, trio.open_nursery() as nursery:
                for task in range(3):
                    nursery.start_soon(append, writer, task)
                for number in range(10):
                    await commit(namespace, b"k%d" % number)
                    await trio.sleep(chance.random() * 0.02)
            records = await read_all(namespace)
            of_sink = [r.value for r in records if r.value.startswith(b"k")]
            assert of_sink == [b"k%d" % number for number in range(10)]
            assert len(records) == 910
            places = {record.value: record.position for record in records}
            assert {value: places[value] for value in confirmed} == confirmed
            for task in range(3):
                own = [r.value for r in records if r.value.startswith(b"%d/" % task)]
                assert own == [b"%d/%d" % (task, number) for number in range(300)]

    simulate(scenario, seed)


def test_a_conditional_append_fails_if_a_batch_was_committed_before_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await writer.append(b"0", expected_sequence=0)
            await commit(namespace, b"a")
            with pytest.raises(SequenceMismatch, match="expected to append record 1") as caught:
                await writer.append(b"x", expected_sequence=1)
            assert caught.value.next_sequence == 2
            await writer.append(b"2", expected_sequence=2)
            await commit(namespace, b"b")
            # In a mixture only the records that cannot have their sequence are refused.
            plain = writer.append_nowait(b"4")
            refused = writer.append_nowait(b"x", expected_sequence=4)
            later = writer.append_nowait(b"5")
            with pytest.raises(SequenceMismatch):
                await refused.wait()
            await plain.wait()
            await later.wait()
            assert (plain.sequence, later.sequence) == (4, 5)
            await writer.flush()
            assert [r.value for r in await read_all(namespace)] == [
                b"0", b"a", b"2", b"b", b"4", b"5",
            ]  # fmt: skip

    simulate(scenario)


def test_flush_reports_a_refused_record_that_nothing_waited_for() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            block = namespace.writer("s", create=True)
            writer = await block.__aenter__()
            await commit(namespace, b"a")
            writer.append_nowait(b"x", expected_sequence=0)
            with pytest.raises(SequenceMismatch):
                await writer.flush()
            await writer.flush()
            await commit(namespace, b"b")
            writer.append_nowait(b"3")
            writer.append_nowait(b"x", expected_sequence=2)
            with pytest.raises(SequenceMismatch):
                await block.__aexit__(None, None, None)
            stream = await namespace.stream_metadata("s")
            assert (stream.open_segment, stream.interrupted) == (None, None)
            assert [r.value for r in await read_all(namespace)] == [b"a", b"b", b"3"]

    simulate(scenario)


def test_a_producer_loses_and_repeats_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, batch_bytes=1) as namespace:
            async with namespace.writer("s", create=True) as writer:
                producer = await writer.producer("p")
                for number in range(20):
                    ticket = producer.append_nowait(b"%d" % number, number)
                    if number % 7 == 3:
                        await commit(namespace, b"k")
                    assert ticket is not None
                    await producer.append(b"%d" % number, number)
            stream = await namespace.stream_metadata("s")
            assert stream.producers["p"].last_sequence == 19
            found = [r.value for r in await read_all(namespace) if r.value != b"k"]
            assert found == [b"%d" % number for number in range(20)]

    simulate(scenario)


def test_a_receipt_has_the_final_sequence_of_its_record() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await commit(namespace, b"a", b"b")
            receipt = await writer.append(b"1", receipt=True)
            assert (receipt.sequence, receipt.position) == (2, Position(3, 0, 0))
            records = await read_all(namespace)
            assert records[2].append_time_ms == receipt.append_time_ms
            await commit(namespace, b"b")
            assert (await namespace.verify("s", receipt=receipt)).verdict is CopyVerdict.WHOLE

    simulate(scenario)


def test_a_commit_does_not_end_a_handover() -> None:
    """The writer that was interrupted still has records: they must not become unknown."""

    async def scenario(cluster: SimCluster) -> None:
        async with (
            sim_namespace(cluster) as namespace,
            namespace.writer("s", create=True) as writer,
        ):
            await commit(namespace, b"a")
            ticket = writer.append_nowait(b"1")
            async with namespace.writer("s", hand_over_s=10) as other:
                await ticket.wait()
                await other.append(b"2")
            with pytest.raises(HandedOver):
                await writer.append(b"x")
            assert [r.value for r in await read_all(namespace)] == [b"a", b"1", b"2"]

    simulate(scenario)


@pytest.mark.parametrize("seed", seeds(ci=1, night=24))
def test_a_commit_at_the_moment_of_a_roll(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, batch_bytes=1, roll_bytes=1 << 16) as namespace:
            await namespace.create_stream("s")
            run = SegmentOwner._run_takeover
            is_rolling = trio.Event()

            async def slowly(own: SegmentOwner, machine: Takeover, **rest: object) -> object:
                is_rolling.set()
                if seed % 2:
                    await trio.sleep(seed * 0.005)
                return await run(own, machine, **rest)  # type: ignore[arg-type]

            async with namespace.writer("s") as writer, trio.open_nursery() as nursery:
                monkeypatch.setattr(SegmentOwner, "_run_takeover", slowly)

                async def append() -> None:
                    for number in range(200):
                        await writer.append(b"%d" % number + bytes(4000))

                nursery.start_soon(append)
                for _ in range(6):
                    is_rolling = trio.Event()
                    with trio.move_on_after(1):
                        await is_rolling.wait()
                    await commit(namespace, b"k")
            values = [r.value for r in await read_all(namespace)]
            assert values.count(b"k") == 6
            own = [value.rstrip(b"\0") for value in values if value != b"k"]
            assert own == [b"%d" % number for number in range(200)]

    simulate(scenario, seed)


def test_a_writer_that_was_taken_over_does_not_continue() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster) as namespace:
            block = namespace.writer("s", create=True)
            old = await block.__aenter__()
            await old.append(b"1")
            await commit(namespace, b"a")
            async with namespace.writer("s") as new:
                await new.append(b"2")
                with pytest.raises(LedgerFenced):
                    await old.append(b"x")
                await commit(namespace, b"b")
                await new.append(b"3")
            with pytest.raises(LedgerFenced):
                await block.__aexit__(None, None, None)
            assert [r.value for r in await read_all(namespace)] == [b"1", b"a", b"2", b"b", b"3"]

    simulate(scenario)
