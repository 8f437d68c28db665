"""Results that tasks return instead of ledgers: their bounds, their damage, and the commit."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
import trio

from bookie.testing import SimCluster, simulate
from connectors.spark.options.options import WriteOptions
from connectors.spark.sink import ledger_output, result_ledgers, task_ledgers
from connectors.spark.sink.routing import Target, TargetStream
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.task_results import (
    DRIVER_BYTES,
    SmallResult,
    bytes_of_task,
    check_results,
)
from connectors.spark.sink.task_writer import TaskWriter
from ledger.errors import DigestMismatch, InvalidArgument, NoSuchCluster
from ledger.writing.writer import LedgerWriter
from stream import CommitOutOfOrder, Namespace
from stream.errors import CompressionUnavailable
from stream.sinks import commit as sink_commit
from stream.sinks.sinks import SinkLedger
from stream.store.sinks import find_sink
from tests.connectors.spark.sink.result_batches import (
    POLICY,
    RUN,
    Calls,
    check_all_closed,
    driver_of,
    one_row_each,
    values_of,
)
from tests.sim.commits.results import OPTIONS, commit, small_result
from tests.stream.sinks.sink_ledgers import write_ledger

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
    for other in (replace(sound, target=Target("n", "t")), replace(sound, partition=5)):
        with pytest.raises(DigestMismatch):
            check_results([other], 1 << 20)


def test_a_result_that_is_too_large_is_an_error_with_both_sizes() -> None:
    results = [small_result(POLICY, name, [[bytes(600)]], partition=3) for name in ("s", "t")]
    check_results(results[:1], 1000)
    with pytest.raises(InvalidArgument, match=r"partition 3 returned 1,\d+ .* may return 1,000 "):
        check_results(results, 1000)


def test_a_damaged_result_leaves_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            sound = small_result(POLICY, "s", [[b"x"]])
            with pytest.raises(DigestMismatch):
                await commit(client, [replace(sound, checksum=0)], "k", 0)
            assert await client.list_ledgers() == []
            assert await find_sink(client.store, "k") is None

    simulate(scenario)


# The commit


class _CountedCalls:
    """Counts the function calls of this thread in its block: what a processor does, for a test that
    must not depend on the speed of one."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _CountedCalls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _frame: object, event: str, _arg: object) -> None:
        self.count += event in ("call", "c_call")


def test_a_micro_batch_of_200_tasks_costs_three_metadata_operations_and_one_segment() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            calls = Calls(cluster, "driver")
            costs: dict[int, list[int]] = {2: [], 200: []}
            for batch in range(8):
                tasks = 200 if batch % 2 else 2
                results = one_row_each(tasks, batch)
                with _CountedCalls() as counted:
                    done = await commit(client, results, "k", batch, query=RUN)
                costs[tasks].append(counted.count)
                assert [(share.segments, share.records) for share in done.streams] == [(1, tasks)]
                made = [kind for kind, _ in calls.taken()]
                if batch:
                    assert made == ["next id", "transaction", "transaction"]
            per_task = (min(costs[200]) - min(costs[2][1:])) / 198
            assert per_task <= 200, f"{per_task} calls of functions, some 20 us: {costs}"
            metadata = await Namespace(client, "n").stream_metadata("s")
            assert [segment.last_entry for segment in metadata.segments] == [0] * 8
            expected = [
                b"%d/%d" % (batch, task)
                for batch in range(8)
                for task in range(200 if batch % 2 else 2)
            ]
            assert await values_of(client) == expected
            await check_all_closed(client)

    simulate(scenario)


def test_results_between_ledgers_keep_the_order_of_tasks() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
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
            assert await values_of(client) == [b"%d" % number for number in range(6)]
            assert await values_of(client, "t") == [b"t0", b"t1"]
            await check_all_closed(client)

    simulate(scenario)


def test_a_batch_is_sorted_over_results_and_ledgers() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            options = replace(OPTIONS, sort_within_batch=("value",))
            for batch, values in enumerate(("dabc", "hgfe")):
                tasks = [
                    small_result(POLICY, "s", [[value.encode()]], partition=number)
                    for number, value in enumerate(values)
                ]
                await commit(client, tasks, "k", batch, options=options)
            assert await values_of(client) == [b"%c" % letter for letter in b"abcdefgh"]
            segments = (await Namespace(client, "n").stream_metadata("s")).segments
            assert len(segments) == len(await client.list_ledgers()) == 2

    simulate(scenario)


def test_a_large_sorted_total_rolls_and_is_not_merged() -> None:
    """Bounds of ledgers are cut, so that those of neighbours with long keys overlap."""

    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            policy = replace(POLICY, roll_bytes=1 << 16)
            values = [b"x" * 64 + b"%d" % number + bytes(50_000) for number in range(6)]
            options = replace(OPTIONS, entry_bytes=40_000, sort_within_batch=("value",))
            for batch in range(2):
                tasks = [
                    small_result(policy, "s", [[value]], partition=number)
                    for number, value in enumerate(reversed(values))
                ]
                done = await commit(client, tasks, "k", batch, options=options, query=RUN)
                assert done.streams[0].segments == 3
            assert await values_of(client) == values * 2
            assert len(await client.list_ledgers()) == 6, "no ledger was made for nothing"
            await check_all_closed(client)

    simulate(scenario)


