"""The writers of a partitioned stream's partitions: opened on demand, closed together.

Each lives in a task of its own, so that a failed one leaves the others alone. Their memory is
bounded together. Routing is in partitions/writer.py.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import trio

from ledger.errors import InvalidArgument, LedgerClosed, LedgerError
from stream.core.metadata.partitioned import PartitionedStream
from stream.core.names import partition_name
from stream.errors import PartitionsFailed
from stream.scope import NamespaceScope
from stream.takeover import StreamLedgers
from stream.writing.open_segment import WriterOptions
from stream.writing.policy_watch import PolicyWatch
from stream.writing.writer import StreamWriter, open_writer

OPENINGS_MAX = 16
PENDING_BYTES_MIN = 256 << 10
"""The minimum of unconfirmed bytes per partition, some batches, whatever the number of
partitions."""

_REOPEN_S = 5.0
"""How long records without a key avoid a partition that could not be opened."""


class _Opening:
    """The task of a partition: opening, open, or ended."""

    __slots__ = ("closing", "ended", "opened")

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.closing = trio.Event()
        self.ended = trio.Event()


class PartitionWriters:
    """The open writers: `open[number]` is that of a partition; a failed one stays there, with its
    error."""

    def __init__(
        self,
        scope: NamespaceScope,
        watch: PolicyWatch,
        stream: PartitionedStream,
        options: WriterOptions,
        nursery: trio.Nursery,
        own: Sequence[int] | None,
    ) -> None:
        self.open: dict[int, StreamWriter] = {}
        self._scope = scope
        self._watch = watch
        self._stream = stream.name
        self._count = stream.partitions
        self._options = options
        self._nursery = nursery
        self._own = None if own is None else dict.fromkeys(own)
        self._limiter = trio.CapacityLimiter(OPENINGS_MAX)
        self._openings: dict[int, _Opening] = {}
        self._errors: dict[int, LedgerError] = {}
        self._retry_at: dict[int, float] = {}
        self._close_errors: dict[int, LedgerError] = {}
        self._is_closing = False

    def grow(self, partitions: int) -> None:
        """Notes that there are `partitions` partitions now."""
        self._count = partitions

    def check(self, number: int) -> None:
        """Raises InvalidArgument for a partition that does not exist, or is not ours."""
        if not 0 <= number < self._count:
            raise InvalidArgument(
                f"stream {self._stream!r} has partitions 0 to {self._count - 1}, not {number}"
            )
        if self._own is not None and number not in self._own:
            raise InvalidArgument(
                f"stream {self._stream!r}: partition {number} is not one of those this writer "
                f"was opened for: {', '.join(map(str, self._own))}"
            )

    def want(self, number: int) -> None:
        """Begins to open a writer. Raises, once, why the last attempt failed; LedgerClosed."""
        self.check(number)
        if (error := self._errors.pop(number, None)) is not None:
            raise copy.copy(error)
        if self._is_closing:
            raise LedgerClosed(f"the writer of stream {self._stream!r} is closed")
        if number not in self._openings:
            opening = self._openings[number] = _Opening()
            self._nursery.start_soon(self._run, number, opening)

    def want_soon(self, number: int) -> bool:
        """Begins to open a writer without raising errors; returns False if it could not be opened a
        moment ago."""
        if trio.current_time() < self._retry_at.get(number, 0.0):
            return False
        self._errors.pop(number, None)
        self.want(number)
        return True

    async def opened(self, number: int, *, is_error_kept: bool = False) -> StreamWriter:
        """Returns the writer of a partition, opened if it is not. Raises why it could not be.

        `is_error_kept`: the next `want` raises it again.
        """
        while number not in self.open:
            if not is_error_kept or number not in self._errors:
                self.want(number)
            if (opening := self._openings.get(number)) is not None:
                await opening.opened.wait()
            if is_error_kept and number in self._errors:
                raise copy.copy(self._errors[number])
        return self.open[number]

    async def open_all(self) -> None:
        """Opens all partitions that are ours. Raises PartitionsFailed."""
        numbers = list(range(self._count) if self._own is None else self._own)
        for number in numbers:
            self.want(number)
        # One that could not be opened is removed from there by the time the others are open.
        for opening in [self._openings[number] for number in numbers]:
            await opening.opened.wait()
        if errors := {n: self._errors.pop(n) for n in numbers if n in self._errors}:
            raise PartitionsFailed(self._stream, errors, [n for n in numbers if n not in errors])

    async def reopen(self, number: int) -> None:
        """Opens another writer for a partition whose writer failed. Raises why there is none."""
        writer = self.open.get(number)
        if writer is not None and writer.error is not None:
            if (opening := self._openings.get(number)) is not None:  # otherwise it has just ended
                opening.closing.set()
                await opening.ended.wait()
            if self.open.get(number) is writer:
                del self.open[number]
                self._close_errors.pop(number, None)
        await self.opened(number)

    async def close(self) -> dict[int, LedgerError]:
        """Closes all writers at once; returns the errors of those that failed."""
        self._is_closing = True
        openings = list(self._openings.values())
        for opening in openings:
            opening.closing.set()
        for opening in openings:
            await opening.ended.wait()
        await trio.lowlevel.checkpoint()
        errors, self._close_errors = self._close_errors, {}
        return errors

    async def _run(self, number: int, opening: _Opening) -> None:
        """Opens one writer and keeps it until it is closed."""
        name = partition_name(self._stream, number)
        share = max(self._options.pending_bytes_max // self._count, PENDING_BYTES_MIN)
        options = replace(self._options, pending_bytes_max=share)
        scope = self._scope
        ledgers = StreamLedgers(scope.client, scope.store, scope.name, name)
        is_opening = True
        try:
            await self._limiter.acquire_on_behalf_of(opening)
            async with open_writer(ledgers, options, self._watch) as writer:
                self._limiter.release_on_behalf_of(opening)
                is_opening = False
                self.open[number] = writer
                opening.opened.set()
                await opening.closing.wait()
        except LedgerError as error:
            if is_opening:
                self._errors[number] = error
                self._retry_at[number] = trio.current_time() + _REOPEN_S
            else:
                self._close_errors[number] = error
        finally:
            if is_opening and opening in self._limiter.statistics().borrowers:
                self._limiter.release_on_behalf_of(opening)
            del self._openings[number]
            opening.opened.set()
            opening.ended.set()
