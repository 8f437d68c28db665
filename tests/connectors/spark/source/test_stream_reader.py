"""The micro-batch source as Spark's engine calls it, with real processes and without Spark."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connectors.spark.client.lazy_store import LazyStore
from connectors.spark.core import idle_polling
from connectors.spark.options.options import ReadOptions
from connectors.spark.schema import read_schema
from connectors.spark.source import end_tracker
from connectors.spark.source.data_loss import DataLoss
from connectors.spark.source.end_tracker import EndTracker
from connectors.spark.source.stream_reader import LedgerstreamStreamReader
from ledger.connection.pool import BookiePool
from ledger.errors import LedgerClosed
from ledger.reading.reader import LedgerReader
from stream.errors import NoSuchStream
from tests.spark.streams import Streams, local

pytestmark = pytest.mark.system


@contextmanager
def reader_of(streams: Streams, *names: str, **others: str) -> Iterator[LedgerstreamStreamReader]:
    given = {"cluster": streams.cluster, **others}
    if names:
        given["streams"] = ",".join(names)
    given.setdefault("startingPosition", "earliest")
    options = ReadOptions.parse(given, {}, is_streaming=True)
    reader = LedgerstreamStreamReader(options, read_schema(None, options.columns))
    try:
        yield reader
    finally:
        reader.stop()


def sequence(offset: dict[str, Any], stream: str) -> int:
    found = offset["streams"].get(stream)
    return 0 if found is None else int(found["sequence"])


def test_a_sealed_record_is_found_at_once(streams: Streams) -> None:
    """As `processAllAvailable` guarantees: notifications of watches alone would be too late."""
    stream = streams.create()
    with reader_of(streams, stream) as reader:
        offset = reader.initialOffset()
        for count in range(1, 31):
            streams.append(stream, [b"%d" % count])
            offset = reader.latestOffset(offset, ReadAllAvailable())
            assert sequence(offset, stream) == count
            again = reader.latestOffset(offset, ReadAllAvailable())
            assert again == offset


def test_a_query_that_may_lose_records_restarts_without_a_purged_stream(
    streams: Streams,
) -> None:
    stream = streams.create()
    streams.append(stream, [b"1", b"2"])
    gone = f"{stream}-gone"
    begun = {"version": 1, "streams": {}}
    with (
        reader_of(streams, stream, gone) as strict,
        pytest.raises(NoSuchStream, match=gone),
    ):
        strict.latestOffset(begun, ReadAllAvailable())
    lenient = {"failOnDataLoss": "false"}
    with reader_of(streams, stream, gone, **lenient) as reader:
        assert sequence(reader.latestOffset(begun, ReadAllAvailable()), stream) == 2
    with (
        reader_of(streams, stream, gone, **lenient) as new,
        pytest.raises(NoSuchStream, match=gone),
    ):
        new.initialOffset()


def test_a_reader_without_new_records_returns_the_same_offset(streams: Streams) -> None:
    stream = streams.create()
    streams.append(stream, [b"1", b"2"])
    with reader_of(streams, stream) as reader:
        offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        assert sequence(offset, stream) == 2
        for _ in range(20):
            assert reader.latestOffset(offset, ReadAllAvailable()) is offset


def idle(
    reader: LedgerstreamStreamReader, monkeypatch: pytest.MonkeyPatch, *, may_ask: bool = False
) -> dict[str, Any]:
    """Reads what is there; returns the end. From then on only notifications end a poll."""

    async def not_asked(_: EndTracker) -> None:
        raise AssertionError("the reader has asked")

    limit = reader.getDefaultReadLimit()
    offset = reader.initialOffset()
    while (found := reader.latestOffset(offset, limit)) is not offset:
        offset = found
    if not may_ask:
        monkeypatch.setattr(EndTracker, "poll_ends", not_asked)
    monkeypatch.setattr(idle_polling, "POLLED_WITHIN_S", math.inf)
    monkeypatch.setattr(idle_polling, "WAIT_SHARE", 1e9)
    monkeypatch.setattr(idle_polling, "WAIT_S", 60.0)
    return offset


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the questions to the metadata store and to bookies; long polls are none.

    And the numbers of commits that were seen: by those of other processes too, for their sessions.
    """
    asked = Counter[str]()
    numbers: set[int | None] = set()
    with monkeypatch.context() as patch:
        for name in ("get", "children"):
            original = getattr(LazyStore, name)

            async def read(store: LazyStore, path: str, original: Any = original) -> Any:
                asked["metadata"] += 1
                return await original(store, path)

            patch.setattr(LazyStore, name, read)
        commit_number = LazyStore.commit_number

        def note(store: LazyStore) -> int | None:
            number = commit_number(store)
            numbers.add(number)
            asked["commits"] = len(numbers)
            return number

        patch.setattr(LazyStore, "commit_number", note)
        call = BookiePool.call

        async def ask(pool: BookiePool, bookie: str, request: Any, **others: Any) -> Any:
            asked["bookies"] += getattr(request, "previous_lac", None) is None
            return await call(pool, bookie, request, **others)

        patch.setattr(BookiePool, "call", ask)
        yield asked


