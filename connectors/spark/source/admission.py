"""How much of each stream goes into a micro-batch: shares in records and bytes, as places.

The division is made in `core.admission`; here it meets entries, whose sizes are known only once
somebody has read their headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from connectors.spark.core.admission import Admission, Backlog, Limits, Quota, admit
from connectors.spark.core.offsets import StreamOffset
from connectors.spark.source.stream_index import StreamIndex
from ledger.runtime.concurrency import for_each


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """What is to be read of a stream: at least one record."""

    index: StreamIndex
    begin: StreamOffset
    end: StreamOffset

    @property
    def records(self) -> int:
        return self.end.sequence - self.begin.sequence

    @property
    def backlog(self) -> Backlog:
        nbytes = self.index.bytes_between(self.begin, self.end)
        entry = self.index.entry_at(self.begin)
        next_bytes = -(-nbytes // self.records)
        if entry is not None:
            slot = self.begin.slot
            next_bytes = entry.bytes_at(slot + 1) - entry.bytes_at(slot)
        return Backlog(self.records, nbytes, next_bytes)


async def admit_spans(
    spans: Mapping[str, ReadSpan], limits: Limits, turn: str
) -> tuple[dict[str, StreamOffset], str]:
    """Where the micro-batch ends in each stream, within limits of records or bytes, and whose turn
    it is in the next one. Raises what reading ledgers raises."""
    admission, ends = await _divide(spans, limits, turn)
    if limits.bytes_max is not None and len(admission.quotas) > 1:
        taken = sum(spans[name].index.bytes_between(spans[name].begin, ends[name]) for name in ends)
        if taken > limits.bytes_max:
            # A first record was larger than those behind it let expect. Now it is known.
            admission, ends = await _divide(spans, limits, turn)
    following = _next_turn(admission, spans, ends)
    for name, span in spans.items():
        ends.setdefault(name, span.begin)
    begun = {name: replace(end, begin=spans[name].begin.begin) for name, end in ends.items()}
    return begun, following


async def _divide(
    spans: Mapping[str, ReadSpan], limits: Limits, turn: str
) -> tuple[Admission, dict[str, StreamOffset]]:
    admission = admit({name: span.backlog for name, span in spans.items()}, limits, turn)
    names = list(admission.quotas)

    async def end_of(name: str) -> StreamOffset:
        return await _end_of_quota(
            spans[name], admission.quotas[name], must_go_on=name == admission.first
        )

    return admission, dict(zip(names, await for_each(names, end_of), strict=True))


async def _end_of_quota(span: ReadSpan, quota: Quota, *, must_go_on: bool) -> StreamOffset:
    """The last offset that the share allows. If it `must_go_on` a record passes in any case."""
    index, begin, end = span.index, span.begin, span.end
    found = end
    if quota.nbytes is not None and index.bytes_between(begin, end) > quota.nbytes:
        found = await index.ahead(begin, end, quota.nbytes)
    if found.sequence - begin.sequence > quota.records:
        found = await index.at_sequence(begin.sequence + quota.records)
    if found.sequence <= begin.sequence:
        found = await index.at_sequence(begin.sequence + 1) if must_go_on else begin
    return found


def _next_turn(
    admission: Admission, spans: Mapping[str, ReadSpan], ends: Mapping[str, StreamOffset]
) -> str:
    """The first stream that got less than a record, else whose turn it is."""
    for name in ends:
        if ends[name].sequence <= spans[name].begin.sequence:
            return name
    return admission.turn
