"""Which entry logs may go, when to seal one early, which tombstones to forget.

Pure twin of `bookie.storage.garbage_collector`. Must never name a log that holds an entry of a
living ledger; what is not known to be deleted is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ledger.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageOptions:
    """How garbage is collected. One round is one call of `collect`."""

    ledgers_per_round_max: int = 10_000
    """Ledgers asked about in one round; the next round goes on after them."""
    asks_per_s_max: float = 1000.0
    """Bounds the load on the metadata store."""
    seal_age_s: float = 3600.0
    """A current log this old is sealed if it holds a deleted ledger's entries, so that they
    give their space back although little is written."""
    tombstone_age_ms: int = 7 * 24 * 3600 * 1000
    """How long a deleted ledger is remembered, to refuse late writes and replayed frames.
    Must be longer than any writer may go on without seeing that its ledger is gone."""
    tombstones_max: int = 1_000_000

    def __post_init__(self) -> None:
        if self.ledgers_per_round_max < 1 or not self.asks_per_s_max > 0:
            raise InvalidArgument(
                f"ledgers_per_round_max {self.ledgers_per_round_max} and asks_per_s_max "
                f"{self.asks_per_s_max}: give more than 0"
            )
        if min(self.seal_age_s, self.tombstone_age_ms, self.tombstones_max) < 0:
            raise InvalidArgument("ages and bounds of garbage collection are never negative")


def is_droppable(ledgers: Iterable[int], is_alive: Callable[[int], bool]) -> bool:
    """May a sealed log with entries of these ledgers go? True for a log without any."""
    return not any(is_alive(ledger_id) for ledger_id in ledgers)


def should_seal(
    ledgers: Mapping[int, int], age_s: float, is_alive: Callable[[int], bool], seal_age_s: float
) -> bool:
    """Should the current log be sealed before it is full? `ledgers`: bytes by ledger."""
    return age_s >= seal_age_s and not all(is_alive(ledger_id) for ledger_id in ledgers)


def tombstones_to_forget(
    tombstones: Sequence[tuple[int, int]], now_ms: int, age_ms_max: int, count_max: int
) -> list[int]:
    """Ledgers whose tombstones may go: too old, or the oldest above `count_max`.

    `tombstones` is (time of deletion in ms, ledger id), oldest first.
    """
    surplus = len(tombstones) - count_max
    return [
        ledger_id
        for place, (deleted_ms, ledger_id) in enumerate(tombstones)
        if place < surplus or now_ms - deleted_ms > age_ms_max
    ]
