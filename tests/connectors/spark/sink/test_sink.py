"""The driver's side of the sink, without Spark: messages, repeats, and what `abort` may delete."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import ArrayType, StringType, StructType

from connectors.spark.client.client_cache import cached_cluster
from connectors.spark.options.options import WriteOptions
from connectors.spark.sink.sink import LedgerstreamStreamWriter, LedgerstreamWriter, TaskCommit
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from stream.errors import CommitOutOfOrder
from stream.store.sinks import forget_sink, reset_sink
from tests.spark.streams import Streams

_SCHEMA = StructType().add("value", "binary")


def _query(streams: Streams, **options: str) -> LedgerstreamStreamWriter:
    given = {"cluster": streams.cluster, **options}
    writer = LedgerstreamStreamWriter(
        WriteOptions.parse(given, {}, is_streaming=True), _SCHEMA, False
    )
    # As Spark does to send it to a task, and to the process that commits.
    return pickle.loads(pickle.dumps(writer))  # type: ignore[no-any-return]


def _written(writer: Any, value: bytes, **named: Any) -> TaskCommit:
    """Returns the message of a task that has written one row."""
    commit = writer.write(iter([pa.record_batch({"value": pa.array([value])})]))
    return pickle.loads(pickle.dumps(replace(commit, **named)))  # type: ignore[no-any-return]


async def _list(client: LedgerClient) -> list[int]:
    return await client.list_ledgers()


def _ledgers(streams: Streams) -> list[int]:
    return cached_cluster(streams.cluster).run(_list)


def _ids(commit: TaskCommit) -> set[int]:
    return {each.ledger.ledger_id for each in commit.ledgers}


def test_messages_are_committed_in_the_order_of_partitions(streams: Streams) -> None:
    name = streams.create()
    writer = _query(streams, stream=name)
    commits = [
        _written(writer, b"%d" % n, partition=n, query_id=name.replace("/", "-"), batch_id=0)
        for n in range(3)
    ]
    writer.commit([commits[2], commits[0], commits[1]], 0)
    assert streams.values(name) == [b"0", b"1", b"2"]


class _Foreign(WriterCommitMessage):
    """A message of another program."""


def test_a_message_that_is_missing_or_unknown_or_there_twice_is_refused(streams: Streams) -> None:
    """It may hold rows."""
    name = streams.create()
    named: dict[str, Any] = {"query_id": name.replace("/", "-"), "batch_id": 0}
    writer = _query(streams, stream=name)
    one, two = (_written(writer, b"%d" % n, partition=n, **named) for n in range(2))
    incomplete: list[list[WriterCommitMessage | None]] = [[one, None], [_Foreign(), one], [None]]
    for wrong in incomplete:
        with pytest.raises(InvalidArgument, match=r"of the \d messages .*missing or unknown.*Cure"):
            writer.commit(wrong, 0)
    with pytest.raises(InvalidArgument, match="partition 1 has more than one message"):
        writer.commit([one, two, two], 0)
    given = {"cluster": streams.cluster, "stream": name}
    options = WriteOptions.parse(given, {}, is_streaming=False)
    batch_writer = LedgerstreamWriter(options, _SCHEMA, False)
    with pytest.raises(InvalidArgument, match="missing or unknown"):
        batch_writer.commit([_written(batch_writer, b"0"), None])
    assert streams.values(name) == []
    writer.commit([one, two], 0)
    assert streams.values(name) == [b"0", b"1"]


def test_the_query_is_the_sink_if_no_other_is_named(streams: Streams) -> None:
    name = streams.create()
    query = f"query-of-{name.replace('/', '-')}"
    writer = _query(streams, stream=name)
    writer.commit([_written(writer, b"begin", query_id=query, batch_id=0)], 0)
    for value in (b"first", b"again"):
        writer.commit([_written(writer, value, query_id=query, batch_id=1)], 1)
    assert streams.values(name) == [b"begin", b"first"]
    with pytest.raises(CommitOutOfOrder):
        writer.commit([_written(writer, b"old", query_id=query, batch_id=0)], 0)
    assert streams.values(name) == [b"begin", b"first"]


def test_a_batch_without_messages_is_nothing_or_counts(streams: Streams) -> None:
    name = streams.create()
    _query(streams, stream=name).commit([], 3)
    named = _query(streams, stream=name, sinkId=f"named-{name.replace('/', '-')}")
    named.commit([], 3)
    with pytest.raises(CommitOutOfOrder):
        named.commit([], 2)


def test_abort_after_a_successful_commit_deletes_nothing(streams: Streams) -> None:
    name = streams.create()
    writer = _query(streams, stream=name, smallResultBytes="0")
    messages = [_written(writer, b"kept", query_id=name.replace("/", "-"), batch_id=0)]
    writer.commit(messages, 0)
    writer.abort(messages, 0)
    assert streams.values(name) == [b"kept"]
    assert _ids(messages[0]) <= set(_ledgers(streams))


def test_abort_deletes_ledgers_that_are_in_no_stream(streams: Streams) -> None:
    name = streams.create()
    writer = _query(streams, stream=name, smallResultBytes="0")
    message = _written(writer, b"gone", query_id=name.replace("/", "-"), batch_id=0)
    writer.abort([None, message], 0)
    assert not _ids(message) & set(_ledgers(streams))
    writer.abort([None, message], 0)
    writer.abort([None, None], 1)
    assert streams.values(name) == []


def test_a_batch_write_that_is_aborted_leaves_nothing(streams: Streams) -> None:
    name = streams.create()
    given = {"cluster": streams.cluster, "stream": name, "smallResultBytes": "0"}
    options = WriteOptions.parse(given, {}, is_streaming=False)
    writer = LedgerstreamWriter(options, _SCHEMA, False)
    message = _written(writer, b"gone")
    writer.abort([message, None])
    assert not _ids(message) & set(_ledgers(streams))
    message = _written(writer, b"there")
    writer.commit([message])
    writer.commit([message])
    writer.abort([message])
    assert streams.values(name) == [b"there"]


def test_messages_that_do_not_belong_together_are_refused(streams: Streams) -> None:
    name = streams.create()
    writer = _query(streams, stream=name)
    one = _written(writer, b"v", query_id="one-query", batch_id=1)
    with pytest.raises(InvalidArgument, match="messages of the batches"):
        writer.commit([one], 2)
    with pytest.raises(InvalidArgument, match="queries"):
        writer.commit([one, replace(one, query_id="another-query")], 1)
    with pytest.raises(InvalidArgument, match="sinkId"):
        writer.commit([replace(one, query_id=None, batch_id=None)], 1)
    assert streams.values(name) == []


@pytest.mark.parametrize(
    ("schema", "options", "expected"),
    [
        (StructType().add("value", "integer"), {}, "binary or string"),
        (
            StructType().add("value", "string").add("event_time", "timestamp_ntz"),
            {},
            "not a point in time",
        ),
        (
            StructType().add("value", "string").add("headers", ArrayType(StringType())),
            {},
            "map_entries",
        ),
        (StructType().add("value", "string").add("partition", "string"), {}, "AS INT"),
        (StructType().add("value", "string").add("value", "string"), {}, "twice"),
        (StructType().add("value", "string"), {"stream": ""}, "no target stream"),
        (StructType().add("value", "string"), {"sortWithinBatch": "key"}, "not written"),
    ],
)
def test_frames_that_cannot_be_written_are_refused_before_any_task(
    schema: StructType, options: dict[str, str], expected: str
) -> None:
    chosen = {"cluster": "sqlite:///nowhere.db", "stream": "tests/s", **options}
    given = {name: text for name, text in chosen.items() if text}
    with pytest.raises(InvalidArgument, match=expected):
        LedgerstreamStreamWriter(WriteOptions.parse(given, {}, is_streaming=True), schema, False)


def test_one_name_for_two_writes_of_a_version_is_refused(streams: Streams) -> None:
    """Otherwise the second write would be treated as a repeat of the first, and silently lost."""
    names = [streams.create(), streams.create()]
    application = names[0].replace("/", "-")
    for name in names:
        given = {"cluster": streams.cluster, "stream": name, "txnVersion": "0"}
        given["txnAppId"] = application
        options = WriteOptions.parse(given, {}, is_streaming=False)
        writer = LedgerstreamWriter(options, _SCHEMA, False)
        if name == names[0]:
            writer.commit([_written(writer, b"v")])
            writer.commit([_written(writer, b"v")])
            continue
        with pytest.raises(CommitOutOfOrder, match=f"of a write to {names[0]}; this one is of"):
            writer.commit([_written(writer, b"v")])
    assert [streams.values(name) for name in names] == [[b"v"], []]


def test_a_new_query_does_not_repeat_the_first_batch_of_another(streams: Streams) -> None:
    name = streams.create()
    writer = _query(streams, stream=name, sinkId=name.replace("/", "-"))
    for _ in range(2):
        writer.commit([_written(writer, b"v", query_id="one-query", batch_id=0)], 0)
    with pytest.raises(CommitOutOfOrder, match="of query one-query; this one is of query another"):
        writer.commit([_written(writer, b"w", query_id="another-query", batch_id=0)], 0)
    assert streams.values(name) == [b"v"]


@pytest.mark.parametrize("batch_id", [0, 1, 5])
def test_a_second_query_is_refused_at_its_first_batch(streams: Streams, batch_id: int) -> None:
    name = streams.create()
    sink = name.replace("/", "-")
    first = _query(
        streams, stream=name, sinkId=sink, queryName="first", checkpointLocation="/cp/first"
    )
    first.commit([_written(first, b"0", query_id="one", run_id="r1", batch_id=0)], 0)
    second = _query(
        streams, stream=name, sinkId=sink, checkpointLocation="/cp/second", smallResultBytes="0"
    )
    message = _written(second, b"lost", query_id="two", run_id="r2", batch_id=batch_id)
    with pytest.raises(CommitOutOfOrder) as caught:
        second.commit([message], batch_id)
    shown = str(caught.value)
    assert f"sink {sink!r}" in shown
    assert "query one (name first, run r1, checkpoint /cp/first)" in shown
    assert "query two (run r2, checkpoint /cp/second)" in shown
    second.abort([message], batch_id)
    assert not _ids(message) & set(_ledgers(streams))
    # The first one continues, in the same run and after a restart.
    first.commit([_written(first, b"1", query_id="one", run_id="r1", batch_id=1)], 1)
    for value in (b"again", b"2"):
        number = 1 if value == b"again" else 2
        first.commit([_written(first, value, query_id="one", run_id="r3", batch_id=number)], number)
    assert streams.values(name) == [b"0", b"1", b"2"]


def test_writes_of_two_queries_need_two_names(streams: Streams) -> None:
    """In foreachBatch, if Spark names the query; a write outside has no query."""
    name = streams.create()
    given = {"cluster": streams.cluster, "stream": name, "txnAppId": name.replace("/", "-")}

    def write(value: bytes, version: int, query_id: str | None) -> None:
        options = WriteOptions.parse({**given, "txnVersion": str(version)}, {}, is_streaming=False)
        writer = LedgerstreamWriter(options, _SCHEMA, False)
        writer.commit([_written(writer, value, query_id=query_id, run_id="r")])

    write(b"0", 0, "one")
    for version in (0, 5):
        with pytest.raises(CommitOutOfOrder, match=r"query one.*query two"):
            write(b"lost", version, "two")
    write(b"3", 3, "one")
    write(b"4", 4, None)
    with pytest.raises(CommitOutOfOrder, match=r"query one.*query two"):
        write(b"lost", 5, "two")
    assert streams.values(name) == [b"0", b"3", b"4"]


def test_a_query_does_not_write_into_a_stream_that_was_made_again(streams: Streams) -> None:
    name = streams.create()
    query = f"query-of-{name.replace('/', '-')}"
    writer = _query(streams, stream=name)
    for number in (0, 1):
        writer.commit([_written(writer, b"old", query_id=query, batch_id=number)], number)
    streams.of(name).delete_stream(name.partition("/")[2])
    again = _query(streams, stream=name, createStreams="true")
    with pytest.raises(CommitOutOfOrder, match=f"stream {name} was deleted and created again"):
        again.commit([_written(again, b"2", query_id=query, batch_id=2)], 2)
    assert streams.values(name) == []
    cached_cluster(streams.cluster).run(_reset, query, 1)
    for _ in range(2):
        again.commit([_written(again, b"2", query_id=query, batch_id=2)], 2)
    assert streams.values(name) == [b"2"]


async def _reset(client: LedgerClient, sink_id: str, batch_id: int) -> None:
    await reset_sink(client.store, sink_id, batch_id, client.now_ms())


async def _forget(client: LedgerClient, sink_id: str) -> None:
    await forget_sink(client.store, sink_id)


def test_a_query_does_not_pass_over_batches_that_the_sink_does_not_know(streams: Streams) -> None:
    name = streams.create()
    query = f"query-of-{name.replace('/', '-')}"
    writer = _query(streams, stream=name)

    def commit(number: int) -> None:
        writer.commit([_written(writer, b"%d" % number, query_id=query, batch_id=number)], number)

    for number in (0, 1):
        commit(number)
    with pytest.raises(CommitOutOfOrder, match="nothing is known of the batches 2 to 3"):
        commit(4)
    cached_cluster(streams.cluster).run(_forget, query)
    with pytest.raises(CommitOutOfOrder, match="nothing is known of its batches 0 to 3"):
        commit(4)
    cached_cluster(streams.cluster).run(_reset, query, 3)
    commit(4)
    assert streams.values(name) == [b"0", b"1", b"4"]
