"""When a writer may use a bookie again that failed under it.

Pure twin of `ledger.writing.ensemble_change`. The first failure costs a bookie nothing: it was
restarted, and is taken back when it returns. One that fails again and again, because its disk stays
slow, is taken back later each time: each change of an ensemble stays in the ledger's metadata for
ever, and resends all that is unconfirmed.
"""

from __future__ import annotations

from dataclasses import dataclass

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 600.0


@dataclass(slots=True)
class _Chance:
    pause_s: float
    returns_at: float
    taken_at: float | None = None


class BookieBackoff:
    """Of one writer. Holds no more than there are bookies in the cluster."""

    __slots__ = ("_known", "_steady_s")

    def __init__(self, steady_s: float) -> None:
        """`steady_s`: a bookie that held so long, and twice its last pause, is as good as new."""
        self._steady_s = steady_s
        self._known: dict[str, _Chance] = {}

    def failed(self, bookie: str, now_s: float) -> None:
        known = self._known.get(bookie)
        if known is None or known.taken_at is None:
            self._known[bookie] = _Chance(0.0, now_s)
            return
        if now_s - known.taken_at >= max(self._steady_s, 2 * known.pause_s):
            known.pause_s = 0.0
        else:
            known.pause_s = min(max(2 * known.pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
        known.returns_at, known.taken_at = now_s + known.pause_s, None

    def taken(self, bookie: str, now_s: float) -> None:
        """It is in the ensemble again."""
        known = self._known.get(bookie)
        if known is not None:
            known.taken_at = now_s

    def is_resting(self, bookie: str, now_s: float) -> bool:
        """Better without it for now, if that is possible."""
        known = self._known.get(bookie)
        return known is not None and now_s < known.returns_at
