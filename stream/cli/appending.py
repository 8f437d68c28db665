"""Appends the records of an input: many in flight at a time, in order, with a progress bar.

The last confirmed record is known at every moment, so that every end, by an error, Ctrl-C or a
closed pipe, can report what is durable. Receipts are printed when their records are durable.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from ledger.cli.output import causes_of, print_json, remark, write_output
from ledger.cli.standard_streams import StandardStreamFailed
from ledger.errors import InvalidArgument
from stream.errors import SequenceMismatch

if TYPE_CHECKING:
    from stream.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from stream.cli.arguments import StreamName
    from stream.cli.inputs import RecordInput, RecordParts
    from stream.namespace import Namespace
    from stream.partitions.ticket import PartitionPosition, PartitionTicket
    from stream.partitions.writer import PartitionedWriter
    from stream.writing.batch import Ticket
    from stream.writing.receipt import ReceiptTicket
    from stream.writing.writer import StreamWriter

    _Writer = StreamWriter | PartitionedWriter
    _Ticket = Ticket | PartitionTicket
    _Place = Position | PartitionPosition

Printed = Literal["nothing", "acks", "receipts"]

_BATCHES_AHEAD_MAX = 64
_INPUT_ERRORS = (InvalidArgument, SequenceMismatch, OSError, StandardStreamFailed)
"""Errors of a record or of the input: those taken before are not affected."""


class Appending:
    """The progress of one `append`."""

    def __init__(self, name: StreamName, printed: Printed, *, is_json: bool) -> None:
        self.name = name
        self.printed = printed
        self.count = 0
        self.nbytes = 0
        self.seconds = 0.0
        self.first: _Place | None = None
        self.last: _Place | None = None
        self.sequences: tuple[int, int] | None = None
        """Those of the first and the last record; None in a partitioned stream."""
        self._is_json = is_json

    def confirmed(self, count: int, nbytes: int, first: _Place, last: _Place) -> None:
        self.count += count
        self.nbytes += nbytes
        self.first = self.first or first
        self.last = last
        if self.printed != "acks":
            return
        if self._is_json:
            print_json({"last": str(last), "records": self.count})
        else:
            write_output(f"{last} {self.count}\n".encode())

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Reports what is durable if the block ends early, whatever the reason is."""
        from ledger.cli.standard_streams import OutputClosed

        try:
            yield
        except BaseException as error:
            if self.count:
                end = "error"
                if any(isinstance(cause, KeyboardInterrupt) for cause in causes_of(error)):
                    end = "interruption"
                elif any(isinstance(cause, OutputClosed) for cause in causes_of(error)):
                    end = "end of the output"
                remark(f"durable before the {end}: {self._records}, up to {self.last}")
            raise

    @property
    def _records(self) -> str:
        return f"{self.count} record{'' if self.count == 1 else 's'}"

    def summary(self) -> dict[str, Any]:
        seconds = self.seconds
        first, last = self.sequences or (None, None)
        return {
            "stream": str(self.name),
            "records": self.count,
            "bytes": self.nbytes,
            "first": None if self.first is None else str(self.first),
            "last": None if self.last is None else str(self.last),
            "first_sequence": first,
            "last_sequence": last,
            "seconds": round(seconds, 3),
            "records_per_s": round(self.count / seconds) if seconds > 0 else None,
            "mb_per_s": round(self.nbytes / seconds / 1e6, 2) if seconds > 0 else None,
        }

    def text(self) -> str:
        """Returns the summary in one line; a stream that is not partitioned has sequences."""
        text = f"appended {self._records} to {self.name}"
        if self.sequences is None:
            return text
        first, last = self.sequences
        return f"{text}: {first}" if first == last else f"{text}: {first}..{last}"


@dataclass(slots=True)
class _Taken:
    """Records of one read of the input that the writer has taken."""

    count: int = 0
    nbytes: int = 0
    input_bytes: int = 0
    first: _Ticket | None = None
    lasts: dict[int, _Ticket] = field(default_factory=dict)
    """The last record of each partition; of all, in this order, the last was taken last."""
    receipts: list[ReceiptTicket] = field(default_factory=list)

    def add(self, ticket: _Ticket, record: RecordParts) -> None:
        self.count += 1
        self.nbytes += len(record[0]) + (len(record[1]) if record[1] else 0)
        self.first = self.first or ticket
        partition = getattr(ticket, "partition", 0)
        self.lasts.pop(partition, None)
        self.lasts[partition] = ticket


