"""Partitions of a stream, read anywhere and in any order, have each of its records once."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.spark.client.client_cache import ClusterClient, cached_cluster
from connectors.spark.client.lazy_store import LazyStore
from connectors.spark.core.cluster_access import ClusterAccess
from connectors.spark.core.filters import NO_BOUNDS, Bounds, BoundSpan
from connectors.spark.options.options import ReadOptions
from connectors.spark.schema import COLUMNS, arrow_schema, spark_schema
from connectors.spark.source.batch_reader import _plan
from connectors.spark.source.input_partitions import EntryRange, LedgerPartition, read_partition
from ledger.client import LedgerClient
from ledger.core import metadata_format
from ledger.errors import MetadataUnavailable, NoSuchEntry, NoSuchLedger, Unauthorized
from ledger.options import ClientOptions
from stream.blocking import Namespace, Position
from stream.core.entry import records
from stream.core.entry.compression import inflate
from stream.core.position import Truncated
from stream.errors import RecordFormatError
from stream.store.streams import StreamStore
from tests.system.cluster import StandaloneCluster

RECORDS = 3000
SCHEMA = arrow_schema(spark_schema(("segment", "entry", "slot", "sequence", "key", "value")))


def value_of(number: int) -> bytes:
    return b"%06d" % number


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("pieces") / "cluster", 3, ())
    cluster.start()
    with Namespace.connect(cluster.uri, "demo") as namespace:
        namespace.ensure(ensemble_size=3, write_quorum=2, ack_quorum=2, batch_bytes=900)
        for part in range(3):  # three segments, the last of them left open below
            with namespace.writer("numbers", create=True) as writer:
                first = part * RECORDS // 3
                writer.append_many(
                    [value_of(first + i) for i in range(RECORDS // 3)],
                    keys=[b"%d" % (i % 7) for i in range(RECORDS // 3)],
                    event_times=[1000 * (first + i) for i in range(RECORDS // 3)],
                )
    yield cluster
    cached_cluster(cluster.uri).disconnect()
    cluster.end()


def pieces_of(
    cluster: StandaloneCluster, bounds: Bounds = NO_BOUNDS, **options: str
) -> list[LedgerPartition]:
    given = {"cluster": cluster.uri, "stream": "demo/numbers", **options}
    parsed = ReadOptions.parse(given, {}, is_streaming=False)
    return cached_cluster(cluster.uri).run(_plan, parsed, bounds)


def rows_of(partitions: list[LedgerPartition], schema: pa.Schema = SCHEMA) -> list[dict[str, Any]]:
    # As Spark does, partitions are pickled.
    copies = [pickle.loads(pickle.dumps(partition)) for partition in partitions]
    return [row for partition in copies for batch in read_partition(partition, schema)
            for row in batch.to_pylist()]  # fmt: skip


@pytest.mark.parametrize("tasks", ["1", "2", "7", "40"])
@pytest.mark.parametrize("rows", ["5", "100000"])
def test_partitions_have_each_record_once(
    cluster: StandaloneCluster, tasks: str, rows: str
) -> None:
    partitions = pieces_of(cluster, minTasks=tasks, rowsPerBatch=rows)
    assert len(partitions) == int(tasks)
    found = rows_of(partitions)
    assert [row["value"] for row in found] == [value_of(number) for number in range(RECORDS)]
    assert [row["sequence"] for row in found] == list(range(RECORDS))
    assert [row["key"] for row in found] == [
        b"%d" % (n % (RECORDS // 3) % 7) for n in range(RECORDS)
    ]
    index = [Position(row["segment"], row["entry"], row["slot"]) for row in found]
    assert index == sorted(set(index))
    # Again, in reverse order: a repeated or late task is harmless.
    again = [row for partition in reversed(partitions) for row in rows_of([partition])]
    assert sorted(again, key=lambda row: row["sequence"]) == found


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        ("sequence=17", "sequence=2111", range(17, 2111)),
        ("sequence=999", "sequence=1001", range(999, 1001)),
        ("2:0:0", "3:0:0", range(1000, 2000)),
        ("earliest", "latest", range(RECORDS)),
        ("sequence=5", "sequence=5", range(0)),
    ],
)
def test_positions_are_exact(
    cluster: StandaloneCluster, start: str, end: str, wanted: range
) -> None:
    partitions = pieces_of(cluster, startingPosition=start, endingPosition=end, minTasks="3")
    assert [row["sequence"] for row in rows_of(partitions)] == list(wanted)


def test_bounds_exclude_entries_that_cannot_match(cluster: StandaloneCluster) -> None:
    bounds = Bounds(sequence=BoundSpan(1490, 1509))
    assert [row["sequence"] for row in rows_of(pieces_of(cluster, bounds))] == [*range(1490, 1510)]
    bounds = Bounds(event_ms=BoundSpan(2_500_000, 2_500_500), has_event_time=True)
    partitions = pieces_of(cluster, bounds)
    assert [each.segment for partition in partitions for each in partition.ranges] == [3]
    sequences = [row["sequence"] for row in rows_of(partitions)]
    assert 2500 in sequences
    assert len(sequences) < 200, "entries without a matching time are left out"
    assert pieces_of(cluster, Bounds(streams=frozenset({"demo/other"}))) == []
    assert pieces_of(cluster, Bounds(append_ms=BoundSpan(high=5))) == []


@contextmanager
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the entries that are decompressed, and of how many each column is built."""
    counts = Counter[str]()
    column = records.RecordBatch.arrow_column

    def counted_inflate(*args: Any) -> Any:
        counts["entries"] += 1
        return inflate(*args)

    def counted_column(batch: records.RecordBatch, name: str, kind: Any = None) -> Any:
        counts[name] += 1
        return column(batch, name, kind)

    with monkeypatch.context() as patch:
        patch.setattr(records, "inflate", counted_inflate)
        patch.setattr(records.RecordBatch, "arrow_column", counted_column)
        yield counts


