"""The size of a record in a batch, and whether it is valid at all.

A record is checked when it is appended: one invalid record must not fail the batch around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import index
from typing import Final, cast

from ledger.errors import InvalidArgument
from stream.core.entry.format import RECORD_BYTES_MAX
from stream.core.entry.record_columns import HeaderPairs, RecordColumns
from stream.core.entry.records import NULL

RECORD_OVERHEAD_BYTES: Final = 16
"""Counted per record for offsets and times, so that empty records fill a batch too."""


def record_bytes(
    value: bytes,
    key: bytes | None,
    event_time_ms: int | None,
    headers: HeaderPairs | None,
    bytes_max: int = RECORD_BYTES_MAX,
) -> int:
    """Returns the size of a record without its overhead. Raises InvalidArgument, TypeError."""
    if type(value) is not bytes or not (key is None or type(key) is bytes):
        _check_not_null(value)
        raise TypeError(
            f"value and key must be bytes, not {type(value).__name__} and {type(key).__name__}"
        )
    if event_time_ms is not None:
        try:
            milliseconds = index(event_time_ms)
        except TypeError:
            raise TypeError(f"event time {event_time_ms!r} is not a whole number (ms)") from None
        if not -(1 << 63) <= milliseconds < 1 << 63:
            raise InvalidArgument(f"event time {milliseconds} does not fit 64 bits (ms since 1970)")
    size = len(value) + len(key or b"")
    for name, content in headers or ():
        if type(name) is not str or type(content) is not bytes:
            _check_not_null(content)
            raise TypeError("headers are pairs of a str name and a bytes value")
        size += len(name.encode()) + len(content) + RECORD_OVERHEAD_BYTES
    if size > bytes_max:
        cure = "" if bytes_max == RECORD_BYTES_MAX else " (record_bytes_max of the namespace)"
        raise InvalidArgument(f"a record of {size} bytes; the largest is {bytes_max}{cure}")
    return size


def _check_not_null(value: object) -> None:
    if value is NULL:
        raise TypeError(
            "a null value, which Spark's sink has written, cannot be appended by a writer. Cure: "
            "leave the record out, or give bytes(value), which is empty"
        )


def many_bytes(columns: RecordColumns, bytes_max: int = RECORD_BYTES_MAX) -> list[int]:
    """Returns the size of each record in a batch, overhead included. Raises as `record_bytes`."""
    values, keys, event_times, headers = columns
    for what, column in (("keys", keys), ("event times", event_times), ("headers", headers)):
        if column is not None and len(column) != len(values):
            raise InvalidArgument(f"{len(column)} {what} for {len(values)} values")
    if headers is None and _are_plain(values, keys, event_times):
        lengths = map(len, values)
        if keys is None:
            sizes = [size + RECORD_OVERHEAD_BYTES for size in lengths]
        else:
            # Nearly always each record has a key, or none has.
            key_lengths = map(len, cast("Sequence[bytes]", keys))
            sizes = [
                v + k + RECORD_OVERHEAD_BYTES for v, k in zip(lengths, key_lengths, strict=True)
            ]
        if max(sizes, default=0) - RECORD_OVERHEAD_BYTES <= bytes_max:
            return sizes
    nothing: Sequence[None] = [None] * len(values)
    return [
        record_bytes(value, key, time, pairs, bytes_max) + RECORD_OVERHEAD_BYTES
        for value, key, time, pairs in zip(
            values,
            nothing if keys is None else keys,
            nothing if event_times is None else event_times,
            nothing if headers is None else headers,
            strict=True,
        )
    ]


def first_to_fill(sizes: Sequence[int], budget: int) -> tuple[int, int]:
    """Returns how many of the first records fill a batch that has `budget` bytes left, and their
    bytes.

    Returns all of them if they do not fill it. It is at least one, and the last one may be too
    large.
    """
    # Records appended together often have one size: then the first guess is right.
    count = min(max(1, -(-budget // sizes[0])), len(sizes))
    taken = sum(sizes[:count])
    if taken - sizes[count - 1] < budget and (taken >= budget or count == len(sizes)):
        return count, taken
    count = 0
    for taken in accumulate(sizes):
        count += 1
        if taken >= budget:
            break
    return count, taken


def _are_plain(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None,
    event_times: Sequence[int | None] | None,
) -> bool:
    """Whether the columns contain nothing that must be checked item by item."""
    if not set(map(type, values)) <= {bytes}:
        return False
    if keys is not None and not set(map(type, keys)) <= {bytes}:
        return False
    if not event_times:
        return True
    if not set(map(type, event_times)) <= {int}:
        return False
    times = cast("Sequence[int]", event_times)
    return min(times) >= -(1 << 63) and max(times) < 1 << 63
