"""Which replica each range of a plan is read from first, so that tasks do not queue at one bookie.

Ledgers list their bookies in orders of their own: the same place in two ensembles may be the same
bookie. Pure; a choice is never more than advice, any replica can answer.
"""

from __future__ import annotations

from ledger.core.metadata import LedgerMetadata


class ReplicaTurns:
    """Gives out turns for the ranges of one plan; remembers how many bytes each bookie serves.

    Bounded by the bookies that the ledgers of the plan name.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}

    def turn(self, metadata: LedgerMetadata, first_entry: int, nbytes: int, preferred: int) -> int:
        """The turn, 0 to write quorum - 1, for a range of so many stored bytes.

        Where every bookie of the ensemble holds every entry: that of the bookie with the fewest
        bytes so far, counted from `preferred` where several have. A ledger that is striped
        spreads each range by itself: `preferred`, which is counted round. Of a range in several
        fragments the first one decides.
        """
        served = self._bytes
        quorum = metadata.write_quorum
        bookies = metadata.fragment_of(first_entry).bookies
        preferred %= quorum
        if metadata.ensemble_size > quorum:
            for bookie in bookies:
                served[bookie] = served.get(bookie, 0) + nbytes // len(bookies)
            return preferred
        turns = ((preferred + i) % quorum for i in range(quorum))
        turn = min(turns, key=lambda each: served.get(bookies[each], 0))
        served[bookies[turn]] = served.get(bookies[turn], 0) + nbytes
        return turn
