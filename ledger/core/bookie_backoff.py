"""Decides when a writer may use a bookie again that failed. Shell: `writing.ensemble_change`.

The first failure has no consequence: the bookie was restarted, and is used again when it returns.
A bookie that fails repeatedly, because its disk stays slow, is used again later each time: each
ensemble change stays in the ledger's metadata permanently, and resends all unconfirmed entries.
"""

from __future__ import annotations

from dataclasses import dataclass

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 600.0


@dataclass(slots=True)
class _Record:
    pause_s: float
    returns_at: float
    taken_at: float | None = None


class BookieBackoff:
    """The back-offs of one writer, at most one per bookie of the cluster."""

    __slots__ = ("_known", "_steady_s")

    def __init__(self, steady_s: float) -> None:
        """A bookie that worked for `steady_s`, and for twice its last pause, has a clean record."""
        self._steady_s = steady_s
        self._known: dict[str, _Record] = {}

    def failed(self, bookie: str, now_s: float) -> None:
        known = self._known.get(bookie)
        if known is None or known.taken_at is None:
            self._known[bookie] = _Record(0.0, now_s)
            return
        if now_s - known.taken_at >= max(self._steady_s, 2 * known.pause_s):
            known.pause_s = 0.0
        else:
            known.pause_s = min(max(2 * known.pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
        known.returns_at, known.taken_at = now_s + known.pause_s, None

    def taken(self, bookie: str, now_s: float) -> None:
        """Records that the bookie is in the ensemble again."""
        known = self._known.get(bookie)
        if known is not None:
            known.taken_at = now_s

    def is_resting(self, bookie: str, now_s: float) -> bool:
        """Whether the bookie should not be used now if there is another one."""
        known = self._known.get(bookie)
        return known is not None and now_s < known.returns_at
