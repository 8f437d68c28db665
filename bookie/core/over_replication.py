"""Decides which copies a bookie does not need: those of ledgers whose metadata names others.

The pure core of `bookie.over_replication`. Whole ledgers only: one that names the bookie in any
fragment keeps all of its entries here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ledger.core.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class OverReplicationOptions:
    """`interval_s` between two passes over all ledgers, 0: only forced ones. `age_s`: how long a
    copy must have been unneeded, unless the round is forced."""

    interval_s: float
    age_s: float
    asks_per_s_max: float
    removals_per_s_max: float


def is_unneeded(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Returns whether the metadata of a closed ledger names the bookie nowhere. The entries of an
    open one may be in ensembles that its writer, or a recovery, has yet to store."""
    is_named = any(bookie_id in fragment.bookies for fragment in metadata.fragments)
    return metadata.is_closed and not is_named


class UnneededCopies:
    """Since when each copy has been found unneeded.

    A worker makes a copy first, and changes the metadata then. So a copy is removed by itself only
    when it has been unneeded for a while, during which none of its entries arrived.
    """

    def __init__(self, age_s: float, count_max: int) -> None:
        """`count_max` bounds the memory: copies beyond it are found again by a later pass."""
        self._age_s = age_s
        self._count_max = count_max
        self._since: dict[int, float] = {}
        """In the order of time."""

    def __len__(self) -> int:
        return len(self._since)

    def found(self, ledger_id: int, now: float, *, is_arriving: bool = False) -> bool:
        """Records that a copy is unneeded now; returns whether it was so for long enough.
        `is_arriving`: entries of it may have arrived just now, so that the time begins again."""
        if is_arriving:
            self._since.pop(ledger_id, None)
        since = self._since.get(ledger_id)
        if since is None:
            since = now
            if len(self._since) < self._count_max:
                self._since[ledger_id] = now
        return not is_arriving and now - since >= self._age_s

    def forget(self, ledger_id: int) -> None:
        """Records that the copy is needed, or gone."""
        self._since.pop(ledger_id, None)

    def due(self, now: float, count_max: int) -> list[int]:
        """Returns the first copies that were unneeded for long enough, those of the longest time
        first."""
        due: list[int] = []
        for ledger_id, since in self._since.items():
            if now - since < self._age_s or len(due) == count_max:
                break
            due.append(ledger_id)
        return due


@dataclass(slots=True)
class OverReplicationReport:
    """What was found and done, in one round or since the bookie began to run."""

    ledgers_asked: int = 0
    """Ledgers with entries here whose metadata was read."""
    asks_failed: int = 0
    """Those that kept their copy because metadata or index could not be read."""
    copies_unneeded: int = 0
    """Copies of closed ledgers whose metadata does not name the bookie."""
    copies_young: int = 0
    """Of these, were not unneeded for long enough."""
    copies_locked: int = 0
    """... belong to ledgers that a replication worker works on."""
    copies_lacking: int = 0
    """... belong to ledgers that are marked as lacking copies."""
    copies_changed: int = 0
    """... belong to ledgers whose metadata changed meanwhile."""
    copies_removed: int = 0
    put_off: str = ""
    """Why nothing was examined; "" if it was."""

    def add(self, other: OverReplicationReport) -> None:
        """Adds the counts of a round."""
        for field in fields(self):
            if field.name != "put_off":
                total = getattr(self, field.name) + getattr(other, field.name)
                setattr(self, field.name, total)

    @property
    def did_something(self) -> bool:
        return bool(self.asks_failed or self.copies_unneeded or self.put_off)

    def __str__(self) -> str:
        """Returns one line for a log, without what is zero."""
        return " ".join(
            f"{field.name}={value}"
            for field in fields(self)
            if (value := getattr(self, field.name))
        )
