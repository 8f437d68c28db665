"""`ledgerstream read`, `tail`: print records as lines, or as JSON objects with all columns.

A value is written unchanged, followed by a newline, and flushed at once: only --json separates
values that contain newlines. Several streams, patterns, and the partitions of a stream are
merged by time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import trio
from cyclopts import Parameter

from ledger.cli.output import (
    ClusterOption,
    OutputOption,
    print_json,
    text_or_base64,
    write_output,
)
from ledger.core.times import time_text
from ledger.errors import InvalidArgument
from stream.cli.arguments import StreamNames, parse_from, parse_streams
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import EARLIEST, LATEST, FromEnd, Start
from stream.core.stream_patterns import StreamPatterns
from stream.namespace import Namespace
from stream.reading.merged_feeds import find_streams

_IDLE_TIMEOUT_MS = 500
_AT_ONCE_MAX = 16


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOption:
    order_by: Literal["event-time", "append-time"] = "event-time"
    """The time by which several streams, or partitions, are merged."""

    lateness_ms: int = 0
    """How late a record may be in its stream and still be put in order."""

    on_truncated: Literal["error", "earliest", "latest"] = "error"
    """What to do if the next record to read was truncated."""

    def time_of(self, record: Record) -> int:
        if self.order_by == "append-time" or record.event_time_ms is None:
            return record.append_time_ms
        return record.event_time_ms


_CLUSTER = ClusterOption()
_OUTPUT = OutputOption()
_MERGE = MergeOption()

From = Annotated[str | None, Parameter(name="--from")]
Last = Annotated[int | None, Parameter(name=["-n", "--last"])]


async def read(
    stream: str,
    /,
    *more: str,
    start: From = None,
    last: Last = None,
    count: int | None = None,
    merge: MergeOption = _MERGE,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Print the records of streams to their present end, a value per line.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM, or a pattern like "demo/clicks-*".
    more
        More streams or patterns, in the same namespace.
    start
        earliest (default), latest, a position, seq:N, end:N, time:ISO (when appended),
        event-time:ISO or cursor:NAME.
    last
        Only the last N records.
    count
        Stop after N records.
    """
    first = _first(start, last, EARLIEST)
    names = parse_streams([stream, *more])
    async with Namespace.connect(cluster.uri, names.namespace) as namespace:
        await _print(namespace, names, first, _Printer(count, output), merge, follow=False)


async def tail(
    stream: str,
    /,
    *more: str,
    start: From = None,
    last: Last = None,
    count: int | None = None,
    merge: MergeOption = _MERGE,
    cluster: ClusterOption = _CLUSTER,
    output: OutputOption = _OUTPUT,
) -> None:
    """Follow streams: print records as they come, until Ctrl-C.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM, or a pattern like "demo/clicks-*": new streams that match it join.
    more
        More streams or patterns, in the same namespace.
    start
        latest (default), earliest, a position, seq:N, end:N, time:ISO (when appended),
        event-time:ISO or cursor:NAME.
    last
        Begin with the last N records.
    count
        Stop after N records.
    """
    first = _first(start, last, LATEST)
    names = parse_streams([stream, *more])
    async with Namespace.connect(cluster.uri, names.namespace) as namespace:
        await _print(namespace, names, first, _Printer(count, output), merge, follow=True)


def _first(start: str | None, last: int | None, default: Start) -> Start:
    if start is not None and last is not None:
        raise InvalidArgument("--from and -n both say where to begin: give one of them")
    if last is not None:
        return FromEnd(last)
    return default if start is None else parse_from(start)


