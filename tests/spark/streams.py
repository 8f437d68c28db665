"""Streams for Spark tests, written and read by ordinary clients, never through Spark.

Names are full, as everywhere in the connector: "tests/numbers-3".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stream.blocking import EARLIEST, Janitor, LedgerClient, Namespace, Position, StreamWriter
from stream.blocking import create_namespace as create_namespace
from stream.retention.janitor import SweepReport

NAMESPACE = "tests"


@dataclass(frozen=True, slots=True)
class Row:
    """A record, copied out of the buffers of its batch."""

    position: Position
    sequence: int
    value: bytes
    key: bytes | None
    event_time_ms: int | None
    headers: tuple[tuple[str, bytes], ...]


class Streams:
    """The streams of one cluster.

    Args:
        client: of the cluster; the caller keeps it open.
        cluster: its URI, as for Spark's option `cluster`.
    """

    def __init__(self, client: LedgerClient, cluster: str) -> None:
        self.client = client
        self.cluster = cluster
        self._numbers = itertools.count(1)
        self._namespaces: dict[str, Namespace] = {}

    def namespace(self, name: str = NAMESPACE) -> Namespace:
        """Returns a namespace, which is created on the first call."""
        if name not in self._namespaces:
            self._namespaces[name] = Namespace(self.client, name)
            self._namespaces[name].ensure()
        return self._namespaces[name]

    def name(self, word: str = "stream", namespace: str = NAMESPACE) -> str:
        """Returns a full name that is not in use."""
        return f"{namespace}/{word}-{next(self._numbers)}"

    def create(
        self, word: str = "stream", *, partitions: int | None = None, namespace: str = NAMESPACE
    ) -> str:
        """Creates a new, empty stream; returns its name."""
        return self.make(self.name(word, namespace), partitions=partitions)

    def make(self, name: str, *, partitions: int | None = None) -> str:
        """Creates an empty stream with this name."""
        self.of(name).ensure_stream(local(name), partitions=partitions)
        return name

    def of(self, name: str) -> Namespace:
        """The namespace of a full name."""
        return self.namespace(name.partition("/")[0])

    @contextmanager
    def writer(self, name: str) -> Iterator[StreamWriter]:
        with self.of(name).writer(local(name)) as writer:
            yield writer

    def append(
        self,
        name: str,
        values: Iterable[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        event_times: Sequence[int | None] | None = None,
    ) -> None:
        """Appends one segment; returns when it is durable and sealed."""
        with self.writer(name) as writer:
            writer.append_many(list(values), keys, event_times)

    def written(self, values: Iterable[bytes], *, segments: int = 1, word: str = "stream") -> str:
        """Makes a stream with these values, in sealed segments of about the same length."""
        name, all_values = self.create(word), list(values)
        step = max(1, -(-len(all_values) // segments))
        for begin in range(0, len(all_values), step):
            self.append(name, all_values[begin : begin + step])
        return name

    def rows(self, name: str) -> list[Row]:
        """Returns all records of a stream, in order."""
        with self.of(name).reader(local(name), start=EARLIEST) as reader:
            return [
                Row(
                    record.position,
                    record.sequence,
                    bytes(record.value),
                    None if record.key is None else bytes(record.key),
                    record.event_time_ms,
                    tuple((header, bytes(value)) for header, value in record.headers),
                )
                for batch in reader.read_to_end()
                for record in batch.records()
            ]

    def values(self, name: str) -> list[bytes]:
        return [row.value for row in self.rows(name)]

    def sweep(self, name: str = NAMESPACE, *, orphan_age_ms: int = 0) -> SweepReport:
        """Runs the janitor in a namespace."""
        age_ms = orphan_age_ms
        return Janitor(self.client, name, orphan_age_ms=age_ms, sink_orphan_age_ms=age_ms).sweep()


def local(name: str) -> str:
    """Returns a stream's name within its namespace."""
    return name.partition("/")[2]


@contextmanager
def connected(cluster: str, credentials: Path | None = None) -> Iterator[Streams]:
    """The streams of the cluster at this URI."""
    with LedgerClient.connect(cluster, credentials=credentials) as client:
        yield Streams(client, cluster)
