"""TaskWriter: routes the rows of one task, encodes them as entries and writes them to its ledgers.

Observes the size of entries, the limits of the namespace and the order of rows: rows of one target
keep their order, or are sorted in runs if the batch is sorted. Buffers a bounded part of the rows.
Runs in the task's thread; task_ledgers.py sends the entries.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from connectors.spark.sink.arrow_input import input_rows
from connectors.spark.sink.arrow_write import RowSizes, encode_frame, encode_rows
from connectors.spark.sink.routing import Router, Target, TargetStream, look_up, parse_target
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.sort_order import Key, SortOrder
from connectors.spark.sink.task_results import (
    SmallResult,
    TaskLedger,
    TaskOutput,
    bytes_of_task,
)
from ledger.errors import InvalidArgument, LedgerError
from stream.core.entry.compression import Compression, require
from stream.core.entry.format import BODY_BYTES_MAX
from stream.core.token_bucket import TokenBucket
from stream.errors import CompressionUnavailable

if TYPE_CHECKING:
    from connectors.spark.core.cluster_access import ClusterAccess
    from connectors.spark.options.options import WriteOptions
    from stream.core.sinks import SinkLedger

GATHERED_BYTES_MAX = 64 << 20
"""Bytes that a task buffers, over all targets, for larger entries or longer sorted runs."""
_FRAME_BYTES_MIN = 64 * 1024
"""Smaller entries are sent in a gathered write with others."""
_ROOM_BYTES = 4096
"""Reserved in an entry for the padding of its columns."""


class _TargetRows:
    """Encodes the rows of one target as entries of its ledgers."""

    def __init__(
        self,
        output: TaskOutput,
        target: Target,
        stream: TargetStream,
        entry_bytes: int,
        order: SortOrder | None,
    ) -> None:
        self.target = target
        self.stream = stream
        self.bounds: list[tuple[Key, Key]] = []
        """The range of sort keys in each ledger."""
        self._output = output
        self._entry_bytes = min(entry_bytes, BODY_BYTES_MAX - _ROOM_BYTES)
        self._order = order
        self._compression = Compression.named(stream.policy.compression)
        require(self._compression)
        rate = stream.policy.bytes_per_s_max
        self._bucket = None if rate is None else TokenBucket(rate, time.monotonic())
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._records = 0
        self._sequence = 0
        self._ledger_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows; sends them at once if they fill an entry, or else buffers them."""
        if self._order is not None:
            self._gathered.append(rows)
            return
        sizes = RowSizes(rows)
        nbytes = sizes.between(0, sizes.count)
        if not self._gathered and 2 * nbytes >= self._entry_bytes:
            self._send(rows, sizes)
            return
        self._gathered.append(rows)
        self._gathered_bytes += nbytes
        if self._gathered_bytes >= self._entry_bytes:
            self.flush()

    def flush(self) -> None:
        """Sends the buffered rows."""
        if not self._gathered:
            return
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        rows = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        if self._order is None:
            self._send(rows, RowSizes(rows))
            return
        rows = self._order.sorted(rows)
        low, _ = self._order.bounds(rows)
        fits_behind = bool(self.bounds) and self.bounds[-1][1] <= low
        self._send(rows, RowSizes(rows), is_apart=not fits_behind)

    def _send(self, rows: pa.RecordBatch, sizes: RowSizes, *, is_apart: bool = False) -> None:
        """Sends rows as entries; with `is_apart` the rows begin another ledger."""
        policy, record_bytes_max = self.stream.policy, self.stream.policy.record_bytes_max
        for first, stop in sizes.cuts(self._entry_bytes):
            large = sizes.first_over(first, stop, record_bytes_max)
            if large is not None:
                raise self._too_large(rows, sizes, large)
            begins_ledger = is_apart or self._ledger_bytes >= policy.roll_bytes
            is_apart = False
            if begins_ledger:
                self._sequence = self._ledger_bytes = 0
            cut = rows.slice(first, stop - first)
            is_large = sizes.between(first, stop) >= _FRAME_BYTES_MIN
            payload = (encode_frame if is_large else encode_rows)(
                cut,
                first_sequence=self._sequence,
                append_time_ms=time.time_ns() // 1_000_000,
                compression=self._compression,
            )
            count = stop - first
            if self._order is not None:
                low, high = self._order.bounds(cut)
                if begins_ledger or not self.bounds:
                    self.bounds.append((low, high))
                else:
                    self.bounds[-1] = (self.bounds[-1][0], high)
            self._wait_quota(len(payload))
            self._output.append(self.target, policy, payload, count, begins_ledger=begins_ledger)
            self._sequence += count
            self._ledger_bytes += len(payload)
        self._records += rows.num_rows

    def _wait_quota(self, nbytes: int) -> None:
        """Throttles the task to `bytes_per_s_max` of the namespace, the limit of a stream's writer.

        A task does not know how many others write to the stream.
        """
        if self._bucket is not None:
            time.sleep(self._bucket.wait_s(time.monotonic()))
            self._bucket.take(nbytes, time.monotonic())

    def _too_large(self, rows: pa.RecordBatch, sizes: RowSizes, row: int) -> InvalidArgument:
        size = sizes.records_between(row, row + 1)
        value = len(rows.column("value")[row].as_buffer() or b"")
        return InvalidArgument(
            f"row {self._records + row:,} of this task's rows for stream {self.target} (counted "
            f"from 0{', sorted' if self._order is not None else ''}) is a record of {size:,} "
            f"bytes, {value:,} of them its value; record_bytes_max of namespace "
            f"{self.target.namespace!r} is {self.stream.policy.record_bytes_max:,}. Cure: filter "
            "or split such rows (length(value)), or raise the limit (at most 1 MiB)"
        )


