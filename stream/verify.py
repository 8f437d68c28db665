"""Verifies a stream: every copy of every entry of its segments, or of the one that a receipt names.

`ledger.core.copies` decides the verdict of copies; this module knows which ledgers belong to the
stream, and checks that each holds what the metadata says. Changes nothing, fences no writer. A
segment that retention removes meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import trio

from ledger.copy_reader import SilentBookies
from ledger.core.copies import CopyState, CopyVerdict, LedgerReport
from ledger.errors import InvalidArgument, NoSuchLedger
from ledger.verify import ExpectedEntry, verify_entry, verify_ledger
from stream.core.metadata.segments import Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.receipt import Receipt
from stream.scope import NamespaceScope
from stream.store.partitions import PartitionStore

SEGMENTS_VERIFIED_MAX = 4
SEGMENTS_LISTED_AT_ONCE = 64
"""After each of these the stream is read again."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The report of one segment. `ledger` is None if its ledger could not be read; `problem` says
    what is wrong with the segment as a whole, "" for nothing."""

    stream: str
    segment: int
    ledger_id: int
    ledger: LedgerReport | None
    problem: str = ""

    @property
    def verdict(self) -> CopyVerdict:
        """The worst verdict of all its entries; DAMAGE if there is a problem."""
        if self.problem or self.ledger is None:
            return CopyVerdict.DAMAGE
        return self.ledger.verdict


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The copies of a stream as they were found; of a partitioned one, of all partitions.

    `receipt` is the one that was verified, if any: then there is one segment, with one entry.
    """

    stream: str
    segments: tuple[SegmentReport, ...]
    receipt: Receipt | None = None

    @property
    def verdict(self) -> CopyVerdict:
        """The worst verdict of all segments."""
        return max((segment.verdict for segment in self.segments), default=CopyVerdict.WHOLE)

    @property
    def entries(self) -> int:
        """The number of entries that were verified."""
        return sum(ledger.entries for ledger in self._ledgers())

    @property
    def payload_bytes(self) -> int:
        """The bytes of these entries, counted once."""
        return sum(ledger.payload_bytes for ledger in self._ledgers())

    @property
    def lost_entries(self) -> int:
        """The number of entries of which no whole copy is left, and none may be."""
        return sum(ledger.lost_entries for ledger in self._ledgers())

    @property
    def copies(self) -> Mapping[CopyState, int]:
        """How many copies were found in each state."""
        found: dict[CopyState, int] = {}
        for ledger in self._ledgers():
            for state, count in ledger.copies.items():
                found[state] = found.get(state, 0) + count
        return {state: found[state] for state in CopyState if state in found}

    def _ledgers(self) -> Iterator[LedgerReport]:
        return (segment.ledger for segment in self.segments if segment.ledger is not None)

    def as_dict(self) -> dict[str, object]:
        """Returns the report for JSON: sums, and each segment with its faults."""
        facts: dict[str, object] = {
            "stream": self.stream,
            "verdict": self.verdict.name.lower(),
            "entries": self.entries,
            "payload_bytes": self.payload_bytes,
            "copies": {state.value: count for state, count in self.copies.items()},
            "lost_entries": self.lost_entries,
            "segments": [_segment_dict(segment) for segment in self.segments],
        }
        if self.receipt is not None:
            facts["receipt"] = self.receipt.as_dict()
        return facts


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """The progress of a verification. `segments` is known from its begin."""

    stream: str
    segments_done: int
    segments: int
    entries: int
    payload_bytes: int


OnProgress = Callable[[VerifyProgress], None]


def _segment_dict(segment: SegmentReport) -> dict[str, object]:
    ledger = segment.ledger
    facts: dict[str, object] = {
        "stream": segment.stream,
        "segment": segment.segment,
        "ledger_id": segment.ledger_id,
        "verdict": segment.verdict.name.lower(),
    }
    if segment.problem:
        facts["problem"] = segment.problem
    if ledger is not None:
        facts |= {
            "first_entry": ledger.first_entry,
            "last_entry": ledger.last_entry,
            "entries": ledger.entries,
            "copies": {state.value: count for state, count in ledger.copies.items()},
            "lost_entries": ledger.lost_entries,
            "doubts": list(ledger.doubts),
            "faults": [
                {
                    "bookie": fault.bookie,
                    "state": fault.state.value,
                    "first_entry": fault.first_entry,
                    "last_entry": fault.last_entry,
                    "entries": fault.entries,
                    "detail": fault.detail,
                }
                for fault in ledger.faults
            ],
            "faults_left_out": ledger.faults_left_out,
        }
    return facts


async def verify_stream(
    scope: NamespaceScope,
    stream: str,
    *,
    receipt: Receipt | None = None,
    on_progress: OnProgress | None = None,
    silent: SilentBookies | None = None,
) -> StreamReport:
    """Verifies the copies; see `Namespace.verify`. `silent` is shared by many receipts in a row."""
    silent = silent or SilentBookies()
    if receipt is not None:
        return await _verify_receipt(scope, stream, receipt, silent)
    segments: list[SegmentReport] = []
    for name in await PartitionStore(scope.client.store).partition_names(scope.name, stream):
        segments += await _StreamVerifier(scope, name, on_progress, silent).run()
    return StreamReport(stream, tuple(segments))


