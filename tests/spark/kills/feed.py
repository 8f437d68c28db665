"""The input of a pipeline, and the comparison of the output with it.

A feed continuously appends records that a seed determines, so that segments are open, rolled and
sealed while Spark reads. Outputs are compared with its list of records.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from stream.blocking import PartitionedWriter, StreamWriter
from tests.spark.streams import Streams, local

_PAUSE_S = 0.3
_FIRST_EVENT_MS = 1_700_000_000_000


class OutputMismatch(Exception):
    """The output differs from the input, or another invariant does not hold."""


@dataclass(frozen=True, slots=True)
class FedRecord:
    """A record as it must be in the output."""

    value: bytes
    key: bytes | None
    event_time_ms: int | None
    headers: tuple[tuple[str, bytes], ...]


def nbytes_of(record: FedRecord) -> int:
    """Returns the bytes of value, key, headers and event time."""
    headers = sum(len(name.encode()) + len(value) for name, value in record.headers)
    return len(record.value) + len(record.key or b"") + headers + 8


def record(origin: bytes, number: int, chance: random.Random) -> FedRecord:
    """Makes a record. Keys sort like the numbers; values have various lengths and any bytes."""
    return FedRecord(
        b"%d/" % number + chance.randbytes(chance.choice((0, 3, 40, 200))),
        origin + number.to_bytes(8, "big"),
        _FIRST_EVENT_MS + number,
        (("number", b"%d" % number), ("", b"")) if number % 7 == 0 else (),
    )


class Feed(threading.Thread):
    """Appends `at_once` records three times a second until it is stopped.

    Args:
        partitions: of the stream; None: it is not partitioned.
        origin: the prefix of keys, which must be unique among the feeds of an output.
    """

    def __init__(
        self,
        streams: Streams,
        name: str,
        seed: str,
        *,
        partitions: int | None,
        at_once: int,
        origin: bytes = b"fed",
    ) -> None:
        super().__init__(name=f"feed of {name}", daemon=True)
        self.stream = name
        self.partitions = partitions
        self.records: list[list[FedRecord]] = [[] for _ in range(partitions or 1)]
        """The records of each partition, in order."""
        self._streams = streams
        self._chance = random.Random(seed)
        self._at_once = at_once
        self._origin = origin
        self._stopping = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            with self._writer() as writer:
                while not self._stopping.wait(_PAUSE_S):
                    for _ in range(self._at_once):
                        self._append(writer)
                    writer.flush()
        except Exception as error:  # noqa: BLE001 - raised where the feed is stopped
            self._error = error

    @contextmanager
    def _writer(self) -> Iterator[StreamWriter | PartitionedWriter]:
        namespace = self._streams.of(self.stream)
        if self.partitions is None:
            with namespace.writer(local(self.stream)) as writer:
                yield writer
        else:
            with namespace.partitioned_writer(local(self.stream)) as partitioned:
                yield partitioned

    def _append(self, writer: StreamWriter | PartitionedWriter) -> None:
        number = sum(map(len, self.records))
        partition = number % len(self.records)
        fed = record(self._origin, number, self._chance)
        if isinstance(writer, PartitionedWriter):
            writer.append_nowait(
                fed.value, fed.key, fed.event_time_ms, fed.headers, partition=partition
            )
        else:
            writer.append_nowait(fed.value, fed.key, fed.event_time_ms, fed.headers)
        self.records[partition].append(fed)

    def stop(self) -> None:
        """Stops the feed; its records are durable then. Raises the error of the feed."""
        self._stopping.set()
        self.join()
        if self._error is not None:
            raise self._error

    def expect_in(self, outputs: Sequence[Sequence[FedRecord]]) -> int:
        """Compares the output of each partition with the fed records; returns their number.

        Ignores records of other origin. Raises OutputMismatch.
        """
        for partition, (output, fed) in enumerate(zip(outputs, self.records, strict=True)):
            ours = [one for one in output if one.key is None or one.key.startswith(self._origin)]
            if ours != fed:
                raise OutputMismatch(
                    f"the output of {self.stream}, partition {partition}, is not the input: "
                    f"{difference(ours, fed)}"
                )
        return sum(map(len, self.records))


def output_of(streams: Streams, name: str) -> list[FedRecord]:
    """Returns all records of a stream."""
    return [
        FedRecord(row.value, row.key, row.event_time_ms, row.headers) for row in streams.rows(name)
    ]


def difference(found: list[FedRecord], fed: list[FedRecord]) -> str:
    """Describes the first difference, and the numbers of lost and duplicate records."""
    number_of = {record.key: number for number, record in enumerate(fed)}
    numbers = [number_of.get(record.key) for record in found]
    at = next(
        (n for n, (a, b) in enumerate(zip(found, fed, strict=False)) if a != b),
        min(len(found), len(fed)),
    )
    seen = [number for number in numbers if number is not None]
    return (
        f"{len(fed)} records went in, {len(found)} came out; lost {len(fed) - len(set(seen))}, "
        f"doubled {len(seen) - len(set(seen))}, of unknown origin {numbers.count(None)}; from "
        f"record {at} on there is {numbers[at : at + 5]}"
    )