_LOOKED_UP_S = 10.0
"""How long a streaming write knows a plain stream without looking it up again."""
_LOOKED_UP_MAX = 1000
_looked_up: dict[tuple[ClusterAccess, Target], tuple[float, TargetStream]] = {}


def _target_stream(options: WriteOptions, target: Target, *, may_be_missing: bool) -> TargetStream:
    """Returns the metadata of a target; of a streaming write they may be ten seconds old.

    Those of a partitioned stream never are: processes that know different numbers of partitions
    would move keys back and forth between them.
    """
    key, now_s = (options.cluster, target), time.monotonic()
    then_s, known = _looked_up.get(key, (-math.inf, None))
    if known is not None and options.is_streaming and now_s - then_s <= _LOOKED_UP_S:
        return known
    from connectors.spark.client.client_cache import cached_cluster

    found = cached_cluster(options.cluster).run(look_up, target, may_be_missing=may_be_missing)
    if not found.is_missing and found.partitions is None:
        if len(_looked_up) >= _LOOKED_UP_MAX:
            _looked_up.clear()
        _looked_up[key] = now_s, found
    return found


def known_targets(options: WriteOptions) -> dict[Target, TargetStream]:
    """Returns the metadata of the default target, so that no task has to read it. Empty if it
    cannot be read now: tasks say why."""
    if options.stream is None:
        return {}
    target = parse_target(options.stream, options.namespace)
    try:
        return {target: _target_stream(options, target, may_be_missing=False)}
    except LedgerError:
        return {}


def is_writable_here(known: Mapping[Target, TargetStream]) -> bool:
    """Whether this process has the libraries to encode entries for these targets."""
    try:
        for stream in known.values():
            require(Compression.named(stream.policy.compression))
    except CompressionUnavailable:
        return False
    return True


class TaskWriter:
    """Writes the rows of one task.

    Args:
        options: the options of the sink.
        batch: the tag of the ledgers.
        number: that of the task: the first partition for rows without a key, and its share in what
            tasks may return to the driver.
        known: the metadata of targets that need not be read.
    """

    def __init__(
        self,
        options: WriteOptions,
        batch: SinkBatch,
        number: int = 0,
        known: Mapping[Target, TargetStream] = MappingProxyType({}),
    ) -> None:
        self._options = options
        self._batch = batch
        self._number = number
        self._order = SortOrder(options.sort_within_batch) if options.sort_within_batch else None
        self._streams = dict(known)
        self._rows: dict[Target, _TargetRows] = {}
        self.records = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[TaskLedger | SmallResult]:
        """Writes all rows; returns the closed ledgers when the rows are durable, or all rows if
        they are few enough for the driver to write them.

        What is of one target is in the order of its rows. Raises InvalidArgument for rows
        that cannot be written, NoSuchStream, NoSuchNamespace, NotEnoughBookies,
        MetadataUnavailable. The janitor finds ledgers that could not be deleted then.
        """
        options = self._options
        default = None
        if options.stream is not None:
            default = parse_target(options.stream, options.namespace)
        router = Router(default, options.namespace, self._describe, self._number)
        held_max = bytes_of_task(options.small_result_bytes, self._number)
        with TaskOutput(options.cluster, self._batch, held_max, self._number) as output:
            buffered = 0
            for batch in _bounded(batches):
                rows = input_rows(batch, self.records)
                for target, stream, group in router.split(rows, self.records):
                    self._rows_of(output, target, stream).add(group)
                self.records += batch.num_rows
                # Whole batches are counted, because a slice keeps all of its batch in memory.
                buffered += batch.nbytes
                if buffered >= GATHERED_BYTES_MAX:
                    self._flush()
                    buffered = 0
            self._flush()
            small = output.small_results(lambda target: self._rows[target].stream.is_missing)
            return [*self._described(output.close())] if small is None else [*small]

    def _flush(self) -> None:
        for rows in self._rows.values():
            rows.flush()

    def _describe(self, target: Target) -> TargetStream:
        stream = self._streams.get(target)
        if stream is None:
            may_be_missing = self._options.create_streams
            stream = _target_stream(self._options, target, may_be_missing=may_be_missing)
            self._streams[target] = stream
        return stream

    def _rows_of(self, output: TaskOutput, target: Target, stream: TargetStream) -> _TargetRows:
        rows = self._rows.get(target)
        if rows is None:
            limit = self._options.max_ledgers_per_task
            if len(self._rows) >= limit:
                raise InvalidArgument(
                    f"the rows of this task are for more than {limit} streams or partitions, the "
                    f"limit maxLedgersPerTask; {target} is one more. Cure: repartition by the "
                    "stream or the key before writing, or raise maxLedgersPerTask (each target "
                    "costs a ledger per task and batch)"
                )
            rows = self._rows[target] = _TargetRows(
                output, target, stream, self._options.entry_bytes, self._order
            )
        return rows

    def _described(self, done: list[SinkLedger]) -> list[TaskLedger]:
        found: list[TaskLedger] = []
        begun: dict[Target, int] = {}
        for ledger in done:
            target = Target(ledger.namespace, ledger.stream)
            rows = self._rows[target]
            number = begun[target] = begun.get(target, -1) + 1
            low, high = rows.bounds[number] if self._order is not None else (None, None)
            found.append(TaskLedger(ledger, low, high, rows.stream.is_missing))
        return found


def _bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows in batches of bounded size; drops empty batches."""
    for batch in batches:
        count = batch.num_rows
        parts = max(1, min(count, -(-batch.nbytes // GATHERED_BYTES_MAX)))
        step = -(-count // parts)
        for first in range(0, count, max(1, step)):
            yield batch.slice(first, step)
