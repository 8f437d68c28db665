"""BatchSender: sends sealed batches to the open segment and confirms them in order.

Hot: a batch is one entry. Must never confirm a record before the metadata says that its segment
exists, nor out of order. What gathers records into batches is outbox.py, who changes the segment
under it segment_changes.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import trio

from ledger.errors import LedgerError
from stream.core.producers import ProducerSet
from stream.errors import SequenceMismatch
from stream.writing.batch import CONDITIONAL, Batch
from stream.writing.open_segment import OpenSegment


class BatchSender:
    """Batches ready and sent. Guarantees: confirmed in the order they became ready.

    Args:
        stream: its name, for messages.
        now_ms: wall clock; tells the age of a segment.
    """

    # Slots: with more than 29 attributes in a dict each access to one costs more.
    __slots__ = (
        "_mixture", "_now_ms", "_ready", "_sent", "confirmed_sequence", "entries_confirmed",
        "error", "is_paused", "on_segment_event", "records_confirmed", "refused", "sealed_bytes",
        "segment", "segment_bytes_watch", "stream",
    )  # fmt: skip

    def __init__(self, stream: str, now_ms: Callable[[], int]) -> None:
        self.stream = stream
        self.error: LedgerError | None = None
        self.refused: SequenceMismatch | None = None
        """A conditional record was not appended, and nobody waited for it: who flushes hears."""
        self.is_paused = True
        """Nothing is sent while a segment is being opened or repaired."""
        self.segment: OpenSegment | None = None
        self.on_segment_event: Callable[[LedgerError | None], None] | None = None
        """Called when the segment should be looked after: its ledger failed, or it has grown."""
        self.segment_bytes_watch = 1 << 62
        self.sealed_bytes = 0
        self.confirmed_sequence = -1
        self.records_confirmed = 0
        self.entries_confirmed = 0
        self._now_ms = now_ms
        self._ready: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()
        self._mixture = ProducerSet()

    def settled(self) -> None:
        """Batches may have been confirmed: there may be room, and reason to send."""
        raise NotImplementedError

    async def pending_settled(self) -> None:
        """Returns when all that is ready or sent now is confirmed, or refused alone. Raises the
        error."""
        pending = self._ready or self._sent
        if not pending:
            await trio.lowlevel.checkpoint()
            return
        last = [pending[-1]]
        if pending[-1].producer_id == CONDITIONAL:
            # It may be refused before what is not conditional is durable.
            every = (*self._sent, *self._ready)
            last += [batch for batch in every if batch.producer_id != CONDITIONAL][-1:]
        for batch in last:
            await batch.settled()

    # Sending

    def pump(self) -> None:
        """Hands ready batches to the ledger as far as it takes them."""
        ready, sent = self._ready, self._sent
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
                segment.note(batch.payload)
            if segment.nbytes >= self.segment_bytes_watch and self.on_segment_event is not None:
                self.segment_bytes_watch = 1 << 62
                self.on_segment_event(None)

    # Answers

    def use_segment(self, segment: OpenSegment) -> None:
        """Sends to this segment from now on."""
        self.segment = segment
        ledger = segment.ledger
        # What is not confirmed may be sent to this segment, or to one after it.
        pending = (*self._sent, *self._ready)
        self._mixture = ProducerSet(max(0, batch.producer_id) for batch in pending)

        def confirmed(entry: int) -> None:
            segment.confirmed = entry
            self.settle()

        def failed(error: LedgerError) -> None:
            self.ledger_failed(segment, error)

        ledger.on_confirmed = confirmed
        ledger.on_failed = failed

    def ledger_failed(self, segment: OpenSegment, error: LedgerError) -> None:
        """Stops sending; whoever looks after segments repairs."""
        self.is_paused = True
        segment.ledger.on_confirmed = segment.ledger.on_failed = None
        if self.on_segment_event is not None:
            self.on_segment_event(error)

    def settle(self) -> None:
        """Confirms batches, in order, as far as ledgers and metadata allow."""
        sent = self._sent
        while sent:
            batch = sent[0]
            segment = batch.segment
            assert segment is not None, "sent to no segment"
            if batch.entry > segment.confirmed or not segment.is_published:
                break
            sent.popleft()
            self.sealed_bytes -= len(batch.payload)
            self.records_confirmed += batch.count
            self.confirmed_sequence = batch.first_sequence + batch.count
            self.entries_confirmed += 1
            batch.confirm()
        self.settled()

    def take_back(self, held: Mapping[OpenSegment, int]) -> None:
        """The segments that were sent to have ended: what is in those of `held`, up to its entry,
        is confirmed, everything behind it will be sent again, in order."""
        again: list[Batch] = []
        for batch in self._sent:
            segment = batch.segment
            if segment is not None and batch.entry <= held.get(segment, -1):
                assert not again, f"stream {self.stream!r}: what came before it is not there"
                segment.confirmed = max(segment.confirmed, batch.entry)
            else:
                batch.segment, batch.entry = None, -1
                again.append(batch)
        for _ in again:
            self._sent.pop()
        self._ready.extendleft(reversed(again))

    def renumber(self, first_sequence: int, append_time_ms: int) -> int:
        """What is to be sent begins at this sequence now, later than it was made for, because a
        batch of a sink came before it. Conditional records are refused. Returns what comes next."""
        ready, sequence = list(self._ready), first_sequence
        self._ready.clear()
        for batch in ready:
            if batch.producer_id == CONDITIONAL:
                self.sealed_bytes -= len(batch.payload)
                self.refuse(batch, batch.first_sequence, sequence)
                continue
            batch.restamp(sequence, append_time_ms)
            sequence += batch.count
            self._ready.append(batch)
        return sequence

    def refuse(self, batch: Batch, expected: int, sequence: int) -> None:
        """Its records would not have the sequences they were taken for: they are not appended."""
        error = SequenceMismatch(self.stream, expected, sequence)
        if not batch.is_waited_for:
            self.refused = error
        batch.fail(error)
