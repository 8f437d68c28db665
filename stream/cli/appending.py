"""Appends lines to a stream: many in flight at a time, in order, with a progress bar.

The last confirmed record is known at every moment, so that an error can report it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from ledger.cli.lines import Input, line_batches, size_of
from ledger.cli.output import print_json, remark, write_output
from ledger.errors import LedgerError
from stream.core.entry.format import RECORD_BYTES_MAX
from stream.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from stream.cli.arguments import StreamName
    from stream.namespace import Namespace
    from stream.partitions.writer import PartitionedWriter, PartitionPosition, PartitionTicket
    from stream.writing.batch import Ticket
    from stream.writing.writer import StreamWriter

    _Writer = StreamWriter | PartitionedWriter
    _Ticket = Ticket | PartitionTicket
    _Place = Position | PartitionPosition

_BATCHES_AHEAD_MAX = 64


class Appending:
    """The progress of one `append`."""

    def __init__(self, *, prints_acks: bool, is_json: bool) -> None:
        self.count = 0
        self.nbytes = 0
        self.first: _Place | None = None
        self.last: _Place | None = None
        self._prints_acks = prints_acks
        self._is_json = is_json

    def confirmed(self, count: int, nbytes: int, last: _Place) -> None:
        self.count += count
        self.nbytes += nbytes
        self.last = last
        if not self._prints_acks:
            return
        if self._is_json:
            print_json({"last": str(last), "records": self.count})
        else:
            write_output(f"{last} {self.count}\n".encode())

    def summary(self, name: StreamName, seconds: float) -> dict[str, Any]:
        return {
            "stream": str(name),
            "records": self.count,
            "bytes": self.nbytes,
            "first": None if self.first is None else str(self.first),
            "last": None if self.last is None else str(self.last),
            "seconds": round(seconds, 3),
            "records_per_s": round(self.count / seconds) if seconds > 0 else None,
            "mb_per_s": round(self.nbytes / seconds / 1e6, 2) if seconds > 0 else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The source of the keys: one key for all lines, or the text before a separator."""

    constant: bytes | None = None
    separator: bytes | None = None

    def split(self, line: bytes) -> tuple[bytes | None, bytes]:
        """Returns key and value. A line without the separator has no key."""
        if self.separator is None:
            return self.constant, line
        key, separator, value = line.partition(self.separator)
        return (key, value) if separator else (None, line)


NO_KEYS = Keys()


async def append_lines(
    namespace: Namespace,
    name: StreamName,
    source: Input,
    *,
    prints_acks: bool,
    is_json: bool,
    keys: Keys = NO_KEYS,
) -> dict[str, Any]:
    """Appends all lines of `source`; returns when they are durable.

    To a partitioned stream they go by their keys, or by turns.
    """
    state = Appending(prints_acks=prints_acks, is_json=is_json)
    try:
        async with _writer(namespace, name.stream) as writer:
            started_s = trio.current_time()
            with _progress(size_of(source)) as advance:
                await _append_all(writer, source, keys, state, advance)
            seconds = trio.current_time() - started_s
    except* LedgerError:
        if state.last is not None:
            remark(f"durable before the error: {state.count} records, up to {state.last}")
        raise
    return state.summary(name, seconds)


@asynccontextmanager
async def _writer(namespace: Namespace, stream: str) -> AsyncIterator[_Writer]:
    if await namespace.partitions(stream) == [stream]:
        async with namespace.writer(stream) as writer:
            yield writer
    else:
        async with namespace.partitioned_writer(stream) as partitioned:
            yield partitioned


async def _append_all(
    writer: _Writer,
    source: Input,
    keys: Keys,
    state: Appending,
    advance: Callable[[int, int], None],
) -> None:
    """Appends in one task and waits for confirmations in another; a channel bounds the distance."""
    send, receive = trio.open_memory_channel[tuple[int, int, "list[_Ticket]"]](_BATCHES_AHEAD_MAX)

    async def wait_durable() -> None:
        async with receive:
            async for count, nbytes, tickets in receive:
                for ticket in tickets:
                    last = await ticket.wait()
                state.confirmed(count, nbytes, last)
                advance(nbytes + count, count)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_durable)
        async with send, aclosing(line_batches(source, RECORD_BYTES_MAX)) as batches:
            async for lines in batches:
                first, lasts = await _append_batch(writer, lines, keys)
                if state.first is None:
                    state.first = await first.wait()
                await send.send((len(lines), sum(map(len, lines)), lasts))


async def _append_batch(
    writer: _Writer, lines: list[bytes], keys: Keys
) -> tuple[_Ticket, list[_Ticket]]:
    """Returns the ticket of the first line, and of the last line in each partition."""
    first: _Ticket | None = None
    lasts: dict[int, _Ticket] = {}
    for line in lines:
        key, value = keys.split(line)
        ticket: _Ticket
        while True:
            try:
                ticket = writer.append_nowait(value, key)
            except trio.WouldBlock:
                await writer.wait_room()
            else:
                break
        first = first or ticket
        partition = getattr(ticket, "partition", 0)
        lasts.pop(partition, None)
        lasts[partition] = ticket
    assert first is not None, "a batch has at least one line"
    return first, list(lasts.values())


@contextmanager
def _progress(total_bytes: int | None) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on a terminal, nothing elsewhere. Yields a function of bytes and records done."""
    if not sys.stderr.isatty():
        yield lambda nbytes, records: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.fields[records]:,} records"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("append", total=total_bytes, records=0)
        done = 0

        def advance(nbytes: int, records: int) -> None:
            nonlocal done
            done += records
            progress.update(task, advance=nbytes, records=done)

        yield advance
