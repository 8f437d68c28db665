"""Routes each row of a sink to its stream or partition; rows of one target keep their order.

Evaluates the columns `stream`, `partition` and `key`; a key is routed as by a `PartitionedWriter`.
Arrow groups the rows; Python must run only once per distinct name or key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from connectors.spark.sink.arrow_input import KEY, PARTITION, RECORD_COLUMNS, STREAM
from ledger.errors import InvalidArgument, NoSuchNode
from stream.core.names import check_name, parse_partition, partition_name
from stream.core.routing import Routes
from stream.errors import NoSuchStream

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from stream.core.metadata.namespaces import NamespaceMetadata


class Target(NamedTuple):
    """A plain stream, or one partition of a partitioned one: `stream` is "clicks#2" then."""

    namespace: str
    stream: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.stream}"


@dataclass(frozen=True, slots=True)
class TargetStream:
    """The metadata of a target. `partitions` is None for a plain stream.

    A stream that `is_missing` is created, as a plain stream, when the batch is committed.
    """

    policy: NamespaceMetadata
    partitions: int | None = None
    is_missing: bool = False


def parse_target(name: str, namespace: str | None) -> Target:
    """Parses "demo/clicks", or "clicks" with a namespace. Raises InvalidArgument."""
    found, slash, stream = name.partition("/")
    if not slash:
        if namespace is None:
            raise InvalidArgument(
                f"stream {name[:200]!r} has no namespace: write NAMESPACE/STREAM, or give the "
                "option namespace"
            )
        found, stream = namespace, name
    return Target(check_name(found, "namespace"), check_name(stream))


async def look_up(client: LedgerClient, target: Target, *, may_be_missing: bool) -> TargetStream:
    """Reads the metadata of a target.

    Raises NoSuchNamespace, NoSuchStream, MetadataUnavailable.
    """
    # A task that does not look up a target does not need them.
    from stream.core.metadata.format import decode_stream
    from stream.core.metadata.partitioned import decode_partitioned
    from stream.store.streams import StreamStore, stream_path

    policy, _ = await StreamStore(client.store).read_namespace(target.namespace)
    try:
        node = await client.store.get(stream_path(target.namespace, target.stream))
    except NoSuchNode:
        is_there = False
    else:
        partitioned = decode_partitioned(target.stream, node.data)
        if partitioned is not None and not partitioned.is_deleted:
            return TargetStream(policy, partitioned.partitions)
        is_there = partitioned is None and not decode_stream(target.stream, node.data).is_deleted
    if is_there:
        return TargetStream(policy)
    if may_be_missing and parse_partition(target.stream) is None:
        return TargetStream(policy, is_missing=True)
    cure = (
        f"create it (ledgerstream stream create {target}), or set the option createStreams to true"
    )
    partition = parse_partition(target.stream)
    if partition is not None:
        whole = f"{target.namespace}/{partition.stream}"
        cure = (
            f"name the stream itself ({whole}), and check that it has more than "
            f"{partition.partition} partitions"
        )
    raise NoSuchStream(
        f"there is no stream {target.stream!r} in namespace {target.namespace!r}. Cure: {cure}"
    )


class Router:
    """Splits rows by target. One per task.

    Args:
        default: the target of rows without a stream; None: each row must name one.
        namespace: the namespace of bare names in the column `stream`.
        describe: returns the metadata of a target.
        turn: the first partition for rows without a key; tasks begin with different ones.
    """

    def __init__(
        self,
        default: Target | None,
        namespace: str | None,
        describe: Callable[[Target], TargetStream],
        turn: int = 0,
    ) -> None:
        self._default = default
        self._namespace = namespace
        self._describe = describe
        self._first_turn = turn
        self._targets: dict[str, Target] = {}
        self._routes: dict[Target, Routes] = {}

    def split(
        self, rows: pa.RecordBatch, first_row: int = 0
    ) -> Iterator[tuple[Target, TargetStream, pa.RecordBatch]]:
        """Yields the rows of each target, with the columns of a record only.

        `first_row` is the number of the first row in the task, for messages. Raises
        InvalidArgument, and what `describe` raises.
        """
        for target, group in self._by_stream(rows, first_row):
            stream = self._describe(target)
            yield from self._by_partition(target, stream, group, first_row)

    def _by_stream(
        self, rows: pa.RecordBatch, first_row: int
    ) -> Iterator[tuple[Target, pa.RecordBatch]]:
        if STREAM not in rows.schema.names:
            yield self._target_of(None, first_row), rows
            return
        column = rows.column(STREAM).dictionary_encode(null_encoding="encode")
        # Several values name the same stream: its full name, its bare name, or null.
        codes: dict[Target, int] = {}
        numbers = [
            codes.setdefault(self._target_of(name, first_row), len(codes))
            for name in column.dictionary.to_pylist()
        ]
        targets = list(codes)
        for code, group in grouped(rows, pa.array(numbers, pa.int32()).take(column.indices)):
            yield targets[code], group

    def _target_of(self, name: str | None, first_row: int) -> Target:
        if name is None:
            if self._default is None:
                raise InvalidArgument(
                    f"a row from {first_row:,} on names no stream, and there is no default. Cure: "
                    "the option stream, or a column 'stream' without nulls"
                )
            return self._default
        target = self._targets.get(name)
        if target is None:
            target = self._targets[name] = parse_target(name, self._namespace)
        return target

    def _by_partition(
        self, target: Target, stream: TargetStream, rows: pa.RecordBatch, first_row: int
    ) -> Iterator[tuple[Target, TargetStream, pa.RecordBatch]]:
        chosen = rows.column(PARTITION) if PARTITION in rows.schema.names else None
        record = rows.select([name for name in RECORD_COLUMNS if name in rows.schema.names])
        if stream.partitions is None:
            own = parse_partition(target.stream)
            self._check_range(target, chosen, own.partition if own else 0, 1, first_row)
            yield target, stream, record
            return
        self._check_range(target, chosen, 0, stream.partitions, first_row)
        if chosen is None or chosen.null_count:
            routed = self._routed(target, stream.partitions, record)
            chosen = routed if chosen is None else pc.coalesce(chosen, routed)
        for number, group in grouped(record, chosen):
            yield Target(target.namespace, partition_name(target.stream, number)), stream, group

    @staticmethod
    def _check_range(
        target: Target, chosen: pa.Array | None, first: int, count: int, first_row: int
    ) -> None:
        if chosen is None or chosen.null_count == len(chosen):
            return
        ends = pc.min_max(chosen)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if low < first or high >= first + count:
            wrong = low if low < first else high
            legal = f"{first}" if count == 1 else f"{first} to {first + count - 1}"
            raise InvalidArgument(
                f"a row from {first_row:,} on names partition {wrong} of stream {target}; valid: "
                f"{legal}, or null for the partition of its key"
            )

    def _routed(self, target: Target, partitions: int, rows: pa.RecordBatch) -> pa.Array:
        """Returns a partition for each row: by its key, or else the next one in turn."""
        routes = self._routes.get(target)
        if routes is None or routes.partitions != partitions:
            routes = self._routes[target] = Routes(partitions)
            for _ in range(self._first_turn % partitions):
                routes.turn()
        if KEY not in rows.schema.names or rows.column(KEY).null_count == rows.num_rows:
            turn = routes[None]
            routes.turn()
            return pa.repeat(pa.scalar(turn, pa.int32()), rows.num_rows)
        keys = rows.column(KEY).dictionary_encode()
        numbers = pa.array(map(routes.__getitem__, keys.dictionary.to_pylist()), pa.int32())
        chosen = numbers.take(keys.indices)
        if chosen.null_count:
            chosen = pc.fill_null(chosen, pa.scalar(routes[None], pa.int32()))
            routes.turn()
        return chosen


def grouped(rows: pa.RecordBatch, codes: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields the rows of each code (int32, without nulls), in their order."""
    if not rows.num_rows:
        return
    ends = pc.min_max(codes)
    if ends["min"] == ends["max"]:
        yield ends["min"].as_py(), rows
        return
    order = pc.array_sort_indices(codes)  # stable
    ordered = rows.take(order)
    runs = pc.run_end_encode(codes.take(order))
    begin = 0
    for end, code in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield code, ordered.slice(begin, end - begin)
        begin = end
