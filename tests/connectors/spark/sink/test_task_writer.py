"""Tasks of a sink, without Spark: after the commit every row is in its stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.spark.client.client_cache import ClusterClient, cached_cluster
from connectors.spark.options.options import WriteOptions
from connectors.spark.sink import sort_merge, task_writer
from connectors.spark.sink.batch_commit import commit_results, discard_task_ledgers
from connectors.spark.sink.routing import Target, look_up
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.task_ledgers import TaskLedgers
from connectors.spark.sink.task_results import SmallResult, TaskLedger
from connectors.spark.sink.task_writer import TaskWriter
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerClosed, LedgerFenced, NoSuchLedger
from stream.core.entry.encoder import encode
from stream.core.routing import partition_of
from stream.errors import CommitOutOfOrder, NoSuchNamespace, NoSuchStream
from stream.sinks.sinks import BatchCommit
from stream.takeover import SINK_TAG, STREAM_TAG
from tests.effort import scaled
from tests.spark.streams import Streams

_ON_CLUSTER = settings(
    max_examples=scaled(ci=8, night=120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def cluster_client(streams: Streams) -> ClusterClient:
    return cached_cluster(streams.cluster)


def _options(streams: Streams, **options: str) -> WriteOptions:
    given = {"cluster": streams.cluster, **options}
    return WriteOptions.parse(given, {}, is_streaming="txnAppId" not in given)


def _write(
    streams: Streams,
    tasks: Sequence[Sequence[pa.RecordBatch]],
    batch: tuple[str, int] | None = None,
    **options: str,
) -> BatchCommit:
    """Writes a whole batch: each task, then the commit of the driver."""
    chosen, cluster = _options(streams, **options), cached_cluster(streams.cluster)
    sink_id, batch_id = batch or (None, None)
    found: list[TaskLedger | SmallResult] = []
    for number, batches in enumerate(tasks):
        writer = TaskWriter(chosen, SinkBatch(sink_id, batch_id, str(number)), number)
        found += writer.write(batches)
    return cluster.run(commit_results, found, chosen, sink_id=sink_id, batch_id=batch_id)


async def _ledgers(client: LedgerClient) -> list[int]:
    return await client.list_ledgers()


def _batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(items) for name, items in columns.items()})


_ROWS = st.lists(
    st.tuples(
        st.binary(max_size=30),
        st.none() | st.sampled_from([b"a", b"b", b"c", b"dd"]),
        st.none() | st.integers(-5, 5),
    ),
    max_size=60,
)


def _table(rows: list[tuple[bytes, bytes | None, int | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.binary()),
            pa.array([row[1] for row in rows], pa.binary()),
            pa.array([row[2] for row in rows], pa.int64()),
        ],
        ["value", "key", "event_time"],
    )


def _triples(streams: Streams, name: str) -> list[tuple[bytes, bytes | None, int | None]]:
    return [(row.value, row.key, row.event_time_ms) for row in streams.rows(name)]


@_ON_CLUSTER
@given(tasks=st.lists(st.lists(_ROWS, max_size=3), min_size=1, max_size=3), data=st.data())
def test_a_stream_gets_all_rows_in_the_order_of_tasks(
    streams: Streams, tasks: list[list[Any]], data: st.DataObject
) -> None:
    name = streams.create()
    size = data.draw(st.sampled_from(["100", "1k", "1m"]))
    small = data.draw(st.sampled_from(["0", "300", "1m"]))
    _write(
        streams, [list(map(_table, batches)) for batches in tasks],
        stream=name, entryBytes=size, smallResultBytes=small,
    )  # fmt: skip
    assert _triples(streams, name) == [row for task in tasks for rows in task for row in rows]
    assert [row.sequence for row in streams.rows(name)] == list(
        range(sum(len(rows) for task in tasks for rows in task))
    )


@_ON_CLUSTER
@given(batches=st.lists(_ROWS, max_size=3), partitions=st.integers(1, 5))
def test_keys_are_routed_as_by_an_ordinary_writer(
    streams: Streams, batches: list[Any], partitions: int
) -> None:
    name = streams.create(partitions=partitions)
    _write(streams, [list(map(_table, batches))], stream=name)
    rows = [row for batch in batches for row in batch]
    found = {number: _triples(streams, f"{name}#{number}") for number in range(partitions)}
    for key in {row[1] for row in rows if row[1] is not None}:
        own = [row for row in rows if row[1] == key]
        assert [r for r in found[partition_of(key, partitions)] if r[1] == key] == own
    assert sorted(map(str, rows)) == sorted(str(row) for its in found.values() for row in its)


def test_rows_without_a_key_take_turns_batch_by_batch(streams: Streams) -> None:
    name = streams.create(partitions=3)
    tasks = [[_batch(value=[b"%d-%d" % (task, n)]) for n in range(3)] for task in range(2)]
    _write(streams, tasks, stream=name)
    assert [streams.values(f"{name}#{number}") for number in range(3)] == [
        [b"0-0", b"1-2"], [b"0-1", b"1-0"], [b"0-2", b"1-1"],
    ]  # fmt: skip


def test_columns_name_stream_and_partition(streams: Streams) -> None:
    plain, parted, other = streams.create(), streams.create(partitions=4), streams.create()
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"%d" % n for n in range(8)]),
            pa.array([plain, parted, None, parted, other.partition("/")[2], plain, parted, None]),
            pa.array([0, 3, None, 1, 0, None, 3, 0], pa.int32()),
        ],
        ["value", "stream", "partition"],
    )
    _write(streams, [[batch]], stream=other, namespace="tests")
    assert streams.values(plain) == [b"0", b"5"]
    assert streams.values(f"{parted}#3") == [b"1", b"6"]
    assert streams.values(f"{parted}#1") == [b"3"]
    assert streams.values(other) == [b"2", b"4", b"7"]


@_ON_CLUSTER
@given(
    tasks=st.lists(st.lists(_ROWS, max_size=4), min_size=1, max_size=5),
    columns=st.sampled_from(["event_time", "key", "key,event_time", "value", "event_time,value"]),
    small=st.sampled_from(["0", "300", "1m"]),
)
def test_a_batch_is_sorted_over_all_tasks(
    streams: Streams,
    monkeypatch: pytest.MonkeyPatch,
    tasks: list[list[Any]],
    columns: str,
    small: str,
) -> None:
    monkeypatch.setattr(task_writer, "GATHERED_BYTES_MAX", 400)  # so that tasks have several runs
    monkeypatch.setattr(sort_merge, "MERGED_AT_ONCE_MAX", 2)
    name = streams.create()
    before = set(cached_cluster(streams.cluster).run(_ledgers))
    _write(
        streams, [list(map(_table, batches)) for batches in tasks],
        stream=name, sortWithinBatch=columns, entryBytes="200", smallResultBytes=small,
    )  # fmt: skip
    place = {"value": 0, "key": 1, "event_time": 2}

    def order(row: tuple[Any, ...]) -> list[Any]:
        picked = [row[place[column]] for column in columns.split(",")]
        return [(item is not None, item) for item in picked]

    rows = [row for task in tasks for batch in task for row in batch]
    # Equal rows keep the order of tasks, and their order in a task.
    assert _triples(streams, name) == sorted(rows, key=order)
    segments = streams.of(name).stream_metadata(name.partition("/")[2]).segments
    left = set(cached_cluster(streams.cluster).run(_ledgers)) - before
    assert left == {segment.ledger_id for segment in segments}


def test_sorted_tasks_that_follow_each_other_are_not_merged(streams: Streams) -> None:
    name = streams.create()
    tasks = [[_batch(value=[b"x"] * 4, event_time=[t, t + 1, t + 2, t + 3])] for t in (40, 10, 13)]
    before = set(cached_cluster(streams.cluster).run(_ledgers))
    done = _write(streams, tasks, stream=name, sortWithinBatch="event_time", smallResultBytes="0")
    assert [row.event_time_ms for row in streams.rows(name)] == [
        10, 11, 12, 13, 13, 14, 15, 16, 40, 41, 42, 43,
    ]  # fmt: skip
    assert done.streams[0].segments == 3
    assert len(set(cached_cluster(streams.cluster).run(_ledgers)) - before) == 3


def test_a_batch_is_committed_once_and_leaves_nothing_behind(streams: Streams) -> None:
    name = streams.create()
    tasks = [[_batch(value=[b"once"])]]
    sink = name.replace("/", "-")
    assert not _write(streams, tasks, (sink, 4), stream=name).is_repeat
    before = cached_cluster(streams.cluster).run(_ledgers)
    assert _write(streams, tasks, (sink, 4), stream=name).is_repeat
    assert streams.values(name) == [b"once"]
    assert cached_cluster(streams.cluster).run(_ledgers) == before
    with pytest.raises(CommitOutOfOrder):
        _write(streams, tasks, (sink, 3), stream=name)


def test_a_batch_without_rows_counts(streams: Streams) -> None:
    name = streams.create()
    sink = name.replace("/", "-")
    _write(streams, [[]], (sink, 7), stream=name)
    with pytest.raises(CommitOutOfOrder, match="committed batch 7"):
        _write(streams, [[]], (sink, 6), stream=name)


def test_ledgers_have_tags(streams: Streams, cluster_client: ClusterClient) -> None:
    name = streams.create()
    options = _options(streams, stream=name, smallResultBytes="0")
    writer = TaskWriter(options, SinkBatch("a-sink", 3, "task 9"))
    (made,) = writer.write([_batch(value=[b"v"])])
    assert isinstance(made, TaskLedger)

    async def custom(client: LedgerClient) -> dict[str, bytes]:
        return dict((await client.ledger_metadata(made.ledger.ledger_id)).custom)

    tags = cluster_client.run(custom)
    assert tags[STREAM_TAG] == name.encode()
    assert b"a-sink" in tags[SINK_TAG]
    assert b"task 9" in tags[SINK_TAG]
    assert streams.values(name) == []
    count = cluster_client.run(discard_task_ledgers, [made], sink_id="a-sink", batch_id=3)
    assert count == 1
    assert made.ledger.ledger_id not in cluster_client.run(_ledgers)


def test_large_batches_roll_into_several_segments(streams: Streams) -> None:
    namespace = streams.namespace("rolling")
    namespace.set_policy(roll_bytes=1 << 16)
    name = streams.name(namespace="rolling")
    namespace.ensure_stream(name.partition("/")[2])
    values = [b"%06d" % n + bytes(994) for n in range(300)]
    done = _write(streams, [[_batch(value=values)]], stream=name, entryBytes="10k")
    assert streams.values(name) == values
    assert done.streams[0].segments == 5


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_entries_are_compressed_as_the_namespace_requires(
    streams: Streams, compression: str
) -> None:
    space = f"packed-{compression}"
    streams.namespace(space).set_policy(compression=compression)
    name = streams.name(namespace=space)
    streams.namespace(space).ensure_stream(name.partition("/")[2])
    done = _write(streams, [[_batch(value=[bytes(1000)] * 100)]], stream=name)
    assert streams.values(name) == [bytes(1000)] * 100
    assert (done.streams[0].nbytes < 10_000) == (compression != "none")


def test_a_record_over_the_limit_is_named_and_leaves_no_ledgers(
    streams: Streams, cluster_client: ClusterClient
) -> None:
    namespace = streams.namespace("small")
    namespace.set_policy(record_bytes_max=50)
    namespace.ensure_stream("records")
    before = cluster_client.run(_ledgers)
    batches = [_batch(value=[b"x" * 40] * 3), _batch(value=[b"y", b"z" * 51])]
    with pytest.raises(InvalidArgument, match=r"row 4 .* of 51 bytes.*record_bytes_max .* is 50"):
        _write(streams, [batches], stream="small/records", entryBytes="100")
    assert cluster_client.run(_ledgers) == before


def test_too_many_targets_are_refused(streams: Streams, cluster_client: ClusterClient) -> None:
    name = streams.create(partitions=4)
    before = cluster_client.run(_ledgers)
    batch = _batch(value=[b"v"] * 4, partition=[0, 1, 2, 3])
    with pytest.raises(InvalidArgument, match=r"more than 3 .*maxLedgersPerTask"):
        _write(streams, [[batch]], stream=name, maxLedgersPerTask="3")
    assert cluster_client.run(_ledgers) == before


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"partition": [4]}, InvalidArgument, "partition 4 .* valid: 0 to 3"),
        ({"partition": [-1]}, InvalidArgument, "partition -1"),
        ({"stream": ["tests/no-such"]}, NoSuchStream, "createStreams"),
        ({"stream": ["nowhere/x"]}, NoSuchNamespace, "nowhere"),
        ({"stream": ["bare"]}, InvalidArgument, "option namespace"),
        ({"stream": ["tests/a b"]}, InvalidArgument, "a b"),
    ],
)
def test_missing_targets_are_named(
    streams: Streams, columns: dict[str, list[Any]], error: type[Exception], message: str
) -> None:
    name = streams.create(partitions=4)
    with pytest.raises(error, match=message):
        _write(streams, [[_batch(value=[b"v"], **columns)]], stream=name)


def test_rows_must_name_a_stream_without_a_default(streams: Streams) -> None:
    with pytest.raises(InvalidArgument, match="names no stream"):
        _write(streams, [[_batch(value=[b"v", b"w"], stream=[streams.create(), None])]])


def test_streams_are_created_with_the_batch(
    streams: Streams, cluster_client: ClusterClient
) -> None:
    name, later = streams.name(), streams.name()
    batch = _batch(value=[b"a", b"b"], stream=[name, later])
    _write(streams, [[batch]], createStreams="true")
    assert streams.values(name) == [b"a"]
    assert streams.values(later) == [b"b"]
    target = Target(*name.split("/"))
    assert not cluster_client.run(look_up, target, may_be_missing=True).is_missing


def test_a_task_is_throttled_to_the_rate_of_the_namespace(streams: Streams) -> None:
    namespace = streams.namespace("slow")
    namespace.set_policy(bytes_per_s_max=100_000)
    namespace.ensure_stream("records")
    begun_s = time.monotonic()
    batches = [_batch(value=[bytes(1000)] * 10)] * 15
    _write(streams, [batches], stream="slow/records", entryBytes="10k")
    # The allowance of an idle writer, one second's worth, is available at once.
    assert time.monotonic() - begun_s >= 0.3


def test_a_task_is_throttled_until_its_bytes_are_durable(
    streams: Streams, cluster_client: ClusterClient
) -> None:
    name = streams.create()
    target = Target(*name.split("/"))
    policy = cluster_client.run(look_up, target, may_be_missing=False).policy
    with TaskLedgers(cluster_client, SinkBatch(), unconfirmed_bytes_max=1000) as ledgers:
        for number in range(50):
            ledgers.append(target, policy, encode([bytes(600)], first_sequence=number), 1)
            assert ledgers.unconfirmed_bytes <= 1000
        (made,) = ledgers.close()
        assert ledgers.unconfirmed_bytes == 0
    assert made.end.records == 50


def test_a_task_gets_the_error_of_its_ledger(
    streams: Streams, cluster_client: ClusterClient
) -> None:
    name = streams.create()
    batch = _batch(value=[bytes(1000)] * 2000)
    fenced = threading.Event()

    async def fence(client: LedgerClient, known: list[int]) -> None:
        for ledger_id in await client.list_ledgers():
            if ledger_id not in known:
                fenced.set()
                with suppress(NoSuchLedger):  # the task may abandon it in the meantime
                    await client.open_ledger(ledger_id, recover=True)

    def batches() -> Iterator[pa.RecordBatch]:
        known = cluster_client.run(_ledgers)
        for _ in range(200):
            yield batch
            if not fenced.is_set():
                cluster_client.run(fence, known)

    with pytest.raises((LedgerFenced, LedgerClosed)):
        _write(streams, [batches()], stream=name)  # type: ignore[list-item]
    assert fenced.is_set()
    assert streams.values(name) == []
