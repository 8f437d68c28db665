"""Results that tasks return instead of ledgers: their bounds, their damage, and what a commit of
them costs and survives."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from bookie.testing import SimCluster, simulate
from connectors.spark.options.options import WriteOptions
from connectors.spark.sink.routing import Target, TargetStream
from connectors.spark.sink.task_results import (
    DRIVER_BYTES,
    SinkBatch,
    SmallResult,
    bytes_of_task,
    check_results,
)
from connectors.spark.sink.task_writer import TaskWriter
from ledger.client import LedgerClient
from ledger.errors import DigestMismatch, InvalidArgument, NoSuchCluster, NoSuchLedger
from ledger.metastore.restores import Restore, RestoreLog
from ledger.writing.writer import LedgerWriter
from stream import CommitOutOfOrder, Namespace
from stream.core.entry.records import Record
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.position import EARLIEST
from stream.sinks.prepared import SinkMemory
from stream.sinks.sinks import SinkLedger, SinkQuery
from stream.store.sinks import find_sink, forget_sink
from tests.sim.commits.results import OPTIONS, commit, small_result
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger

POLICY = NamespaceMetadata(name="n", created_ms=0)
RUN = SinkQuery(query_id="q", run_id="r")


def _one_row_each(tasks: int, batch: int, policy: NamespaceMetadata = POLICY) -> list[SmallResult]:
    return [
        small_result(policy, "s", [[b"%d/%d" % (batch, task)]], partition=task)
        for task in range(tasks)
    ]


async def _records(client: LedgerClient, stream: str = "s") -> list[Record]:
    async with Namespace(client, "n").reader(stream, start=EARLIEST) as reader:
        return [record async for batch in reader.read_to_end() for record in batch.records()]


async def _values(client: LedgerClient, stream: str = "s") -> list[bytes]:
    records = await _records(client, stream)
    assert [record.sequence for record in records] == list(range(len(records)))
    return [record.value for record in records]


async def _check_all_closed(client: LedgerClient) -> None:
    for ledger_id in await client.list_ledgers():
        assert (await client.ledger_metadata(ledger_id)).is_closed


class _Calls:
    """The calls of one node to the metadata store."""

    def __init__(self, cluster: SimCluster, node: str) -> None:
        self.made: list[tuple[str, str]] = []
        self._node = node
        cluster.metadata.on_call = self._note

    def _note(self, node: str, kind: str, path: str) -> None:
        if node == self._node:
            self.made.append((kind, path))

    def taken(self) -> list[tuple[str, str]]:
        made, self.made = self.made, []
        return made


@asynccontextmanager
async def _driver(cluster: SimCluster) -> AsyncIterator[LedgerClient]:
    async with sim_namespace(cluster) as namespace:
        await namespace.create_stream("s")
        await cluster.simulation.sleep(20)  # older than ledgers also by a clock that is late
        async with cluster.client("driver") as client:
            yield client


# The task


def _task(partition: int, rows: int, **options: str) -> list[object]:
    """Writes rows of some 100 bytes without a cluster."""
    given = {"cluster": "sqlite:///nowhere.db", "stream": "n/s", **options}
    known = {Target("n", "s"): TargetStream(POLICY)}
    writer = TaskWriter(
        WriteOptions.parse(given, {}, is_streaming=True),
        SinkBatch("k", 0, "t"),
        partition,
        known,
    )
    values = pa.array([b"%0100d" % number for number in range(rows)])
    return list(writer.write(iter([pa.record_batch({"value": values})])))


def test_a_small_task_makes_no_request() -> None:
    (result,) = _task(7, rows=1000)
    assert isinstance(result, SmallResult)
    assert (result.records, result.partition, result.is_new) == (1000, 7, False)
    assert 100_000 < result.nbytes < 110_000
    check_results([result], 1 << 20)
    assert _task(7, rows=0) == []


def test_a_task_returns_large_entries_without_the_room_for_their_frames() -> None:
    (result,) = _task(0, rows=9000, entryBytes="400k")
    assert isinstance(result, SmallResult)
    assert [len(entry) for entry in result.entries] == [
        pytest.approx(312_000, rel=0.05) for _ in range(3)
    ]
    check_results([result], 1 << 20)


@pytest.mark.parametrize(
    ("partition", "options"),
    [(0, {"smallResultBytes": "0"}), (0, {"smallResultBytes": "50k"}), (1000, {})],
)
def test_a_task_over_its_bound_needs_the_cluster(partition: int, options: dict[str, str]) -> None:
    with pytest.raises(NoSuchCluster):
        _task(partition, rows=1000, **options)


def test_all_tasks_together_are_bounded() -> None:
    for wanted in (1 << 20, 1 << 40):
        total = 0
        for number in range(20_000):
            total += bytes_of_task(wanted, number)
            assert total <= DRIVER_BYTES * (1 + math.log(number + 1))
    assert sum(bytes_of_task(1 << 20, number) for number in range(200)) < 91 << 20
    assert bytes_of_task(1 << 20, 199) > 160_000


# What arrives at the driver


@pytest.mark.parametrize("place", [5, 30, 70, 75, -1])
def test_a_damaged_result_is_an_error_that_names_the_task(place: int) -> None:
    sound = small_result(POLICY, "s", [[b"one", b"two"], [b"three"]], partition=4)
    entry = bytearray(sound.entries[0])
    entry[place] ^= 1
    damaged = replace(sound, entries=(bytes(entry), sound.entries[1]))
    with pytest.raises(DigestMismatch, match=r"n/s .*partition 4 .*arrived damaged.*Cure"):
        check_results([sound, damaged], 1 << 20)
    for entries in (sound.entries[:1], (b"", *sound.entries), (sound.entries[0][:-1],)):
        with pytest.raises(DigestMismatch):
            check_results([replace(sound, entries=entries)], 1 << 20)


def test_a_result_that_is_too_large_is_an_error_with_both_sizes() -> None:
    results = [small_result(POLICY, name, [[bytes(600)]], partition=3) for name in ("s", "t")]
    check_results(results[:1], 1000)
    with pytest.raises(InvalidArgument, match=r"partition 3 returned 1,\d+ .* may return 1,000 "):
        check_results(results, 1000)


def test_a_damaged_result_leaves_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            sound = small_result(POLICY, "s", [[b"x"]])
            with pytest.raises(DigestMismatch):
                await commit(client, [replace(sound, checksum=0)], "k", 0)
            assert await client.list_ledgers() == []
            assert await find_sink(client.store, "k") is None

    simulate(scenario)


# The commit


def test_a_micro_batch_of_200_tasks_costs_three_metadata_operations_and_one_segment() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            calls = _Calls(cluster, "driver")
            took_s: dict[int, list[float]] = {2: [], 200: []}
            for batch in range(8):
                tasks = 200 if batch % 2 else 2
                begun_s = cluster.simulation.now_s
                results = _one_row_each(tasks, batch)
                done = await commit(client, results, "k", batch, query=RUN)
                took_s[tasks].append(cluster.simulation.now_s - begun_s)
                assert [(share.segments, share.records) for share in done.streams] == [(1, tasks)]
                made = [kind for kind, _ in calls.taken()]
                if batch:
                    assert made == ["next id", "transaction", "transaction"]
            assert sum(took_s[200]) / 4 <= 1.5 * sum(took_s[2][1:]) / 3
            metadata = await Namespace(client, "n").stream_metadata("s")
            assert [segment.last_entry for segment in metadata.segments] == [0] * 8
            expected = [
                b"%d/%d" % (batch, task)
                for batch in range(8)
                for task in range(200 if batch % 2 else 2)
            ]
            assert await _values(client) == expected
            await _check_all_closed(client)

    simulate(scenario)


def test_results_between_ledgers_keep_the_order_of_tasks() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            await Namespace(client, "n").create_stream("t")
            tasks: list[SinkLedger | SmallResult] = [
                small_result(POLICY, "s", [[b"0"], [b"1", b"2"]]),
                small_result(POLICY, "t", [[b"t0"]]),
                small_result(POLICY, "s", [[b"3"]], partition=1),
                await write_ledger(client, "s", [[b"4"]], sink_id="k", batch_id=0),
                small_result(POLICY, "s", [[b"5"]], partition=3),
                small_result(POLICY, "t", [[b"t1"]], partition=3),
            ]
            done = await commit(client, tasks, "k", 0)
            assert {share.stream: share.segments for share in done.streams} == {"n/s": 3, "n/t": 1}
            assert await _values(client) == [b"%d" % number for number in range(6)]
            assert await _values(client, "t") == [b"t0", b"t1"]
            await _check_all_closed(client)

    simulate(scenario)


def test_a_batch_is_sorted_over_results_and_ledgers() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            options = replace(OPTIONS, sort_within_batch=("value",))
            for batch, values in enumerate(("dabc", "hgfe")):
                tasks = [
                    small_result(POLICY, "s", [[value.encode()]], partition=number)
                    for number, value in enumerate(values)
                ]
                await commit(client, tasks, "k", batch, options=options)
            assert await _values(client) == [b"%c" % letter for letter in b"abcdefgh"]
            segments = (await Namespace(client, "n").stream_metadata("s")).segments
            assert len(segments) == len(await client.list_ledgers()) == 2

    simulate(scenario)


def test_a_large_total_rolls_as_the_namespace_says() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            policy = replace(POLICY, roll_bytes=1 << 16)
            tasks = [
                small_result(policy, "s", [[bytes(50_000)]], partition=number)
                for number in range(6)
            ]
            options = replace(OPTIONS, entry_bytes=40_000)
            done = await commit(client, tasks, "k", 0, options=options)
            assert done.streams[0].segments == 3
            assert await _values(client) == [bytes(50_000)] * 6
            await _check_all_closed(client)

    simulate(scenario)


def test_a_committed_batch_is_recognised_and_its_new_ledger_deleted() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            for batch in range(3):
                await commit(client, _one_row_each(3, batch), "k", batch, query=RUN)
            before = await client.list_ledgers()
            async with cluster.client("restarted") as other:
                again = replace(RUN, run_id="r2")
                done = await commit(other, _one_row_each(3, 2), "k", 2, query=again)
                assert done.is_repeat
                await commit(other, _one_row_each(3, 3), "k", 3, query=again)
            # The first driver knows nothing of that.
            with pytest.raises(CommitOutOfOrder, match="both are active"):
                await commit(client, _one_row_each(3, 3), "k", 3, query=RUN)
            assert len(await client.list_ledgers()) == len(before) + 1
            assert len(await _values(client)) == 12

    simulate(scenario)


# What has changed since the last commit


def test_a_stream_that_others_changed_is_read_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            await commit(client, _one_row_each(1, 0), "k", 0, query=RUN)
            async with cluster.client("other") as other, Namespace(other, "n").writer("s") as w:
                await w.append(b"before")
                await commit(client, _one_row_each(1, 1), "k", 1, query=RUN)
                await w.append(b"after")
                await commit(client, _one_row_each(1, 2), "k", 2, query=RUN)
            assert await _values(client) == [b"0/0", b"before", b"1/0", b"after", b"2/0"]

    simulate(scenario)


def test_a_sink_that_was_forgotten_is_read_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            await commit(client, _one_row_each(1, 0), "k", 0, query=RUN)
            await forget_sink(client.store, "k")
            with pytest.raises(CommitOutOfOrder, match="has committed nothing here"):
                await commit(client, _one_row_each(1, 1), "k", 1, query=RUN)
            assert await _values(client) == [b"0/0"]
            assert len(await client.list_ledgers()) == 1

    simulate(scenario)


def test_nothing_is_believed_of_a_history_that_was_lost() -> None:
    """Others have brought the nodes to the same versions after the metadata were put back."""

    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            await commit(client, _one_row_each(1, 0), "k", 0, query=RUN)
            backup = cluster.metadata.tree.backup()
            await commit(client, _one_row_each(1, 1), "k", 1, query=RUN)
            cluster.metadata.tree.put_back(backup)
            async with cluster.client("other") as other:
                await RestoreLog(other.store).add(Restore(50, 60, 7, "b:1"))
                await other.ledgers.next_ledger_id(beyond=60)
                await commit(other, _one_row_each(2, 1), "k", 1, query=replace(RUN, run_id="r2"))
            with pytest.raises(CommitOutOfOrder, match="both are active"):
                await commit(client, _one_row_each(1, 1), "k", 1, query=RUN)
            await commit(client, _one_row_each(1, 2), "k", 2, query=RUN)
            records = await _records(client)
            assert [record.value for record in records] == [b"0/0", b"1/0", b"1/1", b"2/0"]
            assert records[1].sequence == 10**12  # behind the gap

    simulate(scenario)


def test_a_restore_is_noticed_with_the_next_list_of_bookies() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            for batch in range(2):
                await commit(client, _one_row_each(1, batch), "k", batch, query=RUN)
            await RestoreLog(client.store).add(Restore(50, 60, 7, "b:1"))
            await cluster.simulation.sleep(61)
            await commit(client, _one_row_each(1, 2), "k", 2, query=RUN)
            assert [record.sequence for record in await _records(client)] == [0, 1, 10**12]

    simulate(scenario)


def test_a_bookie_that_fails_under_the_ledger_is_replaced() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            for batch in range(4):
                if batch == 2:
                    await cluster.kill_bookie(cluster.bookies[0])
                await commit(client, _one_row_each(5, batch), "k", batch, query=RUN)
            assert len(await _values(client)) == 20
            await _check_all_closed(client)

    simulate(scenario, bookies=5)


def test_a_janitor_that_deletes_the_ledger_prevents_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            await commit(client, _one_row_each(1, 0), "k", 0, query=RUN)
            prepare = LedgerWriter.prepare_close

            async def deleted(self: LedgerWriter) -> object:
                prepared = await prepare(self)
                async with cluster.client("janitor") as other:
                    if self.ledger_id in await other.list_ledgers():
                        await other.delete_ledger(self.ledger_id)
                return prepared

            monkeypatch.setattr(LedgerWriter, "prepare_close", deleted)
            with pytest.raises(NoSuchLedger, match="was deleted before batch 1"):
                await commit(client, _one_row_each(1, 1), "k", 1, query=RUN)
            monkeypatch.setattr(LedgerWriter, "prepare_close", prepare)
            await commit(client, _one_row_each(1, 1), "k", 1, query=RUN)
            assert await _values(client) == [b"0/0", b"1/0"]

    simulate(scenario)


def test_memory_is_only_for_the_next_batch_of_the_same_run() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with _driver(cluster) as client:
            await commit(client, _one_row_each(1, 4), "k", 4)
            memory = SinkMemory(sink=await find_sink(client.store, "k"), client_node="/c")
            assert memory.precedes(5, None)
            assert not memory.precedes(4, None)
            assert not memory.precedes(6, None)
            assert not memory.precedes(None, None)
            assert not memory.precedes(5, RUN)
            assert not SinkMemory().precedes(0, None)

    simulate(scenario)
