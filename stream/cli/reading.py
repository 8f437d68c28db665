"""`ledgerstream read`, `tail`: print records as lines, in a format, or as JSON with all columns.

A value is written unchanged, followed by a newline, and flushed at once: only JSON and base64
separate values that contain newlines. A terminal gets it as text without control characters, unless
--raw asks for the bytes. Several streams, patterns, and the partitions of a stream are
merged by time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ledger.cli.output import ClusterOption, remark, stored_bytes_shown, usage, write_output
from stream.cli.record_text import Shown
from stream.cli.selection import SelectOption, StartOption

if TYPE_CHECKING:
    import trio

    from stream.cli.arguments import StreamNames
    from stream.cli.record_text import RecordText
    from stream.cli.selection import Selection
    from stream.core.entry.records import Record, RecordBatch
    from stream.core.position import Start
    from stream.namespace import Namespace

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


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOption:
    format: Annotated[str | None, Parameter(name=["-f", "--format"], allow_leading_hyphen=True)] = (
        None
    )
    """Print each record like this, for example '%k %v\\n': %v value, %k key, %h headers, %p
    position, %s sequence, %t append time, %e event time, %T and %E in ms, %n stream, %V and %K
    bytes of value and key, %%. Nothing is added, no end of line either; write \\n, \\t, \\r, \\0 or
    \\x1f."""

    output: Annotated[Shown | None, Parameter(name=["-o", "--output"])] = None
    """Values as they are (default), records as JSON, or values (keys, headers) as base64."""

    json: Annotated[bool, Parameter(negative="")] = False
    """The same as `-o json`."""

    raw: Annotated[bool, Parameter(negative="")] = False
    """Print values, keys and headers as they are on a terminal, too, where control characters are
    shown as \\x1b without it. A pipe or a file always gets them as they are."""

    @property
    @usage()
    def _shown(self) -> Shown:
        from ledger.errors import InvalidArgument

        if self.json and self.output not in (None, "json"):
            raise InvalidArgument(f"--json and -o {self.output} differ: give one of them")
        return "json" if self.json else self.output or "value"

    @property
    def are_values(self) -> bool:
        """Whether values are printed, nothing else, and as they are stored."""
        return self._shown == "value" and self.format is None

    @usage()
    def text(self) -> RecordText | None:
        """Returns what prints a record; None: JSON. Raises InvalidArgument."""
        from ledger.errors import InvalidArgument
        from stream.cli.record_text import record_text

        shown = self._shown
        if shown != "json":
            return record_text(shown, self.format, stored_bytes_shown(is_raw=self.raw))
        if self.format is not None:
            raise InvalidArgument(
                "JSON has all of a record: -f goes with -o value or -o base64, not with JSON"
            )
        return None


_CLUSTER = ClusterOption()
_MERGE = MergeOption()

_START = StartOption()
_SELECT = SelectOption()
_SHOW = ShowOption()


async def read(
    stream: str,
    /,
    *more: str,
    start: StartOption = _START,
    select: SelectOption = _SELECT,
    show: ShowOption = _SHOW,
    merge: MergeOption = _MERGE,
    cluster: ClusterOption = _CLUSTER,
) -> None:
    """Print the records of streams to their present end, a value per line.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM, or a pattern like "demo/clicks-*".
    more
        More streams or patterns, in the same namespace.
    """
    from stream.cli.arguments import parse_streams
    from stream.cli.connecting import connect
    from stream.core.position import EARLIEST

    first, names = start.first(EARLIEST), parse_streams([stream, *more])
    printer = _Printer(names.namespace, select.selection(), show)
    async with connect(cluster, names) as namespace:
        await _print(namespace, names, first, printer, merge, follow=False)


async def tail(
    stream: str,
    /,
    *more: str,
    start: StartOption = _START,
    select: SelectOption = _SELECT,
    show: ShowOption = _SHOW,
    merge: MergeOption = _MERGE,
    cluster: ClusterOption = _CLUSTER,
) -> None:
    """Follow streams: print records as they come, until Ctrl-C or until the time of --until.

    Parameters
    ----------
    stream
        NAMESPACE/STREAM, or a pattern like "demo/clicks-*": new streams that match it join.
    more
        More streams or patterns, in the same namespace.
    """
    from stream.cli.arguments import parse_streams
    from stream.cli.connecting import connect
    from stream.core.position import LATEST

    first, names = start.first(LATEST), parse_streams([stream, *more])
    printer = _Printer(names.namespace, select.selection(), show)
    async with connect(cluster, names) as namespace:
        await _print(namespace, names, first, printer, merge, follow=True)


async def _print(
    namespace: Namespace,
    names: StreamNames,
    start: Start,
    printer: _Printer,
    merge: MergeOption,
    *,
    follow: bool,
) -> None:
    from stream.core.position import FromEnd
    from stream.core.stream_patterns import StreamPatterns
    from stream.reading.selected_streams import find_streams

    streams = await find_streams(namespace.scope, StreamPatterns(names.streams))
    if not streams:
        _report_no_match(names, follow=follow)
    if tuple(streams) == names.streams and len(streams) == 1:
        await _print_one(namespace, streams[0], start, printer, merge, follow=follow)
        return
    printer.names_streams = True
    if not isinstance(start, FromEnd) or start.records == 0:
        await _print_merged(namespace, names, start, printer, merge, follow=follow)
    else:
        # The last records of all streams are known at once: no wait for quiet streams.
        found = await _last_of(namespace, streams, start.records)
        ordered = sorted(
            ((name, record) for name, records in found.items() for record in records),
            key=lambda named: merge.time_of(named[1]),
        )
        for name, record in ordered[-start.records :]:
            printer.show_records([record], name)
        if follow:
            behind = {name: rs[-1].position.after for name, rs in found.items() if rs}
            await _print_merged(namespace, names, behind, printer, merge, follow=True)


def _report_no_match(names: StreamNames, *, follow: bool) -> None:
    """Raises InvalidArgument, but if streams are followed that may be created later."""
    from ledger.errors import InvalidArgument

    patterns = ", ".join(f"{names.namespace}/{name}" for name in names.streams)
    if not follow:
        raise InvalidArgument(
            f"no stream matches {patterns}; `ledgerstream stream list {names.namespace}` shows all"
        )
    remark(f"no stream matches {patterns} yet")


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
        with printer.following(follow=follow) as following:
            async for batch in reader.batches() if follow else reader.read_to_end():
                if printer.selection.is_over(batch) or not printer.show(batch, stream):
                    return
        if following.cancelled_caught:
            async for batch in reader.read_to_end():
                if printer.selection.is_over(batch) or not printer.show(batch, stream):
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
        with printer.following(follow=follow) as following:
            async for merged in reader.batches():
                if not printer.show(merged.batch, merged.stream):
                    return
        behind = reader.positions()
    if following.cancelled_caught:
        await _print_merged(namespace, names, behind, printer, merge, follow=False)


async def _last_of(
    namespace: Namespace, streams: list[str], records: int
) -> dict[str, list[Record]]:
    """Returns the last records of each stream."""
    import trio

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
    """Writes up to the wanted number of the selected records."""

    def __init__(self, namespace: str, selection: Selection, shown: ShowOption) -> None:
        self.selection = selection
        self.names_streams = False
        """Whether JSON has a field for the stream: several are read."""
        self._namespace = namespace
        self._left = sys.maxsize if selection.count is None else selection.count
        self._text = shown.text()
        self._are_values = selection.is_all and shown.are_values
        self._stored = stored_bytes_shown(is_raw=shown.raw)

    @property
    def has_room(self) -> bool:
        return self._left > 0

    def following(self, *, follow: bool) -> trio.CancelScope:
        """Returns a scope that ends when no selected record will be appended any more. What was
        appended before may not have been read then."""
        import trio

        until_ms = self.selection.until_ms
        if not follow or until_ms is None:
            return trio.CancelScope()
        return trio.move_on_after(max(0.0, until_ms / 1000 - time.time()))

    def show(self, batch: RecordBatch, stream: str) -> bool:
        """Writes a batch; returns whether more are wanted."""
        if not self._are_values:
            return self.show_records(batch.records(), stream)
        if self._left > 0:
            values = map(self._stored, batch.values()[: self._left])
            write_output(b"\n".join(values) + b"\n")
        self._left -= len(batch)
        return self._left > 0

    def show_records(self, records: list[Record], stream: str) -> bool:
        """Writes those that are selected; returns whether more are wanted."""
        from stream.cli.record_text import json_line

        selected = self.selection.of(records)[: max(0, self._left)]
        if selected:
            name = f"{self._namespace}/{stream}"
            if self._text is None:
                named = stream if self.names_streams else None
                write_output(b"".join(json_line(record, named) for record in selected))
            else:
                write_output(b"".join(self._text(record, name) for record in selected))
        self._left -= len(selected)
        return self._left > 0