class _StreamVerifier:
    """Verifies one stream that is not partitioned, a few segments at a time."""

    def __init__(
        self,
        scope: NamespaceScope,
        stream: str,
        on_progress: OnProgress | None,
        silent: SilentBookies,
    ) -> None:
        self._silent = silent
        self._scope = scope
        self._stream = stream
        self._on_progress = on_progress
        self._entries = 0
        self._payload_bytes = 0
        self._done = 0

    async def run(self) -> list[SegmentReport]:
        store, name = self._scope.store, self._scope.name

        async def live(stream: StreamMetadata) -> tuple[tuple[Span, ...], int]:
            found = await store.pages.resolve(stream, StreamMetadata.live)
            return found, stream.next_segment

        spans, behind = await store.consult(name, self._stream, live)
        total = sum(span.count for span in spans)
        self._report_progress(total)
        reports: list[SegmentReport] = []
        since = spans[0].number if spans else behind

        async def following(stream: StreamMetadata) -> list[Segment]:
            # What was truncated or purged meanwhile is left out, and what is new.
            first = await store.pages.resolve(stream, lambda s: s.span_at(stream.truncated_to))
            begin = stream.next_segment if first is None else first.number
            since_now = max(since, begin)
            found = await store.pages.listed(stream, since_now, SEGMENTS_LISTED_AT_ONCE)
            return [segment for segment in found if segment.number < behind]

        while since < behind:
            segments = await store.consult(name, self._stream, following)
            if not segments:
                break
            reports += await self._verify_all(segments, total)
            since = segments[-1].number + 1
        return reports

    async def _verify_all(self, segments: list[Segment], total: int) -> list[SegmentReport]:
        waiting = iter(segments)
        found: dict[int, SegmentReport | None] = {}

        async def verify_next() -> None:
            for segment in waiting:
                found[segment.number] = await self._verify(segment, total)
                self._done += 1
                self._report_progress(total)

        async with trio.open_nursery() as nursery:
            for _ in range(min(SEGMENTS_VERIFIED_MAX, len(segments))):
                nursery.start_soon(verify_next)
        reports = [found[segment.number] for segment in segments]
        return [report for report in reports if report is not None]

    async def _verify(self, segment: Segment, total: int) -> SegmentReport | None:
        """Verifies one segment; returns None if it was legally removed meanwhile."""

        def on_entries(entries: int, nbytes: int) -> None:
            self._entries += entries
            self._payload_bytes += nbytes
            self._report_progress(total)

        client, ledger, problem = self._scope.client, None, ""
        try:
            ledger = await verify_ledger(
                client, segment.ledger_id, on_entries=on_entries, silent=self._silent
            )
        except NoSuchLedger as error:
            present = await self._scope.stream_metadata(self._stream)
            if not await self._scope.store.pages.resolve(
                present, partial(_has_segment, segment=segment)
            ):
                return None
            problem = str(error)
        else:
            if not segment.is_open and ledger.last_entry != segment.last_entry:
                problem = (
                    f"the segment has entries 0..{segment.last_entry}, its ledger "
                    f"0..{ledger.last_entry}"
                )
        return SegmentReport(self._stream, segment.number, segment.ledger_id, ledger, problem)

    def _report_progress(self, segments: int) -> None:
        if self._on_progress is not None:
            self._on_progress(
                VerifyProgress(
                    self._stream, self._done, segments, self._entries, self._payload_bytes
                )
            )


def _has_segment(stream: StreamMetadata, segment: Segment) -> bool:
    """Whether the stream still names this segment."""
    present = stream.segment_on(segment.ledger_id)
    return present is not None and stream.is_live(present)


async def _verify_receipt(
    scope: NamespaceScope, stream: str, receipt: Receipt, silent: SilentBookies
) -> StreamReport:
    position, ledger_id = receipt.position, receipt.ledger_id
    if (receipt.namespace, receipt.stream) != (scope.name, stream):
        raise InvalidArgument(
            f"the receipt is for {receipt.namespace}/{receipt.stream}, not for "
            f"{scope.name}/{stream}"
        )
    problem = await _missing(scope, stream, receipt)
    ledger = None
    if not problem:
        expected = ExpectedEntry(receipt.entry_id, receipt.digest, receipt.bookies)
        try:
            ledger = await verify_entry(scope.client, ledger_id, expected, silent=silent)
        except NoSuchLedger as error:
            # If it was truncated meanwhile, this raises Truncated.
            problem = await _missing(scope, stream, receipt) or str(error)
    segment = SegmentReport(stream, position.segment, ledger_id, ledger, problem)
    return StreamReport(stream, (segment,), receipt)


async def _missing(scope: NamespaceScope, stream: str, receipt: Receipt) -> str:
    metadata = await scope.stream_metadata(stream)
    return await scope.store.pages.resolve(metadata, partial(_missing_from, receipt=receipt))


def _missing_from(stream: StreamMetadata, receipt: Receipt) -> str:
    """Returns why the stream cannot hold the record, "" if it can.

    Raises Truncated if the record was truncated, or is of an earlier stream of the name;
    InvalidArgument if it is of one whose numbers are those of this stream; PagesNeeded.
    """
    position = receipt.position
    stream.check_position(position)
    segment = stream.segment_on(receipt.ledger_id)
    if segment is None and stream.created_ms > receipt.append_time_ms:
        raise InvalidArgument(
            f"the receipt is for an earlier stream {stream.name!r}: that was deleted, and this "
            f"one was created at {stream.created_ms} ms, after the record "
            f"({receipt.append_time_ms} ms)"
        )
    if segment is None or segment.number != position.segment:
        return (
            f"the stream has no segment {position.segment} on ledger {receipt.ledger_id}, though "
            f"nothing from {stream.truncated_to} on was truncated"
        )
    if not segment.is_open and position.entry > segment.last_entry:
        return (
            f"segment {segment.number} ends at entry {segment.last_entry}: the record is not in it"
        )
    return ""
