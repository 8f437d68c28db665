"""Counts how many ledgers and fragments name each bookie, by one paced pass over the metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from ledger.cli.output import remark
from ledger.core.metadata import LedgerMetadata
from ledger.errors import MetadataCorrupt, NoSuchLedger
from ledger.metastore.ledgers import LedgerStore
from ledger.runtime.concurrency import map_bounded

READS_PER_S_MAX: Final = 2000.0
_PER_STEP: Final = 100
_SHOWN_EVERY: Final = 10_000


@dataclass(slots=True)
class LedgerCounts:
    """What was counted so far. A ledger counts once for each bookie, whatever its fragments."""

    ledgers: dict[str, int] = field(default_factory=dict)
    fragments: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    """Ledgers whose metadata cannot be read: they may name any bookie."""

    def add(self, metadata: LedgerMetadata) -> None:
        """Counts one ledger."""
        for fragment in metadata.fragments:
            for bookie in fragment.bookies:
                self.fragments[bookie] = self.fragments.get(bookie, 0) + 1
        for bookie in dict.fromkeys(b for one in metadata.fragments for b in one.bookies):
            self.ledgers[bookie] = self.ledgers.get(bookie, 0) + 1

    def columns(self, bookie: str) -> dict[str, int]:
        """Returns the columns of a table row about a bookie."""
        return {
            "ledgers": self.ledgers.get(bookie, 0),
            "fragments": self.fragments.get(bookie, 0),
        }


def show_count(done: int, total: int) -> None:
    """Prints now and then how many ledgers were read."""
    if done % _SHOWN_EVERY == 0:
        remark(f"ledgers read: {done} of {total}")


async def count_ledgers(
    ledgers: LedgerStore,
    on_counted: Callable[[int, int], None],
    *,
    reads_per_s_max: float = READS_PER_S_MAX,
) -> LedgerCounts:
    """Reads the metadata of every ledger. `on_counted` gets how many were read, and of how many.
    Ledgers that are created or deleted meanwhile may be counted or not. Raises
    MetadataUnavailable."""
    counts = LedgerCounts()

    async def count(ledger_id: int) -> None:
        try:
            metadata, _ = await ledgers.read(ledger_id)
        except NoSuchLedger:
            return  # deleted after the listing
        except MetadataCorrupt:
            counts.unreadable += 1
            return
        counts.add(metadata)

    ids = await ledgers.list()
    begun = trio.current_time()
    for begin in range(0, len(ids), _PER_STEP):
        step = ids[begin : begin + _PER_STEP]
        await map_bounded(step, count)
        on_counted(begin + len(step), len(ids))
        await trio.sleep_until(begun + (begin + len(step)) / reads_per_s_max)
    return counts
