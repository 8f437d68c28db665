"""What goes into a pipeline, and what must therefore come out of it.

A feed appends records that a seed decides, all the time, so that segments are open, rolled and
sealed while Spark reads. Its list of them is the truth that outputs are compared with.
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


class Wrong(Exception):
    """Output is not input, or something else that must hold does not."""


@dataclass(frozen=True, slots=True)
class Fed:
    """A record as it must come out."""

    value: bytes
    key: bytes | None
    event_time_ms: int | None
    headers: tuple[tuple[str, bytes], ...]


def nbytes_of(record: Fed) -> int:
    """Bytes of value, key, headers and event time."""
    headers = sum(len(name.encode()) + len(value) for name, value in record.headers)
    return len(record.value) + len(record.key or b"") + headers + 8


def record(origin: bytes, number: int, chance: random.Random) -> Fed:
    """Keys sort as the numbers do. Values are of all lengths, and of any bytes."""
    return Fed(
        b"%d/" % number + chance.randbytes(chance.choice((0, 3, 40, 200))),
        origin + number.to_bytes(8, "big"),
        _FIRST_EVENT_MS + number,
        (("number", b"%d" % number), ("", b"")) if number % 7 == 0 else (),
    )


class Feed(threading.Thread):
    """Appends `at_once` records three times a second until it is stopped.

    Args:
        partitions: of the stream; None: it is not partitioned.
        origin: what keys begin with; other feeds of the same output need others.
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
        self.records: list[list[Fed]] = [[] for _ in range(partitions or 1)]
        """Of each partition, in order."""
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
        """All is durable when it returns. Raises what went wrong."""
        self._stopping.set()
        self.join()
        if self._error is not None:
            raise self._error

    def expect_in(self, outputs: Sequence[Sequence[Fed]]) -> int:
        """Compares what came out, of each partition, with what was fed; records of other origin
        are passed over. Returns how many there were. Raises Wrong."""
        for partition, (output, fed) in enumerate(zip(outputs, self.records, strict=True)):
            ours = [one for one in output if one.key is None or one.key.startswith(self._origin)]
            if ours != fed:
                raise Wrong(
                    f"what came out of {self.stream}, partition {partition}, is not what was fed: "
                    f"{difference(ours, fed)}"
                )
        return sum(map(len, self.records))


def output_of(streams: Streams, name: str) -> list[Fed]:
    """All records of a stream."""
    return [Fed(row.value, row.key, row.event_time_ms, row.headers) for row in streams.rows(name)]


def difference(found: list[Fed], fed: list[Fed]) -> str:
    """In words, with the first place."""
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