def test_a_large_total_rolls_as_the_namespace_says() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            policy = replace(POLICY, roll_bytes=1 << 16)
            tasks = [
                small_result(policy, "s", [[bytes(50_000)]], partition=number)
                for number in range(6)
            ]
            options = replace(OPTIONS, entry_bytes=40_000)
            done = await commit(client, tasks, "k", 0, options=options)
            assert done.streams[0].segments == 3
            assert await values_of(client) == [bytes(50_000)] * 6
            await check_all_closed(client)

    simulate(scenario)


def test_a_committed_batch_is_recognised_and_its_new_ledger_deleted() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            for batch in range(3):
                await commit(client, one_row_each(3, batch), "k", batch, query=RUN)
            before = await client.list_ledgers()
            async with cluster.client("restarted") as other:
                again = replace(RUN, run_id="r2")
                done = await commit(other, one_row_each(3, 2), "k", 2, query=again)
                assert done.is_repeat
                await commit(other, one_row_each(3, 3), "k", 3, query=again)
            # The first driver knows nothing of that.
            with pytest.raises(CommitOutOfOrder, match="both are active"):
                await commit(client, one_row_each(3, 3), "k", 3, query=RUN)
            assert len(await client.list_ledgers()) == len(before) + 1
            assert len(await values_of(client)) == 12

    simulate(scenario)


def test_a_bookie_that_fails_under_the_ledger_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            policy = replace(POLICY, ack_quorum=3)
            make, writers = task_ledgers.make_ledger, list[LedgerWriter]()
            chosen: list[tuple[str, ...]] = []

            async def make_and_kill(*args: object, **options: object) -> LedgerWriter:
                writers.append(await make(*args, **options))  # type: ignore[arg-type]
                chosen.append(writers[-1].metadata.last_fragment.bookies)
                if len(writers) == 3:
                    await cluster.kill_bookie(chosen[-1][0].partition(":")[0])
                return writers[-1]

            monkeypatch.setattr(ledger_output, "make_ledger", make_and_kill)
            calls = Calls(cluster, "driver")
            for batch in range(4):
                calls.taken()
                await commit(client, one_row_each(5, batch, policy), "k", batch, query=RUN)
                ends = [kind for kind, path in calls.taken() if "/sinks/" in path]
                if batch == 2:
                    assert ends == ["transaction"], "the first attempt, by memory, is enough"
            stored = await client.ledger_metadata(writers[2].ledger_id)
            assert chosen[2][0] not in stored.last_fragment.bookies
            assert len(await values_of(client)) == 20
            await check_all_closed(client)

    simulate(scenario, bookies=5)


def test_ledgers_whose_metadata_do_not_fit_are_closed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            names = [f"s{number}" for number in range(20)]
            for name in names:
                await Namespace(client, "n").create_stream(name)
            calls = Calls(cluster, "driver")
            limit, checked = sink_commit.TRANSACTION_BYTES_MAX, list[int]()
            nbytes_of = sink_commit._nbytes

            def note(changes: object) -> int:
                checked.append(nbytes_of(changes))  # type: ignore[arg-type]
                return checked[-1]

            monkeypatch.setattr(sink_commit, "_nbytes", note)
            for batch in range(4):
                results = [small_result(POLICY, name, [[b"%d" % batch]]) for name in names]
                done = await commit(client, results, "k", batch, query=RUN)
                assert {share.records for share in done.streams} == {1}
                ends = [path for kind, path in calls.taken() if kind == "transaction"]
                assert len(ends) == 21, "one to make each ledger, and one to commit"
                if batch in (0, 2):  # 1 is committed by memory, 2 by reading, both with less room
                    bytes_max = checked[-1] - 100 if batch == 0 else limit
                    monkeypatch.setattr(sink_commit, "TRANSACTION_BYTES_MAX", bytes_max)
            for name in names:
                assert await values_of(client, name) == [b"0", b"1", b"2", b"3"]
            await check_all_closed(client)

    simulate(scenario)


def test_a_driver_without_the_library_of_a_compression_says_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with driver_of(cluster) as client:
            policy = replace(POLICY, compression="lz4")
            with pytest.raises(
                CompressionUnavailable, match=r"the driver cannot .*lz4.*smallResultBytes=0"
            ):
                await commit(client, one_row_each(2, 0, policy), "k", 0, query=RUN)
            assert await client.list_ledgers() == []

    monkeypatch.setitem(sys.modules, "lz4.block", None)
    simulate(scenario)


async def test_the_loop_turns_while_many_results_are_decoded() -> None:
    results = one_row_each(1000, 0)
    turns, is_over = 0, False

    async def turn() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        rows = [part async for part in result_ledgers._decoded(results)]
        is_over = True
    assert sum(part.num_rows for part in rows) == 1000
    assert turns >= 10
