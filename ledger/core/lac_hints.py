"""Decides which bookies of a ledger are sent the last add confirmed by itself, and which can wait.

The next add carries the LAC to its bookies. Until one follows, only readers that wait for it need
it. A bookie of ours says with each ack whether any do (`ledger.wire.v2.NO_POLLS`): those with
readers, and those that say nothing, get it at once; the others when no add has followed for a
while, for readers that come later (docs/adr/0011). It is a lower bound, so that it is never wrong
to send it late, twice or to too many.
"""

from __future__ import annotations

from collections.abc import Iterable


class LacHints:
    """What each bookie of the ensemble said and was sent. Indices are those of the ensemble."""

    __slots__ = ("_sent", "carried", "unpolled")

    def __init__(self, ensemble_size: int) -> None:
        self.carried = -1
        """The last add confirmed that an add has carried."""
        self._sent = [-1] * ensemble_size
        self.unpolled: set[int] = set()
        """The bookies that said last that nobody waits there."""

    def said(self, index: int, *, is_unpolled: bool) -> None:
        """Records what the bookie said with an ack; by default nobody says anything."""
        if is_unpolled:
            self.unpolled.add(index)
        else:
            self.unpolled.discard(index)

    def due(self, owed: Iterable[int]) -> list[int]:
        """Returns which of the bookies that are owed the LAC must be notified now."""
        return [index for index in owed if index not in self.unpolled]

    def owed(self, confirmed: int, indices: Iterable[int]) -> list[int]:
        """Returns which of the bookies do not know that `confirmed` is."""
        if confirmed <= self.carried:
            return []
        return [index for index in indices if self._sent[index] < confirmed]

    def sent(self, index: int, confirmed: int) -> None:
        """Records that `confirmed` is sent to the bookie."""
        self._sent[index] = confirmed

    def lost(self, index: int, confirmed: int) -> None:
        """Records that it did not arrive there, unless a later one was sent since."""
        if self._sent[index] == confirmed:
            self._sent[index] = confirmed - 1
