"""Decides when a writer may use a bookie again, and replace another. Shell:
`writing.ensemble_change`.

The first failure has no consequence: the bookie was restarted, and is used again when it returns.
A bookie that fails repeatedly, because its disk stays slow, is used again later each time: each
ensemble change stays in the ledger's metadata permanently, and resends all unconfirmed entries.
For the same reason replacements that fail before they acknowledged an add are not followed by
others at once: perhaps every bookie refuses what this writer sends.
"""

from __future__ import annotations

from dataclasses import dataclass

PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 600.0
CHANGE_PAUSE_S_MIN = 0.25
CHANGE_PAUSE_S_MAX = 60.0


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

    def failed(self, bookie: str, now_s: float, *, is_unproved: bool = False) -> None:
        """Records a failure; `is_unproved`: it was a replacement and has acknowledged nothing."""
        known = self._known.get(bookie)
        if is_unproved and (known is None or known.taken_at is None):
            self._known[bookie] = _Record(PAUSE_S_MIN, now_s + PAUSE_S_MIN)
            return
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


class ReplacementPace:
    """How long a writer waits before its next ensemble change.

    A replacement is proved by an acknowledged add. The pause doubles with every ensemble change of
    which a replacement failed unproved, and ends with the first proof.
    """

    __slots__ = ("_failed_changes", "_is_counted", "_taken")

    def __init__(self) -> None:
        self._failed_changes = 0
        self._is_counted = False
        self._taken: dict[int, int] = {}

    def changed(self, acks: dict[int, int]) -> None:
        """Records an ensemble change. `acks` is `AppendCore.acks_of` of each index replaced."""
        self._is_counted = False
        self._taken.update(acks)

    def failed(self, index: int, acks: int) -> bool:
        """Records that the bookie at `index` failed with adds in flight. Returns whether it was a
        replacement that had acknowledged none."""
        taken = self._taken.pop(index, None)
        if taken is None:
            return False
        if acks != taken:
            self._failed_changes = 0
            return False
        if not self._is_counted:
            self._is_counted = True
            self._failed_changes += 1
        return True

    @property
    def pause_s(self) -> float:
        if self._failed_changes < 2:  # one bookie may always fail right after it was chosen
            return 0.0
        doublings = min(self._failed_changes - 2, 10)
        return min(CHANGE_PAUSE_S_MIN * 2.0**doublings, CHANGE_PAUSE_S_MAX)
