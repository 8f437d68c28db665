"""Turns the quotas of a micro-batch, in records and bytes, into offsets at which it ends.

`core.admission` divides the limits. Here the quotas are applied to entries, whose sizes are known
only after their headers have been read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from connectors.spark.core.admission import Admission, Backlog, Limits, Quota, admit
from connectors.spark.core.offsets import StreamOffset
from connectors.spark.source.stream_index import StreamIndex
from ledger.runtime.concurrency import map_bounded


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """The unread records of a stream, at least one, and their stored bytes."""

    index: StreamIndex
    begin: StreamOffset
    end: StreamOffset
    records: int
    nbytes: int

    @classmethod
    async def of(cls, index: StreamIndex, begin: StreamOffset, end: StreamOffset) -> ReadSpan:
        records = await index.records_between(begin, end)
        return cls(index, begin, end, records, await index.bytes_between(begin, end))

    @property
    def backlog(self) -> Backlog:
        entry = self.index.entry_at(self.begin)
        next_bytes = -(-self.nbytes // self.records)
        if entry is not None:
            slot = self.begin.slot
            next_bytes = entry.bytes_at(slot + 1) - entry.bytes_at(slot)
        return Backlog(self.records, self.nbytes, next_bytes)


async def admit_spans(
    spans: Mapping[str, ReadSpan], limits: Limits, turn: str
) -> tuple[dict[str, StreamOffset], str]:
    """Returns the end of the micro-batch in each stream, and the first stream of the next one.

    The ends are within the limits of records and bytes. Raises what reading ledgers raises.
    """
    admission, ends = await _divide(spans, limits, turn)
    if limits.bytes_max is not None and len(admission.quotas) > 1:
        taken = 0
        for name, end in ends.items():
            taken += await spans[name].index.bytes_between(spans[name].begin, end)
        if taken > limits.bytes_max:
            # A first record was larger than estimated. Its size is known now.
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
            spans[name], admission.quotas[name], must_advance=name == admission.first
        )

    return admission, dict(zip(names, await map_bounded(names, end_of), strict=True))


async def _end_of_quota(span: ReadSpan, quota: Quota, *, must_advance: bool) -> StreamOffset:
    """Returns the last offset within the quota, or one record more if it `must_advance`."""
    index, begin, end = span.index, span.begin, span.end
    found = end
    if quota.nbytes is not None and span.nbytes > quota.nbytes:
        found = await index.ahead(begin, end, quota.nbytes)
    if await index.records_between(begin, found) > quota.records:
        found = await index.at_sequence(await index.sequence_after(begin, quota.records))
    if found.sequence <= begin.sequence:
        following = await index.sequence_after(begin, 1)
        found = await index.at_sequence(following) if must_advance else begin
    return found


def _next_turn(
    admission: Admission, spans: Mapping[str, ReadSpan], ends: Mapping[str, StreamOffset]
) -> str:
    """Returns the first stream that got no record, or else the one that `admission` names."""
    for name in ends:
        if ends[name].sequence <= spans[name].begin.sequence:
            return name
    return admission.turn
