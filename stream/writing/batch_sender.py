"""BatchSender: sends sealed batches to the open segment and confirms them in order.

Hot: a batch is one entry. Must never confirm a record before the metadata says that its segment
exists, nor out of order. accumulator.py gathers records into batches; segment_lifecycle.py changes
the segment that they are sent to.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

import trio

from ledger.core.times import CALENDAR_MS
from ledger.errors import LedgerError
from stream.core.entry.format import EntryHeader
from stream.core.producers import ProducerSet
from stream.errors import SequenceMismatch
from stream.writing.batch import Batch, BatchKind
from stream.writing.open_segment import OpenSegment

_log = logging.getLogger(__name__)

_UNWATCHED = 1 << 62
"""A size that no segment reaches."""


class BatchSender:
    """Sealed batches, ready and in flight. Guarantees: they are confirmed in the order in which
    they became ready.

    Args:
        stream: its name, for messages.
        now_ms: wall clock; gives the age of a segment.
        on_settled: called after batches were confirmed and the next ones were sent.
    """

    __slots__ = (
        "_has_warned", "_now_ms", "_on_settled", "confirmed_sequence", "entries_confirmed",
        "is_paused", "on_segment_event", "producers", "ready", "records_confirmed", "refused",
        "segment", "segment_bytes_watch", "sent", "stream", "unconfirmed_bytes",
    )  # fmt: skip

    def __init__(
        self, stream: str, now_ms: Callable[[], int], on_settled: Callable[[], None]
    ) -> None:
        self.stream = stream
        self.ready: deque[Batch] = deque()
        """Sealed and not yet sent."""
        self.sent: deque[Batch] = deque()
        """In flight: sent and not yet confirmed."""
        self.unconfirmed_bytes = 0
        """Bytes of both."""
        self.refused: SequenceMismatch | None = None
        """Why a conditional record was not appended, if no task waited for it: flushing raises."""
        self.is_paused = True
        """Nothing is sent while a segment is being opened or repaired."""
        self.segment: OpenSegment | None = None
        self.on_segment_event: Callable[[LedgerError | None], None] | None = None
        """Called when the segment needs attention: its ledger failed, or it has grown."""
        self.segment_bytes_watch = _UNWATCHED
        """Size of the segment at which `on_segment_event` is called."""
        self.confirmed_sequence = -1
        self.records_confirmed = 0
        self.entries_confirmed = 0
        self._now_ms = now_ms
        self._on_settled = on_settled
        self._has_warned = False
        self.producers = ProducerSet()
        """The producers of the segment's entries and of what may follow them."""

    async def wait_pending(self) -> None:
        """Returns when every batch that is ready or sent now is confirmed, or refused on its own.
        Raises the writer's error."""
        pending = self.ready or self.sent
        if not pending:
            await trio.lowlevel.checkpoint()
            return
        last = [pending[-1]]
        if pending[-1].kind is BatchKind.CONDITIONAL:
            # It may be refused before the others are durable.
            every = (*self.sent, *self.ready)
            last += [batch for batch in every if batch.kind is not BatchKind.CONDITIONAL][-1:]
        for batch in last:
            await batch.wait_settled()

    # Sending

    def send(self, batch: Batch) -> None:
        """Sends a sealed batch as soon as the ledger accepts it, after all that are ready."""
        self.ready.append(batch)
        self.unconfirmed_bytes += len(batch.payload)
        self.pump()

    def send_after(self, fill: Callable[[], None]) -> None:
        """Calls `fill`, which sends batches, and has the ledger send them without another turn of
        the loop."""
        if self.segment is None:
            fill()
        else:
            self.segment.ledger.send_after(fill)

    def pump(self) -> None:
        """Hands ready batches to the ledger as far as it accepts them."""
        ready, sent = self.ready, self.sent
        segment = self.segment
        while ready and not self.is_paused and segment is not None:
            batch = ready[0]
            try:
                entry = segment.ledger.append_nowait(batch.payload)
            except trio.WouldBlock:
                return
            except LedgerError as error:
                self.ledger_failed(segment, error)
                return
            ready.popleft()
            batch.segment, batch.entry = segment, entry
            if batch.is_watched:
                batch.watch_acks()
            sent.append(batch)
            if not segment.entries:
                segment.first_time_ms = batch.append_time_ms
                segment.since_ms = self._now_ms()
            segment.last_time_ms = batch.append_time_ms
            segment.entries += 1
            segment.records += batch.count
            segment.nbytes += len(batch.payload)
            if batch.producer_id or batch.has_event_times:
                header = segment.count_header(batch.payload)
                if batch.has_event_times and not self._has_warned:
                    self._check_event_times(header)
            if segment.nbytes >= self.segment_bytes_watch and self.on_segment_event is not None:
                self.segment_bytes_watch = _UNWATCHED
                self.on_segment_event(None)

    def _check_event_times(self, header: EntryHeader) -> None:
        """Warns, once for each writer, if an event time is outside every calendar."""
        times_ms = header.event_time_min_ms, header.event_time_max_ms
        unusual = [time_ms for time_ms in times_ms if time_ms not in CALENDAR_MS]
        if unusual:
            self._has_warned = True
            _log.warning(
                "stream %r: event time %d ms is in no year from 1 to 9999. Cure: give milliseconds "
                "since 1970, not microseconds or nanoseconds. It is stored as given, and shown as "
                "a number; this writer does not warn again",
                self.stream, unusual[-1],
            )  # fmt: skip

    # Confirming

    def use_segment(self, segment: OpenSegment) -> None:
        """Sends to this segment from now on."""
        self.segment = segment
        ledger = segment.ledger
        # Every unconfirmed batch may be sent to this segment, or to one after it.
        pending = (*self.sent, *self.ready)
        self.producers = ProducerSet(batch.producer_id for batch in pending)

        def confirmed(entry: int) -> None:
            segment.confirmed = entry
            self.settle()

        def failed(error: LedgerError) -> None:
            self.ledger_failed(segment, error)

        ledger.on_confirmed = confirmed
        ledger.on_failed = failed

    def ledger_failed(self, segment: OpenSegment, error: LedgerError) -> None:
        """Stops sending until the segment is repaired, and reports the error."""
        self.is_paused = True
        segment.ledger.on_confirmed = segment.ledger.on_failed = None
        if self.on_segment_event is not None:
            self.on_segment_event(error)

    def settle(self) -> None:
        """Confirms batches, in order, as far as ledgers and metadata allow, and sends the next."""
        sent = self.sent
        while sent:
            batch = sent[0]
            segment = batch.segment
            assert segment is not None, "sent to no segment"
            if batch.entry > segment.confirmed or not segment.is_published:
                break
            sent.popleft()
            self.unconfirmed_bytes -= len(batch.payload)
            self.records_confirmed += batch.count
            self.confirmed_sequence = batch.first_sequence + batch.count
            self.entries_confirmed += 1
            batch.confirm()
        if self.ready:
            self.pump()
        self._on_settled()

    # Repair

    def take_back(self, last_entries: Mapping[OpenSegment, int]) -> None:
        """Makes batches ready again, in order, that are not in an ended segment.

        `last_entries` has the last entry of each ended segment that the stream kept: batches up to
        there are confirmed.
        """
        again: list[Batch] = []
        for batch in self.sent:
            segment = batch.segment
            if segment is not None and batch.entry <= last_entries.get(segment, -1):
                assert not again, f"stream {self.stream!r}: a batch before a kept one is lost"
                segment.confirmed = max(segment.confirmed, batch.entry)
            else:
                batch.segment, batch.entry = None, -1
                again.append(batch)
        for _ in again:
            self.sent.pop()
        self.ready.extendleft(reversed(again))

    def renumber(self, first_sequence: int, append_time_ms: int) -> int:
        """Moves ready batches to later sequences, because a sink committed a batch before them.

        Conditional ones are refused. Returns the sequence after the last one.
        """
        ready, sequence = list(self.ready), first_sequence
        self.ready.clear()
        for batch in ready:
            if batch.kind is BatchKind.CONDITIONAL:
                self.unconfirmed_bytes -= len(batch.payload)
                self.refuse(batch, batch.first_sequence, sequence)
                continue
            batch.restamp(sequence, append_time_ms)
            sequence += batch.count
            self.ready.append(batch)
        return sequence

    def refuse(self, batch: Batch, expected: int, sequence: int) -> None:
        """Ends a batch without appending it: its records would get other sequences than
        expected."""
        error = SequenceMismatch(self.stream, expected, sequence)
        if not batch.has_record_waiter:
            self.refused = error
        batch.fail(error)

    def fail(self, error: LedgerError) -> None:
        """Abandons the ledger and fails every batch: the writer can confirm nothing any more."""
        self.is_paused = True
        if self.segment is not None:
            self.segment.ledger.on_confirmed = self.segment.ledger.on_failed = None
            self.segment.ledger.abandon()
        for batch in (*self.sent, *self.ready):
            batch.fail(error)
        self.sent.clear()
        self.ready.clear()
