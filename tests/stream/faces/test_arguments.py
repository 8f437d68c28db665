"""What Python programs give: mappings, datetimes, iterators, texts for durations and sizes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from bookie.testing import InProcessCluster
from ledger.errors import InvalidArgument
from ledgerstream.blocking import FromTime, Namespace

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MOMENT_MS = 1_767_323_045_000


def test_records_take_mappings_datetimes_and_iterators(
    ledgerstream_cluster: InProcessCluster,
) -> None:
    threads: list[str] = []

    def values() -> Iterator[bytes]:
        for n in range(3):
            threads.append(threading.current_thread().name)
            yield b"%d" % n

    with Namespace.connect(ledgerstream_cluster.uri, "n", create=True) as namespace:
        with namespace.writer("s", create=True) as writer:
            writer.append(b"one", event_time_ms=MOMENT, headers={"a": b"1"})
            writer.append_nowait(b"two", event_time_ms=MOMENT, headers={"b": b"2"}).wait()
            writer.append_many(values(), event_times=[MOMENT, None, 7])
            producer = writer.producer("p")
            producer.append(b"five", 0, event_time_ms=MOMENT, headers={"c": b"3"})
            producer.append_many(iter([b"six"]), 1, headers=[[("g", b"7")]])
        assert set(threads) == {threading.current_thread().name}
        namespace.create_stream("p", partitions=2)
        with namespace.partitioned_writer("p") as partitioned:
            partitioned.append(b"x", event_time_ms=MOMENT, headers={"d": b"4"})
            partitioned.append_many(
                iter([b"y", b"z"]), iter([b"k", b"l"]), headers=iter([{"e": b"5"}, {"f": b"6"}])
            )
        several = [r for n in range(2) for r in namespace.read_last(f"p#{n}", 9)]
        assert {record.value: record.headers for record in several} == {
            b"x": (("d", b"4"),), b"y": (("e", b"5"),), b"z": (("f", b"6"),),
        }  # fmt: skip
        records = namespace.read_last("s", 99)
        assert [record.event_time_ms for record in records] == [
            MOMENT_MS, MOMENT_MS, MOMENT_MS, None, 7, MOMENT_MS, None,
        ]  # fmt: skip
        assert [tuple(record.headers) for record in records[:2]] == [
            (("a", b"1"),), (("b", b"2"),),
        ]  # fmt: skip
        assert records[-1].headers == (("g", b"7"),)
        with namespace.reader(
            "s", start=FromTime(datetime.now(UTC) - timedelta(hours=1))
        ) as reader:
            assert next(reader).value == b"one"


def test_policies_take_texts_and_timedeltas(ledgerstream_cluster: InProcessCluster) -> None:
    with Namespace.connect(ledgerstream_cluster.uri, "n", create=True) as namespace:
        policy = namespace.set_policy(retention_ms="7d", roll_bytes="64MiB", trash_ms="1h")
        assert (policy.retention_ms, policy.roll_bytes) == (604_800_000, 64 << 20)
        policy = namespace.set_policy(retention_ms=timedelta(days=8), retention_bytes="5GB")
        assert (policy.retention_ms, policy.retention_bytes) == (691_200_000, 5_000_000_000)
        with pytest.raises(InvalidArgument, match="retention_ms: duration '7days': write 7d"):
            namespace.set_policy(retention_ms="7days")
