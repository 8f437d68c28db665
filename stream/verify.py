"""Verifies a stream: every copy of every entry of its segments, or of the one that a receipt names.

`ledger.core.copies` decides the verdict of copies; this module knows which ledgers belong to the
stream, and checks that each holds what the metadata says. Changes nothing, fences no writer. A
segment that retention removes meanwhile is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

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
    """The report of one segment, or of merged neighbours up to number `last_segment`, which share a
    ledger. `ledger` is None if that could not be read; `problem` says what is wrong with the
    segment as a whole, "" for nothing."""

    stream: str
    segment: int
    ledger_id: int
    ledger: LedgerReport | None
    problem: str = ""
    last_segment: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_segment", max(self.segment, self.last_segment))

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
    if segment.last_segment > segment.segment:
        facts["last_segment"] = segment.last_segment
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
        ledgers = groupby(segments, key=lambda segment: segment.ledger_id)
        groups = [list(group) for _, group in ledgers]
        waiting = iter(groups)
        found: dict[int, SegmentReport | None] = {}

        async def verify_next() -> None:
            for group in waiting:
                found[group[0].number] = await self._verify(group, total)
                self._done += len(group)
                self._report_progress(total)

        async with trio.open_nursery() as nursery:
            for _ in range(min(SEGMENTS_VERIFIED_MAX, len(groups))):
                nursery.start_soon(verify_next)
        reports = [found[group[0].number] for group in groups]
        return [report for report in reports if report is not None]

    async def _verify(self, group: Sequence[Segment], total: int) -> SegmentReport | None:
        """Verifies one segment, or neighbours on one ledger; returns None if they were legally
        removed meanwhile."""

        def on_entries(entries: int, nbytes: int) -> None:
            self._entries += entries
            self._payload_bytes += nbytes
            self._report_progress(total)

        client, ledger, problem = self._scope.client, None, ""
        first, last = group[0], group[-1]
        end = None if last.is_open else last.base_entry + last.last_entry
        try:
            ledger = await verify_ledger(
                client, first.ledger_id, first=first.base_entry,
                last=end if last.is_merged else None, on_entries=on_entries, silent=self._silent,
            )  # fmt: skip
        except NoSuchLedger as error:
            moved = await self._present(group)
            if not moved:
                return None
            if moved[0].ledger_id != first.ledger_id:
                return await self._verify(moved, total)  # they were merged meanwhile
            problem = str(error)
        else:
            if end is not None and ledger.last_entry != end:
                problem = (
                    f"the segment has entries {first.base_entry}..{end}, its ledger "
                    f"{ledger.first_entry}..{ledger.last_entry}"
                )
        return SegmentReport(
            self._stream, first.number, first.ledger_id, ledger, problem, last.number
        )

    async def _present(self, group: Sequence[Segment]) -> list[Segment]:
        """Returns those of these segments that can be read now, with the ledger that has them."""
        store, numbers = self._scope.store, {segment.number for segment in group}

        async def present(stream: StreamMetadata) -> list[Segment]:
            since = await store.pages.resolve(stream, lambda known: known.first_available.segment)
            return await store.pages.listed(stream, max(since, group[0].number), len(group))

        found = await store.consult(self._scope.name, self._stream, present)
        return [segment for segment in found if segment.number in numbers]

    def _report_progress(self, segments: int) -> None:
        if self._on_progress is not None:
            self._on_progress(
                VerifyProgress(
                    self._stream, self._done, segments, self._entries, self._payload_bytes
                )
            )


async def _verify_receipt(
    scope: NamespaceScope, stream: str, receipt: Receipt, silent: SilentBookies
) -> StreamReport:
    position, ledger_id = receipt.position, receipt.ledger_id
    if (receipt.namespace, receipt.stream) != (scope.name, stream):
        raise InvalidArgument(
            f"the receipt is for {receipt.namespace}/{receipt.stream}, not for "
            f"{scope.name}/{stream}"
        )
    ledger = None
    problem = ""
    try:
        found = await _segment_of(scope, stream, receipt)
        if isinstance(found, str):
            problem = found
        else:
            ledger_id, expected = found.ledger_id, _expected(found, receipt)
            ledger = await verify_entry(scope.client, ledger_id, expected, silent=silent)
    except NoSuchLedger as error:
        # If it was truncated meanwhile, this raises Truncated.
        again = await _segment_of(scope, stream, receipt)
        if not isinstance(again, str) and again.ledger_id != ledger_id:
            return await _verify_receipt(scope, stream, receipt, silent)  # it was merged meanwhile
        problem = again if isinstance(again, str) else str(error)
    segment = SegmentReport(stream, position.segment, ledger_id, ledger, problem)
    return StreamReport(stream, (segment,), receipt)


def _expected(segment: Segment, receipt: Receipt) -> ExpectedEntry:
    """Returns what the bookies have to have. The digest covers ids, which a merge has changed, and
    it has chosen bookies of its own."""
    if segment.is_merged:
        return ExpectedEntry(segment.base_entry + receipt.entry_id, None, ())
    return ExpectedEntry(receipt.entry_id, receipt.digest, receipt.bookies)


async def _segment_of(scope: NamespaceScope, stream: str, receipt: Receipt) -> Segment | str:
    metadata = await scope.stream_metadata(stream)
    return await scope.store.pages.resolve(metadata, partial(_holding, receipt=receipt))


def _holding(stream: StreamMetadata, receipt: Receipt) -> Segment | str:
    """Returns the segment that has the record, or why the stream cannot have it.

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
    return segment
