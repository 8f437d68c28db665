"""Where a ledger ends that has entries behind a hole, against sets of entries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.metadata import Fragment, LedgerState
from ledger.core.repair import Hole, check_end, find_hole, repaired
from ledger.errors import InvalidArgument, RecoveryIncomplete
from tests.ledger.core.simulated_recovery import make_metadata

ENTRIES = st.sets(st.integers(0, 30), max_size=20)


@given(
    held=st.lists(ENTRIES, min_size=1, max_size=4), last=st.integers(-1, 30), closed=st.booleans()
)
def test_a_hole_is_the_first_entry_that_no_bookie_holds(
    held: list[set[int]], last: int, closed: bool
) -> None:
    metadata = make_metadata()
    everything = set().union(*held)
    if closed:
        metadata = metadata.closed(last, 0)
    else:
        last = max(everything, default=-1)
    ranges = [[(entry, entry) for entry in sorted(entries)] for entries in held]
    missing = [entry for entry in range(last + 1) if entry not in everything]
    found = find_hole(metadata, ranges)
    if not missing:
        assert found is None
        return
    behind = [entry for entry in everything if missing[0] < entry <= last]
    assert found == Hole(missing[0] - 1, len(missing), len(behind))


def test_a_forged_entry_far_behind_decides_nothing() -> None:
    hole = Hole(41, 10**12, 1)
    check_end(make_metadata(), hole, None)
    check_end(make_metadata(), hole, 41)
    with pytest.raises(InvalidArgument, match="is 41, not 40"):
        check_end(make_metadata(), hole, 40)


def test_as_many_entries_behind_a_hole_as_in_it_are_in_doubt() -> None:
    with pytest.raises(RecoveryIncomplete, match="give --end 41"):
        check_end(make_metadata(), Hole(41, 3, 3), None)
    check_end(make_metadata(), Hole(41, 3, 3), 41)


def test_ensembles_of_entries_after_the_end_are_dropped() -> None:
    names = ("b0", "b1", "b2")
    fragments = tuple(Fragment(first, names) for first in (0, 10, 42, 99))
    metadata = replace(make_metadata(fragments=fragments)).closed(120, 600)
    mended = repaired(metadata, 41, 210)
    assert (mended.state, mended.last_entry_id, mended.length) == (LedgerState.CLOSED, 41, 210)
    assert [f.first_entry_id for f in mended.fragments] == [0, 10, 42]
    assert [f.first_entry_id for f in repaired(metadata, -1, 0).fragments] == [0]