class Followed:
    """What the trackers of this process wait for, from now on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.known = -2
        """The entry after which the last long poll waits for another."""
        self.has_listed = threading.Event()
        """Set once a tracker has found its streams after it began to watch their list."""
        wait, find = LedgerReader.wait_lac_after, EndTracker._find_streams

        async def noted(reader: LedgerReader, known: int, timeout_s: float) -> int:
            self.known = known
            return await wait(reader, known, timeout_s)

        async def found(tracker: EndTracker) -> None:
            await find(tracker)
            self.has_listed.set()

        patch.setattr(LedgerReader, "wait_lac_after", noted)
        patch.setattr(EndTracker, "_find_streams", found)

    def is_quiet(self, tracker: EndTracker, stream: str) -> bool:
        """Returns whether nothing that was appended to this open stream, the only one, and
        confirmed, will be notified any more."""
        index = tracker.streams[stream]
        last = index.end.entry - 1
        is_heard = tracker._listening.number is not None
        return is_heard and self.known == last and self.has_listed.is_set()


def test_an_idle_source_asks_nothing_that_it_knows(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sealed stream, and of one whose writer is open, in a thousand polls."""
    sealed, open_ = streams.written([b"1"]), streams.written([b"1"])
    followed = Followed(monkeypatch)
    monkeypatch.setattr(end_tracker, "END_POLL_TIMEOUT_S", math.inf)
    with streams.writer(open_) as writer, reader_of(streams, sealed, open_) as reader:
        writer.append_many([b"2"])
        limit, offset = reader.getDefaultReadLimit(), reader.initialOffset()
        while sequence(offset, sealed) + sequence(offset, open_) < 3:
            offset = reader.latestOffset(offset, limit)
        while not followed.is_quiet(reader._batches.tracker, open_):
            assert reader.latestOffset(offset, limit) is offset
        reader.latestOffset(offset, limit)
        monkeypatch.setattr(idle_polling, "WAIT_S", 0.0)
        monkeypatch.setattr(idle_polling, "ANSWER_KEPT_S", math.inf)
        with counted(monkeypatch) as asked:
            for _ in range(1000):
                assert reader.latestOffset(offset, limit) is offset
                assert reader.reportLatestOffset() is not None
                assert reader.partitions(offset, offset) == []
        assert asked["bookies"] == 0
        # The two streams after each change, such as a heartbeat of a process.
        assert asked["metadata"] <= 4 * asked["commits"]
        streams.append(sealed, [b"3"])
        assert sequence(reader.latestOffset(offset, limit), sealed) == 2


def test_a_reader_that_connects_again_finds_what_came_meanwhile(streams: Streams) -> None:
    """Spark may plan before it polls: the streams that are found then are not those of before."""
    stream = streams.written([b"1"])
    with reader_of(streams, stream) as reader:
        limit = reader.getDefaultReadLimit()
        offset = reader.latestOffset(reader.initialOffset(), limit)
        assert reader.latestOffset(offset, limit) is offset
        reader._cluster.disconnect()
        streams.append(stream, [b"2"])
        assert reader._tracking is not None
        with pytest.raises(LedgerClosed):
            reader._tracking.result()
        assert reader.partitions(offset, offset) == []
        assert sequence(reader.latestOffset(offset, limit), stream) == 2


def test_a_waiting_poll_is_ended_by_a_notification(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams.written([b"1"])
    with reader_of(streams, stream) as reader:
        offset = idle(reader, monkeypatch)
        streams.append(stream, [b"2"])
        assert sequence(reader.latestOffset(offset, ReadAllAvailable()), stream) == 2


def test_a_waiting_poll_finds_a_new_stream_of_a_pattern(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.create("found")
    with reader_of(streams, streamPattern="tests/found-*") as reader:
        offset = idle(reader, monkeypatch)
        stream = streams.written([b"1", b"2"], word="found")
        offset = reader.latestOffset(offset, ReadAllAvailable())
        assert sequence(offset, stream) == 2


def test_a_waiting_poll_ends_when_too_few_records_are_due(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams.written([b"1", b"2"])
    options = {"minRecordsPerTrigger": "10", "maxTriggerDelay": "2s"}
    with reader_of(streams, stream, **options) as reader:
        offset = idle(reader, monkeypatch, may_ask=True)
        limit = reader.getDefaultReadLimit()
        while (found := reader.latestOffset(offset, limit)) is offset:
            pass  # two checks have a pause between them
        assert sequence(found, stream) == 2


def test_a_waiting_poll_reports_a_deleted_stream(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams.written([b"1", b"2"])
    with reader_of(streams, stream, minRecordsPerTrigger="10") as reader:
        offset = idle(reader, monkeypatch)
        limit = reader.getDefaultReadLimit()
        streams.of(stream).delete_stream(local(stream))

        def poll() -> None:
            while reader.latestOffset(offset, limit) is offset:
                pass  # two checks have a pause between them

        with pytest.raises(DataLoss, match=stream):
            poll()
