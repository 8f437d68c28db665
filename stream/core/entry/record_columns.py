"""Columns of many records that are appended together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HeaderPairs = Sequence[tuple[str, bytes]]
"""Headers of one record, in their order; a name may occur again."""
NullablePairs = Sequence[tuple[str, bytes | None]]
"""The same as they are stored: Spark's sink stores headers without a value."""


class RecordColumns(NamedTuple):
    """Values, keys, event times (ms) and headers of records. A column that no record needs is None;
    the others have one item per value."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None = None
    event_times: Sequence[int | None] | None = None
    headers: Sequence[HeaderPairs | None] | None = None

    def part(self, begin: int, stop: int) -> RecordColumns:
        """Returns the records from index `begin` to before `stop`."""
        values, keys, event_times, headers = self
        return RecordColumns(
            values[begin:stop],
            None if keys is None else keys[begin:stop],
            None if event_times is None else event_times[begin:stop],
            None if headers is None else headers[begin:stop],
        )

    def picked(self, indexes: Sequence[int]) -> RecordColumns:
        """Returns the records at these indexes."""
        values, keys, event_times, headers = self
        return RecordColumns(
            [values[at] for at in indexes],
            None if keys is None else [keys[at] for at in indexes],
            None if event_times is None else [event_times[at] for at in indexes],
            None if headers is None else [headers[at] for at in indexes],
        )