async def _print(
    namespace: Namespace,
    names: StreamNames,
    start: Start,
    printer: _Printer,
    merge: MergeOption,
    *,
    follow: bool,
) -> None:
    streams = await find_streams(namespace.scope, StreamPatterns(names.streams))
    if tuple(streams) == names.streams and len(streams) == 1:
        await _print_one(namespace, streams[0], start, printer, merge, follow=follow)
    elif not isinstance(start, FromEnd) or start.records == 0:
        await _print_merged(namespace, names, start, printer, merge, follow=follow)
    else:
        # The last records of all streams are known at once: no wait for quiet streams.
        found = await _last_of(namespace, streams, start.records)
        ordered = sorted(
            ((name, record) for name, records in found.items() for record in records),
            key=lambda named: merge.time_of(named[1]),
        )
        for name, record in ordered[-start.records :]:
            printer.show_record(record, name)
        if follow:
            behind = {name: rs[-1].position.after for name, rs in found.items() if rs}
            await _print_merged(namespace, names, behind, printer, merge, follow=True)


async def _print_one(
    namespace: Namespace,
    stream: str,
    start: Start,
    printer: _Printer,
    merge: MergeOption,
    *,
    follow: bool,
) -> None:
    async with namespace.reader(stream, start=start, on_truncated=merge.on_truncated) as reader:
        if not printer.has_room:
            return
        async for batch in reader.batches() if follow else reader.read_to_end():
            if not printer.show(batch, None):
                return


async def _print_merged(
    namespace: Namespace,
    names: StreamNames,
    start: Start | Mapping[str, Start],
    printer: _Printer,
    merge: MergeOption,
    *,
    follow: bool,
) -> None:
    async with namespace.merged_reader(
        names.streams,
        start=start,
        order_by="event_time" if merge.order_by == "event-time" else "append_time",
        lateness_ms=merge.lateness_ms,
        idle_timeout_ms=_IDLE_TIMEOUT_MS,
        on_truncated=merge.on_truncated,
        follow=follow,
    ) as reader:
        if not printer.has_room:
            return
        async for merged in reader.batches():
            if not printer.show(merged.batch, merged.stream):
                return


async def _last_of(
    namespace: Namespace, streams: list[str], records: int
) -> dict[str, list[Record]]:
    """Returns the last records of each stream."""
    found: dict[str, list[Record]] = {name: [] for name in streams}
    limiter = trio.CapacityLimiter(_AT_ONCE_MAX)

    async def read_last(name: str) -> None:
        async with limiter:
            found[name] = await namespace.read_last(name, records)

    async with trio.open_nursery() as nursery:
        for name in streams:
            nursery.start_soon(read_last, name)
    return found


class _Printer:
    """Writes up to the wanted number of records."""

    def __init__(self, count: int | None, output: OutputOption) -> None:
        self._left = sys.maxsize if count is None else count
        self._is_json = output.json

    @property
    def has_room(self) -> bool:
        return self._left > 0

    def show(self, batch: RecordBatch, stream: str | None) -> bool:
        """Writes a batch; returns whether more are wanted. JSON names `stream`, if it is given."""
        if self._is_json:
            for record in batch.records()[: self._left]:
                print_json(json_of(record, stream))
        elif self._left > 0:
            write_output(b"\n".join(batch.values()[: self._left]) + b"\n")
        self._left -= len(batch)
        return self._left > 0

    def show_record(self, record: Record, stream: str) -> None:
        if self._left > 0:
            if self._is_json:
                print_json(json_of(record, stream))
            else:
                write_output(record.value + b"\n")
        self._left -= 1


def json_of(record: Record, stream: str | None = None) -> dict[str, object]:
    """Returns all columns of a record. Bytes are text if they are UTF-8, else {"base64": ...}."""
    return {
        **({} if stream is None else {"stream": stream}),
        "position": str(record.position),
        "sequence": record.sequence,
        "append_time": time_text(record.append_time_ms),
        "event_time": None if record.event_time_ms is None else time_text(record.event_time_ms),
        "key": None if record.key is None else text_or_base64(record.key),
        "value": text_or_base64(record.value),
        **({"headers": _headers(record)} if record.headers else {}),
    }


def _headers(record: Record) -> list[list[object]]:
    return [[name, text_or_base64(content)] for name, content in record.headers]