def test_what_is_not_read_is_not_decoded(
    cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(columns: tuple[str, ...], bounds: Bounds = NO_BOUNDS) -> tuple[int, Counter[str]]:
        partitions = pieces_of(cluster, bounds, minTasks="3")
        with decoded(monkeypatch) as counts:
            rows = rows_of(partitions, arrow_schema(spark_schema(columns)))
        return len(rows), counts

    rows, whole = read(COLUMNS)
    entries = whole["entries"]
    assert (rows, entries > 20) == (RECORDS, True)
    assert whole == Counter(entries=entries, value=entries, key=entries,
                            event_time_ms=entries, headers=entries)  # fmt: skip
    assert read(("value",)) == (RECORDS, Counter(entries=entries, value=entries))
    assert read(("key", "sequence")) == (RECORDS, Counter(entries=entries, key=entries))
    # What is in the headers of entries needs nothing else of them.
    headers = ("stream", "partition", "segment", "entry", "slot", "sequence", "append_time")
    assert read(headers) == (RECORDS, Counter())
    # Entries that a filter excludes are not decompressed, and no others.
    some = Bounds(event_ms=BoundSpan(2_500_000, 2_500_500), has_event_time=True)
    rows, counts = read(("value",), some)
    assert 0 < rows < 200
    assert counts["entries"] == counts["value"] < entries / 5
    assert read(headers, some) == (rows, Counter())


async def _store_of(client: LedgerClient) -> LazyStore:
    assert isinstance(client.store, LazyStore)
    return client.store


def test_reading_needs_no_metadata_store(cluster: StandaloneCluster) -> None:
    partitions = pieces_of(cluster)
    here: ClusterClient = cached_cluster(cluster.uri)
    here.disconnect()  # as in another process
    assert len(rows_of(partitions)) == RECORDS
    assert not here.run(_store_of).is_opened


async def _password(client: LedgerClient, ledger_id: int) -> bytes:
    return (await client.ledger_metadata(ledger_id)).password


def test_a_partition_has_no_password_that_reading_does_not_need(cluster: StandaloneCluster) -> None:
    (partition,) = pieces_of(cluster)
    for each in partition.ranges:
        password = cached_cluster(cluster.uri).run(_password, each.ledger_id)
        assert len(password) >= 16
        assert password not in pickle.dumps(partition)


@pytest.mark.parametrize("has_secret", [True, False])
def test_entries_whose_digest_needs_a_password_are_read(
    cluster: StandaloneCluster, tmp_path: Path, has_secret: bool
) -> None:
    secret = tmp_path / "cluster.secret"
    secret.write_text("0123456789abcdef" * 4 + "\n")
    secret.chmod(0o600)
    file = str(secret) if has_secret else ""
    name = f"hmac-{has_secret}".lower()
    options = ClientOptions(cluster_secret_file=file)
    with Namespace.connect(cluster.uri, name, options=options) as namespace:
        namespace.ensure(digest_type="HMAC")
        with namespace.writer("signed", create=True) as writer:
            writer.append(b"signed")
    given = {"cluster": cluster.uri, "stream": f"{name}/signed"}
    given |= {"clusterSecretFile": file} if has_secret else {}
    parsed = ReadOptions.parse(given, {}, is_streaming=False)
    (partition,) = cached_cluster(parsed.cluster).run(_plan, parsed, NO_BOUNDS)
    (row,) = rows_of([partition])
    assert row["value"] == b"signed"
    (each,) = partition.ranges
    password = cached_cluster(parsed.cluster).run(_password, each.ledger_id)
    assert (password in pickle.dumps(partition)) is not has_secret  # it is derived by the task
    assert repr(password)[2:-1] not in repr(partition)
    if has_secret:
        stranger = replace(partition, cluster=ClusterAccess(cluster.uri))
        with pytest.raises(Unauthorized, match="cluster_secret_file"):
            rows_of([stranger])
    cached_cluster(parsed.cluster).disconnect()


def test_a_dropped_reader_leaves_nothing_behind(cluster: StandaloneCluster) -> None:
    (partition,) = pieces_of(cluster, rowsPerBatch="10")
    rows = read_partition(partition, SCHEMA)
    assert next(rows).num_rows == 10
    rows.close()  # type: ignore[attr-defined]
    assert len(rows_of([partition])) == RECORDS


def without_ledger(partition: LedgerPartition) -> LedgerPartition:
    """Returns the partition with a ledger that does not exist, nor ever did."""
    (each,) = partition.ranges
    metadata = metadata_format.decode(each.ledger_id, each.metadata)
    nobodys = metadata_format.encode(replace(metadata, ledger_id=999_999))
    lost = replace(each, ledger_id=999_999, made_on=999_999, metadata=nobodys)
    return replace(partition, ranges=(lost,))


def test_deleted_entries_are_an_error_or_skipped(
    cluster: StandaloneCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Namespace.connect(cluster.uri, "demo") as namespace:
        with namespace.writer("gone", create=True) as writer:
            writer.append(b"x")
        (partition,) = pieces_of(cluster, stream="demo/gone")
        lost = without_ledger(partition)
        with pytest.raises((NoSuchEntry, NoSuchLedger)):
            rows_of([lost])
        namespace.truncate("gone", Position(1, 1, 0))
        with pytest.raises(Truncated, match="demo/gone"):
            rows_of([lost])
        both = replace(lost, ranges=lost.ranges + partition.ranges, is_loss_error=False)
        assert [row["value"] for row in rows_of([both])] == [b"x"]
    assert "are not read" in caplog.text


def test_deleted_entries_are_reported_without_a_metadata_store(
    cluster: StandaloneCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: Any) -> Any:
        raise MetadataUnavailable("the store is away")

    with Namespace.connect(cluster.uri, "demo") as namespace:
        with namespace.writer("unexplained", create=True) as writer:
            writer.append(b"x")
        (partition,) = pieces_of(cluster, stream="demo/unexplained")
        monkeypatch.setattr(StreamStore, "read_stream", unavailable)
        with pytest.raises((NoSuchEntry, NoSuchLedger)):
            rows_of([without_ledger(partition)])


def test_a_damaged_entry_is_a_clear_error(cluster: StandaloneCluster) -> None:
    with Namespace.connect(cluster.uri, "demo") as namespace:
        with namespace.writer("damaged", create=True) as writer:
            writer.append(b"x")
        (partition,) = pieces_of(cluster, stream="demo/damaged")

    async def foreign(client: LedgerClient) -> EntryRange:
        async with client.create_ledger() as writer:
            await writer.append(b"not of a stream at all")
        metadata = await client.ledger_metadata(writer.ledger_id)
        return replace(
            partition.ranges[0],
            ledger_id=writer.ledger_id,
            metadata=metadata_format.encode(metadata),
        )

    damaged = replace(partition, ranges=(cached_cluster(cluster.uri).run(foreign),))
    with pytest.raises(RecordFormatError, match=r"entry 0 of segment 1 of stream 'demo/damaged'"):
        rows_of([damaged])
