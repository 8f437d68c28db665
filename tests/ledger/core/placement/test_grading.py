"""A ledger is graded by its worst fragment, and the worst ledgers are kept."""

from __future__ import annotations

import random

import pytest

from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.placement.grading import GradedLedger, PlacementReport, grade_ledger
from ledger.core.placement.policies import PLACEMENT_TAG, Grade, PlacementPolicy
from ledger.core.placement.topology import Candidates, Location, Place

TOPOLOGY = Candidates(
    {name: Place(name, Location("eu", rack)) for name, rack in zip("abcd", "1122", strict=True)}
)


def ledger(*ensembles: str, placement: bytes | None = b"rack") -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=len(ensembles[0]),
        write_quorum=2,
        ack_quorum=2,
        fragments=tuple(Fragment(10 * n, tuple(one)) for n, one in enumerate(ensembles)),
        digest_type=DigestType.CRC32C,
        custom={} if placement is None else {PLACEMENT_TAG: placement},
    )


def test_the_worst_fragment_counts_and_of_equal_ones_the_newest() -> None:
    policy = PlacementPolicy("rack")
    assert grade_ledger(ledger("ac", "bd"), TOPOLOGY) == GradedLedger(7, policy, Grade.STRICT, 10)
    found = grade_ledger(ledger("ac", "ab", "cd", "bd"), TOPOLOGY)
    assert (found.grade, found.first_entry_id) == (Grade.FAIL, 20)
    assert found.reason == "bookies c, d are in 1 rack (/eu/2), 2 are needed"


def test_a_ledger_without_a_policy_has_the_default() -> None:
    found = grade_ledger(ledger("ab", placement=None), TOPOLOGY)
    assert (found.policy, found.grade) == (PlacementPolicy(), Grade.STRICT)


def test_a_policy_of_an_unknown_form_fails() -> None:
    found = grade_ledger(ledger("ac", placement=b"cell"), TOPOLOGY)
    assert (found.policy, found.grade) == (None, Grade.FAIL)
    assert "b'cell'" in found.reason


@pytest.mark.parametrize("kept", [0, 1, 3, 100])
def test_a_report_keeps_the_worst(kept: int) -> None:
    rng, report = random.Random(kept), PlacementReport(kept)
    graded = [GradedLedger(n, None, rng.choice(list(Grade))) for n in range(200)]
    for one in graded:
        report.add(one)
        assert len(report.worst) <= 2 * kept
    report.cut()
    order = [Grade.FAIL, Grade.SOFT]
    expected = sorted(
        (one for one in graded if one.grade in order),
        key=lambda one: (order.index(one.grade), one.ledger_id),
    )
    assert report.worst == expected[:kept]
    assert report.counts == {grade: sum(one.grade is grade for one in graded) for grade in Grade}
