"""What a ledger has of a stream, and whether that is so little that it is merged with others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from stream.core.metadata.segments import Run, Span

SMALL_SHARE: Final = 8
"""A ledger is small if it has less than this part of each of its limits."""


@dataclass(frozen=True, slots=True)
class HeldLedger:
    """What a ledger holds of the stream: segments `first` to `last`. `is_whole`: nothing of it is
    elsewhere, and all of it can be read. `behind` are the bytes behind it."""

    ledger_id: int
    first: int
    last: int
    count: int
    nbytes: int
    oldest_ms: int
    newest_ms: int
    behind: int
    is_whole: bool

    def with_next(self, span: Span, behind: int) -> HeldLedger:
        return replace(
            self, last=span.last_number, count=self.count + span.count,
            nbytes=self.nbytes + span.nbytes, oldest_ms=min(self.oldest_ms, span.created_ms),
            newest_ms=max(self.newest_ms, span.newest_ms), behind=behind,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """What one merged ledger may have: bytes, segments, and time from its oldest to its newest
    record. Others have up to `roll_bytes`, those of an earlier policy also more."""

    nbytes: int
    segments: int
    span_ms: int
    roll_bytes: int

    @property
    def small_bytes(self) -> int:
        """A ledger with fewer bytes is small."""
        return max(1, self.nbytes // SMALL_SHARE)

    def share(self, ledger: HeldLedger) -> float:
        """Returns how much of the limits a ledger takes."""
        return max(
            ledger.nbytes / self.nbytes,
            ledger.count / self.segments,
            (ledger.newest_ms - ledger.oldest_ms) / self.span_ms,
        )

    def is_small(self, ledger: HeldLedger) -> bool:
        return self.share(ledger) * SMALL_SHARE < 1

    def has_few_small(self, run: Run) -> bool:
        """Whether at least seven of eight ledgers of this run are not small, by its sums. Where
        these are too high for its ledgers, some are above the limits, and they say nothing."""
        ledgers = run.ledgers + 1  # one may begin before it
        sums = (
            (run.nbytes, self.small_bytes, max(self.nbytes, self.roll_bytes)),
            (run.count, self.segments // SMALL_SHARE, self.segments),
        )
        large = [(total - ledgers * part) / max(1, full - part) for total, part, full in sums]
        return any(SMALL_SHARE * abs(ledgers - number) <= ledgers for number in large)