async def append_records(
    namespace: Namespace,
    records: RecordInput,
    state: Appending,
    *,
    expected_sequence: int | None = None,
) -> None:
    """Appends all records of the input; returns when they are durable.

    To a partitioned stream they go by their keys, or by turns. With `expected_sequence` the first
    one must get this sequence number, and the others those behind it. An error of the input is
    raised when the records before it are durable.
    """
    import trio

    from ledger.cli.lines import size_of

    is_single = state.printed == "receipts" or expected_sequence is not None
    async with _writer(namespace, state.name, is_single=is_single) as writer:
        started_s = trio.current_time()
        with _progress(size_of(records.source)) as advance:
            await _append_all(_Appender(writer, records, expected_sequence, state), advance)
        state.seconds = trio.current_time() - started_s


@asynccontextmanager
async def _writer(
    namespace: Namespace, name: StreamName, *, is_single: bool
) -> AsyncIterator[_Writer]:
    if await namespace.partitions(name.stream) == [name.stream]:
        async with namespace.writer(name.stream) as writer:
            yield writer
    elif is_single:
        raise InvalidArgument(
            f"stream {name} is partitioned: append with receipts, or with an expected sequence, to "
            f"one partition, {name}#0 say"
        )
    else:
        async with namespace.partitioned_writer(name.stream) as partitioned:
            yield partitioned


class _Appender:
    """Gives the records of an input to a writer."""

    def __init__(
        self,
        writer: _Writer,
        records: RecordInput,
        expected_sequence: int | None,
        state: Appending,
    ) -> None:
        self.records = records
        self.state = state
        self._writer = writer
        self._expected = expected_sequence
        self._parse = records.parse
        self._lines = 0

    async def take(self, lines: list[bytes], taken: _Taken) -> None:
        """Appends the records of some lines. Raises InvalidArgument with the number of the line.
        Hot."""
        import trio

        writer, parse, number = self._writer, self._parse, self._lines
        append_nowait = writer.append_nowait if self._expected is None else self._append_expected
        self._lines += len(lines)
        taken.input_bytes = sum(map(len, lines)) + len(lines)
        for line in lines:
            number += 1
            try:
                record = parse(line)
                if record is None:
                    continue
                while True:
                    try:
                        ticket: _Ticket = append_nowait(*record)
                        break
                    except trio.WouldBlock:
                        await writer.wait_room()
            except InvalidArgument as error:
                raise self.records.located(number, error) from None
            taken.add(ticket, record)
            if self.state.printed == "receipts":
                taken.receipts.append(self._single.receipt_of(cast("Ticket", ticket)))

    @property
    def _single(self) -> StreamWriter:
        """The writer of a stream that is not partitioned."""
        return cast("StreamWriter", self._writer)

    def _append_expected(self, *record: *RecordParts) -> Ticket:
        assert self._expected is not None, "no sequence is expected"
        ticket = self._single.append_nowait(*record, expected_sequence=self._expected)
        self._expected += 1
        return ticket


async def _append_all(appender: _Appender, advance: Callable[[int, int], None]) -> None:
    """Appends in one task and waits for confirmations in another; a channel bounds the distance."""
    import trio

    send, receive = trio.open_memory_channel[_Taken](_BATCHES_AHEAD_MAX)
    failure: Exception | None = None

    async def wait_durable() -> None:
        async with receive:
            async for taken in receive:
                await _confirm(taken, appender.state)
                advance(taken.input_bytes, taken.count)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_durable)
        async with send, aclosing(appender.records.batches()) as batches:
            taken = _Taken()
            try:
                async for lines in batches:
                    taken = _Taken()
                    await appender.take(lines, taken)
                    if taken.count:
                        await send.send(taken)
                    taken = _Taken()
            except _INPUT_ERRORS as error:
                failure = error
                if taken.count:
                    await send.send(taken)
    if failure is not None:
        raise failure


async def _confirm(taken: _Taken, state: Appending) -> None:
    """Waits until the records are durable, and prints what was requested."""
    from stream.core.position import Position

    assert taken.first is not None, "something was taken"
    first = await taken.first.wait()
    for ticket in taken.lasts.values():
        last = await ticket.wait()
    if isinstance(last, Position):  # a stream that is not partitioned
        begin, end = cast("Ticket", taken.first), cast("Ticket", ticket)
        first_sequence = begin.sequence if state.sequences is None else state.sequences[0]
        state.sequences = first_sequence, end.sequence
    state.confirmed(taken.count, taken.nbytes, first, last)
    if taken.receipts:
        printed = [(await ticket.receipt()).to_json() for ticket in taken.receipts]
        write_output("".join(f"{receipt}\n" for receipt in printed).encode())


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
