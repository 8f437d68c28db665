"""SortOrder: the order of rows for `sortWithinBatch`, and the key ranges of sorted ledgers.

Nulls come first, bytes compare as bytes, event times as milliseconds. The order in which Arrow
sorts and the order of keys in Python must never differ.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

Key = tuple[tuple[Any, ...], ...]
"""The sort key of a row: for each column (0,) for null, (1, value), or (2,) above all values."""

BOUND_BYTES_MAX: Final = 64
"""Maximum bytes per column of a bound, which is part of a task's commit message."""


class SortOrder:
    """Ascending order by these columns, the first one being the most significant."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)

    def sorted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows sorted; the sort is stable."""
        columns: dict[str, Any] = {}
        for name in self.columns:
            if name in rows.schema.names:
                column = rows.column(name)
                if column.null_count:
                    # Arrow's own option for nulls differs between its versions.
                    columns[f"{name} is valid"] = pc.is_valid(column)
                columns[name] = column
        if not columns:
            return rows
        by = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        return rows.take(pc.sort_indices(by, sort_keys=[(name, "ascending") for name in columns]))

    def key(self, rows: pa.RecordBatch, row: int) -> Key:
        """Returns the sort key of a row; keys compare as rows are sorted."""
        return tuple(_part(rows, name, row) for name in self.columns)

    def stop_of(self, rows: pa.RecordBatch, first: int, bound: Key, *, with_equal: bool) -> int:
        """Returns the index after the last row below `bound`, or up to it if `with_equal`.

        Searches these sorted rows from `first` on.
        """
        bisect = bisect_right if with_equal else bisect_left
        return bisect(range(rows.num_rows), bound, lo=first, key=lambda row: self.key(rows, row))

    def bounds(self, rows: pa.RecordBatch) -> tuple[Key, Key]:
        """Returns short keys between which all these sorted rows are."""
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
    """Returns a short key that is not below this one."""
    for index, part in enumerate(key):
        if _is_long(part):
            # The columns after a raised one have no influence.
            head = part[1][:BOUND_BYTES_MAX].rstrip(b"\xff")
            raised = (1, head[:-1] + bytes([head[-1] + 1])) if head else (2,)
            return (*key[:index], raised, *((2,) for _ in key[index + 1 :]))
    return key
