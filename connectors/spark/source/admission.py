"""How much of each stream goes into a micro-batch: shares in records and bytes, as places.

The division is made in `core.admission`; here it meets entries, whose sizes are known only once
somebody has read their headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from connectors.spark.core.admission import Admission, Limits, Share, Waiting, admit
from connectors.spark.core.offsets import StreamOffset
from connectors.spark.source.stream_offsets import StreamPlaces
from ledger.runtime.concurrency import map_bounded


@dataclass(frozen=True, slots=True)
class Span:
    """What is to be read of a stream: at least one record."""

    places: StreamPlaces
    begin: StreamOffset
    end: StreamOffset

    @property
    def records(self) -> int:
        return self.end.sequence - self.begin.sequence

    @property
    def waiting(self) -> Waiting:
        nbytes = self.places.bytes_between(self.begin, self.end)
        entry = self.places.landmark_at(self.begin)
        next_bytes = -(-nbytes // self.records)
        if entry is not None:
            slot = self.begin.slot
            next_bytes = entry.bytes_at(slot + 1) - entry.bytes_at(slot)
        return Waiting(self.records, nbytes, next_bytes)


async def admitted(
    spans: Mapping[str, Span], limits: Limits, turn: str
) -> tuple[dict[str, StreamOffset], str]:
    """Where the micro-batch ends in each stream, within limits of records or bytes, and whose turn
    it is in the next one. Raises what reading ledgers raises."""
    admission, ends = await _shared_out(spans, limits, turn)
    if limits.bytes_max is not None and len(admission.shares) > 1:
        taken = sum(
            spans[name].places.bytes_between(spans[name].begin, ends[name]) for name in ends
        )
        if taken > limits.bytes_max:
            # A first record was larger than those behind it let expect. Now it is known.
            admission, ends = await _shared_out(spans, limits, turn)
    following = _next_turn(admission, spans, ends)
    for name, span in spans.items():
        ends.setdefault(name, span.begin)
    begun = {name: replace(end, begin=spans[name].begin.begin) for name, end in ends.items()}
    return begun, following


async def _shared_out(
    spans: Mapping[str, Span], limits: Limits, turn: str
) -> tuple[Admission, dict[str, StreamOffset]]:
    admission = admit({name: span.waiting for name, span in spans.items()}, limits, turn)
    names = list(admission.shares)

    async def of_one(name: str) -> StreamOffset:
        return await _end_of_share(
            spans[name], admission.shares[name], must_go_on=name == admission.first
        )

    return admission, dict(zip(names, await map_bounded(names, of_one), strict=True))


async def _end_of_share(span: Span, share: Share, *, must_go_on: bool) -> StreamOffset:
    """The last offset that the share allows. If it `must_go_on` a record passes in any case."""
    places, begin, end = span.places, span.begin, span.end
    found = end
    if share.nbytes is not None and places.bytes_between(begin, end) > share.nbytes:
        found = await places.ahead(begin, end, share.nbytes)
    if found.sequence - begin.sequence > share.records:
        found = await places.at_sequence(begin.sequence + share.records)
    if found.sequence <= begin.sequence:
        found = await places.at_sequence(begin.sequence + 1) if must_go_on else begin
    return found


def _next_turn(
    admission: Admission, spans: Mapping[str, Span], ends: Mapping[str, StreamOffset]
) -> str:
    """The first stream that got less than a record, else whose turn it is."""
    for name in ends:
        if ends[name].sequence <= spans[name].begin.sequence:
            return name
    return admission.turn
