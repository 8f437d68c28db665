"""SortOrder: how `sortWithinBatch` orders rows, and the ranges by which ledgers are compared.

Nulls come first, bytes compare as bytes, event times as milliseconds: what Arrow sorts and what
Python compares here must never differ.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

Key = tuple[tuple[Any, ...], ...]
"""A row's place in the order: for each column (0,) for null, (1, value), or (2,) above all."""

BOUND_BYTES_MAX: Final = 64
"""A bound of a range has no more bytes per column: it travels in commit messages."""


class SortOrder:
    """Ascending by these columns, one after the other."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)

    def sorted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in order; those that are equal keep theirs."""
        columns: dict[str, Any] = {}
        for name in self.columns:
            if name in rows.schema.names:
                column = rows.column(name)
                if column.null_count:
                    # The option for it has changed its place between versions of Arrow.
                    columns[f"{name} is there"] = pc.is_valid(column)
                columns[name] = column
        if not columns:
            return rows
        by = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        return rows.take(pc.sort_indices(by, sort_keys=[(name, "ascending") for name in columns]))

    def key(self, rows: pa.RecordBatch, row: int) -> Key:
        """Compares as the rows are ordered."""
        return tuple(_part(rows, name, row) for name in self.columns)

    def stop_of(self, rows: pa.RecordBatch, first: int, bound: Key, *, with_equal: bool) -> int:
        """Of these sorted rows from `first` on: behind the last one below `bound`, or behind the
        last one that is not above it."""
        bisect = bisect_right if with_equal else bisect_left
        return bisect(range(rows.num_rows), bound, lo=first, key=lambda row: self.key(rows, row))

    def bounds(self, rows: pa.RecordBatch) -> tuple[Key, Key]:
        """None of these sorted rows is below the first or above the second; both are short."""
        low, high = self.key(rows, 0), self.key(rows, rows.num_rows - 1)
        return tuple(map(_below, low)), _above(high)


def _part(rows: pa.RecordBatch, name: str, row: int) -> tuple[Any, ...]:
    if name not in rows.schema.names:
        return (0,)
    item = rows.column(name)[row]
    return (1, item.as_py()) if item.is_valid else (0,)


def _is_long(part: tuple[Any, ...]) -> bool:
    return len(part) == 2 and isinstance(part[1], bytes) and len(part[1]) > BOUND_BYTES_MAX


def _below(part: tuple[Any, ...]) -> tuple[Any, ...]:
    return (1, part[1][:BOUND_BYTES_MAX]) if _is_long(part) else part


def _above(key: Key) -> Key:
    """A short key that is not below this one."""
    for index, part in enumerate(key):
        if _is_long(part):
            # What follows a raised column does not matter any more.
            head = part[1][:BOUND_BYTES_MAX].rstrip(b"\xff")
            raised = (1, head[:-1] + bytes([head[-1] + 1])) if head else (2,)
            return (*key[:index], raised, *((2,) for _ in key[index + 1 :]))
    return key
