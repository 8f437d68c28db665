"""How well the ledgers of a cluster keep their placement.

A ledger has the worst grade of its fragments. Nothing is judged by what would be possible now: a
ledger with copies in one rack fails, also while there is only one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.policies import Grade, PlacementPolicy, placement_of
from ledger.core.placement.topology import Topology
from ledger.errors import MetadataCorrupt

_ORDER: Final = {Grade.FAIL: 0, Grade.SOFT: 1, Grade.STRICT: 2}


@dataclass(frozen=True, slots=True)
class GradedLedger:
    """The grade of one ledger, and of which fragment it is, by its first entry. `reason` is "" for
    STRICT; `policy` is None if the ledger names none that is known."""

    ledger_id: int
    policy: PlacementPolicy | None
    grade: Grade
    first_entry_id: int = 0
    reason: str = ""


def grade_ledger(metadata: LedgerMetadata, topology: Topology) -> GradedLedger:
    """Returns the grade of a ledger by its worst fragment, of equal ones the newest."""
    ledger_id = metadata.ledger_id
    try:
        policy = placement_of(metadata.custom)
    except MetadataCorrupt as error:
        return GradedLedger(ledger_id, None, Grade.FAIL, 0, str(error))
    worst: GradedLedger | None = None
    for fragment in reversed(metadata.fragments):
        grade, reason = policy.adherence(
            fragment.bookies, metadata.write_quorum, metadata.ack_quorum, topology
        )
        if worst is None or _ORDER[grade] < _ORDER[worst.grade]:
            worst = GradedLedger(ledger_id, policy, grade, fragment.first_entry_id, reason)
    assert worst is not None, "a ledger has fragments"
    return worst


@dataclass(slots=True)
class PlacementReport:
    """Counts ledgers by grade, and keeps up to `kept_max` of the worst, by grade and id."""

    kept_max: int
    counts: dict[Grade, int] = field(default_factory=lambda: dict.fromkeys(Grade, 0))
    worst: list[GradedLedger] = field(default_factory=list)

    def add(self, one: GradedLedger) -> None:
        self.counts[one.grade] += 1
        if one.grade is Grade.STRICT:
            return
        self.worst.append(one)
        if len(self.worst) > 2 * self.kept_max:
            self.cut()

    def cut(self) -> None:
        """Sorts the worst, and drops those beyond `kept_max`."""
        self.worst.sort(key=lambda one: (_ORDER[one.grade], one.ledger_id))
        del self.worst[self.kept_max :]
