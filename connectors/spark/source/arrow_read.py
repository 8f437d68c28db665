"""Builds Arrow record batches for Spark from entries of streams, with the requested columns only.

A large entry becomes a batch of its own that shares its buffers; small ones are concatenated.
Every array is validated before Spark gets it: a damaged entry must be an error, never a crash of a
worker or of the JVM. One builder serves one task and is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from connectors.spark.schema import SPARK_TIME_MS_MAX
from ledger.errors import InvalidArgument
from stream.core.entry.records import RecordBatch

OWN_BATCH_BYTES = 256 << 10
"""An entry of this size becomes a batch of its own: copying it would cost more than the batch."""
FLUSH_BYTES = 1 << 20
"""Small entries are concatenated up to this size, or up to the maximum number of rows."""


class _PendingEntries:
    """Entries that are gathered for one batch: numbers per entry, and arrays per column."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.arrays: dict[str, list[Any]] = {name: [] for name in columns if name in _STORED}
        self.numbers: list[tuple[int, int, int, int, int, int]] = []
        """Rows, segment, entry, first slot, first sequence, append time."""
        self.rows = 0
        self.nbytes = 0


class ArrowBuilder:
    """Makes batches of one stream.

    Args:
        schema: the schema of the batches: columns of `connectors.spark.schema`, in any order and
            any case.
        stream: the base stream, "ns/stream".
        partition: the number of the partition.
        rows_max: the maximum number of rows of a batch.
    """

    def __init__(self, schema: pa.Schema, stream: str, partition: int, rows_max: int) -> None:
        self._schema = schema
        self._types = {field.name.lower(): field.type for field in schema}
        self._never_null = {field.name.lower() for field in schema if not field.nullable}
        self._columns = tuple(self._types)
        self._rows_max = rows_max
        self._constants = {"stream": stream, "partition": partition}
        self._constant_arrays: dict[str, Any] = {}
        self._pending = _PendingEntries(self._columns)

    @property
    def reads_columns(self) -> bool:
        """Whether batches that are added need their columns: not if only headers are read."""
        return bool(self._pending.arrays)

    def add(self, batch: RecordBatch, append_time_ms: int) -> Iterator[pa.RecordBatch]:
        """Adds the records of `batch`; yields complete batches.

        Raises RecordFormatError, and InvalidArgument for an event time that Spark cannot hold or a
        null that the schema does not allow.
        """
        count = len(batch)
        if not count:
            return
        # Not the stored size: a compressed entry may be a thousand times as large in memory.
        nbytes = batch.header.body_bytes if self.reads_columns else 0
        if self._pending.rows and (
            nbytes >= OWN_BATCH_BYTES or self._pending.rows + count > self._rows_max
        ):
            yield self.flush()
        columns = {name: self._stored(batch, name) for name in self._pending.arrays}
        for first in range(0, count, self._rows_max):
            rows = min(self._rows_max, count - first)
            runs = self._pending
            for name, arrays in runs.arrays.items():
                arrays.append(columns[name].slice(first, rows))
            runs.numbers.append(
                (rows, batch.segment, batch.entry, batch.first_slot + first,
                 batch.first_sequence + first, append_time_ms)
            )  # fmt: skip
            runs.rows += rows
            runs.nbytes += nbytes
            if (
                rows < count
                or nbytes >= OWN_BATCH_BYTES
                or runs.nbytes >= FLUSH_BYTES
                or runs.rows >= self._rows_max
            ):
                yield self.flush()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the last batch, unless it would be empty."""
        if self._pending.rows:
            yield self.flush()

    def flush(self) -> pa.RecordBatch:
        runs, self._pending = self._pending, _PendingEntries(self._columns)
        arrays = [
            _concatenated(runs.arrays[name]) if name in runs.arrays else self._made(name, runs)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _stored(self, batch: RecordBatch, name: str) -> Any:
        """Returns a stored column of the entry, restricted to the records of `batch`."""
        kind = self._types[name]
        array = batch.arrow_column(*_STORED[name], *([kind] if name == "headers" else []))
        if array is None:
            return _UNUSED[name](kind, len(batch))
        if len(batch) != batch.header.count:
            array = array.slice(batch.first_slot, len(batch))
        self._check_nulls(batch, name, array)
        if name != "event_time":
            return array
        try:
            return timestamps(array, kind)
        except pa.ArrowInvalid:
            raise self._out_of_range(batch, array) from None

    def _check_nulls(self, batch: RecordBatch, name: str, array: Any) -> None:
        """Raises InvalidArgument for a null in a column that the user has declared NOT NULL."""
        if name == "headers":
            has_null = (
                array.values.field(1).null_count and not self._types[name].value_type[1].nullable
            )
            name = "headers.value"
        else:
            has_null = array.null_count and name in self._never_null
        if has_null:
            raise InvalidArgument(
                f"column {name} is null in the entry {batch.segment}:{batch.entry} of stream "
                f"{self._constants['stream']!r} (partition {self._constants['partition']}), and "
                "the schema declares it NOT NULL. Cure: leave NOT NULL out of the schema"
            )

    def _out_of_range(self, batch: RecordBatch, times_ms: Any) -> InvalidArgument:
        row, time_ms = next(
            (row, time_ms)
            for row, time_ms in enumerate(times_ms.to_pylist())
            if time_ms is not None and abs(time_ms) > SPARK_TIME_MS_MAX
        )
        return InvalidArgument(
            f"the record {batch.segment}:{batch.entry}:{batch.first_slot + row} of stream "
            f"{self._constants['stream']!r} (partition {self._constants['partition']}) has the "
            f"event time {time_ms:,} ms, which is beyond Spark's timestamps, "
            f"+-{SPARK_TIME_MS_MAX:,} ms. "
            "Cure: leave event_time out, with the option columns or a schema"
        )

    def _made(self, name: str, runs: _PendingEntries) -> Any:
        kind = self._types[name]
        if name in self._constants:
            return self._constant(name, kind, runs.rows)
        numbers = np.array(runs.numbers, np.int64).T
        counts = numbers[0]
        if name in ("slot", "sequence"):
            firsts = numbers[3 if name == "slot" else 4]
            starts = np.cumsum(counts) - counts
            found = np.arange(runs.rows, dtype=np.int64) + np.repeat(firsts - starts, counts)
            return pa.array(found.astype(np.int32) if name == "slot" else found)
        column = numbers[{"segment": 1, "entry": 2, "append_time": 5}[name]]
        if name == "append_time":
            column = _us(column)
        return pa.array(np.repeat(column, counts)).view(kind)

    def _constant(self, name: str, kind: Any, rows: int) -> Any:
        """Returns a constant column; built once for the largest number of rows requested so far."""
        array = self._constant_arrays.get(name)
        if array is None or len(array) < rows:
            array = pa.repeat(pa.scalar(self._constants[name], kind), rows)
            self._constant_arrays[name] = array
        return array.slice(0, rows)


def timestamps(times_ms: Any, kind: Any) -> Any:
    """Converts int64 milliseconds to microseconds of `kind`.

    Raises ArrowInvalid for a time that does not fit.
    """
    buffers = times_ms.buffers()
    milliseconds = pa.Array.from_buffers(
        pa.timestamp("ms", kind.tz), len(times_ms), buffers, offset=times_ms.offset
    )
    return milliseconds.cast(kind)


def _us(times_ms: Any) -> Any:
    return np.clip(times_ms, -SPARK_TIME_MS_MAX, SPARK_TIME_MS_MAX) * 1000


def _concatenated(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _empty_lists(kind: Any, count: int) -> Any:
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(
        kind, count, [None, offsets], children=[pa.nulls(0).cast(kind.value_type)]
    )


def _nulls(kind: Any, count: int) -> Any:
    return pa.nulls(count, kind)


_STORED: dict[str, tuple[str]] = {
    "value": ("value",),
    "key": ("key",),
    "event_time": ("event_time_ms",),
    "headers": ("headers",),
}
"""Columns that are stored in the entries, and their names there."""
_UNUSED: dict[str, Callable[[Any, int], Any]] = {
    "key": _nulls,
    "event_time": _nulls,
    "headers": _empty_lists,
}
"""How to build a column that no record of an entry uses."""
