"""Verdicts about the copies of an entry, and a tally compared with plain counting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.copies import (
    DOUBTFUL,
    BadCopy,
    Copy,
    CopyState,
    CopyTally,
    CopyVerdict,
    judge,
)
from ledger.core.entry import Entry

GOOD = Entry(7, 0, -1, 3, b"abc")
OTHER = Entry(7, 0, -1, 3, b"abd")
ABSENT = BadCopy(CopyState.MISSING, "no")
ROTTEN = BadCopy(CopyState.CORRUPT, "digest")
SILENT = BadCopy(CopyState.UNREACHABLE, "no answer")
FAULTY = BadCopy(CopyState.UNREADABLE, "io error")
LIMBO = BadCopy(CopyState.UNKNOWN, "may have forgotten")


@pytest.mark.parametrize(
    ("copies", "verdict"),
    [
        ([GOOD, GOOD, GOOD], CopyVerdict.WHOLE),
        ([GOOD, GOOD, ABSENT], CopyVerdict.REDUCED),
        ([GOOD, ABSENT, ABSENT], CopyVerdict.DAMAGE),
        ([ABSENT, ABSENT, ABSENT], CopyVerdict.DAMAGE),
        ([GOOD, GOOD, SILENT], CopyVerdict.DOUBT),
        ([GOOD, GOOD, FAULTY], CopyVerdict.DOUBT),
        ([GOOD, GOOD, LIMBO], CopyVerdict.DOUBT),
        ([GOOD, ABSENT, SILENT], CopyVerdict.DOUBT),
        ([ABSENT, ABSENT, SILENT], CopyVerdict.DAMAGE),
        ([SILENT, SILENT, SILENT], CopyVerdict.DOUBT),
        ([GOOD, GOOD, ROTTEN], CopyVerdict.DAMAGE),
        ([SILENT, SILENT, ROTTEN], CopyVerdict.DAMAGE),
        ([GOOD, GOOD, OTHER], CopyVerdict.DAMAGE),
        ([GOOD, OTHER, ABSENT], CopyVerdict.DAMAGE),
    ],
)
def test_verdicts_for_three_copies_of_which_two_are_needed(
    copies: list[Copy], verdict: CopyVerdict
) -> None:
    assert judge(dict(zip("abc", copies, strict=True)), 2)[0] is verdict


def test_the_copy_in_the_minority_differs_and_without_a_majority_all_do() -> None:
    _, bad = judge({"a": GOOD, "b": OTHER, "c": GOOD}, 2)
    assert {b: c.state for b, c in bad.items()} == {"b": CopyState.DIFFERS}
    _, bad = judge({"a": GOOD, "b": OTHER}, 2)
    assert {b: c.state for b, c in bad.items()} == dict.fromkeys("ab", CopyState.DIFFERS)


def test_a_bookie_that_acknowledged_an_entry_must_have_it() -> None:
    copies: dict[str, Copy] = {"a": GOOD, "b": GOOD, "c": ABSENT}
    assert judge(copies, 2, acknowledged=("a", "b"))[0] is CopyVerdict.REDUCED
    assert judge(copies, 2, acknowledged=("a", "c"))[0] is CopyVerdict.DAMAGE
    assert judge(copies | {"c": SILENT}, 2, acknowledged=("a", "c"))[0] is CopyVerdict.DOUBT


def test_a_bookie_named_twice_has_one_copy() -> None:
    assert judge({"a": GOOD}, 2)[0] is CopyVerdict.WHOLE


@given(
    st.lists(
        st.lists(
            st.sampled_from([None, ABSENT, ROTTEN, SILENT, FAULTY, LIMBO]), min_size=3, max_size=3
        ),
        max_size=20,
    )
)
def test_a_tally_equals_plain_counting(kinds: list[list[BadCopy | None]]) -> None:
    tally = CopyTally(2)
    everything: list[dict[str, Copy]] = []
    for entry_id, three in enumerate(kinds):
        whole = Entry(7, entry_id, -1, 3 * entry_id + 3, b"abc")
        everything.append({b: c or whole for b, c in zip("abc", three, strict=True)})
        if not any(three):
            tally.add_equal([whole], 3)
        else:
            tally.add(entry_id, everything[-1])
    report = tally.report(7, is_closed=True, first_entry=0, last_entry=len(kinds) - 1)
    verdicts = [judge(copies, 2)[0] for copies in everything]
    assert report.verdict == max(verdicts, default=CopyVerdict.WHOLE)
    assert report.verdicts == {v: verdicts.count(v) for v in CopyVerdict if v in verdicts}
    states = [
        copy.state if isinstance(copy, BadCopy) else CopyState.WHOLE
        for copies in everything
        for copy in copies.values()
    ]
    assert report.copies == {s: states.count(s) for s in CopyState if s in states}
    assert report.copies_expected == 3 * len(kinds)
    assert report.entries == len(kinds)
    assert report.lost_entries == sum(
        all(c is not None and c.state not in DOUBTFUL for c in three) for three in kinds
    )
    reported = {
        (fault.bookie, fault.state, entry_id)
        for fault in report.faults
        for entry_id in range(fault.first_entry, fault.last_entry + 1)
    }
    assert reported == {
        (bookie, copy.state, entry_id)
        for entry_id, copies in enumerate(everything)
        for bookie, copy in copies.items()
        if isinstance(copy, BadCopy)
    }
    assert sum(fault.entries for fault in report.faults) == len(reported)


def test_copies_that_could_not_be_read_leave_the_verdict_unknown() -> None:
    report = CopyTally(2).report(
        7, is_closed=False, first_entry=0, last_entry=-1, doubts=["who knows where it ends"]
    )
    assert report.verdict is CopyVerdict.DOUBT


def test_runs_of_faults_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.core.copies.FAULTS_MAX", 3)
    tally = CopyTally(2)
    for entry_id in range(0, 20, 2):
        tally.add(entry_id, {"a": GOOD, "b": GOOD, "c": ABSENT})
    report = tally.report(7, is_closed=True, first_entry=0, last_entry=19)
    assert len(report.faults) == 3
    assert report.faults_left_out == 7
    assert report.verdicts == {CopyVerdict.REDUCED: 10}
