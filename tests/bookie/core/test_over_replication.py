"""Which copies are not needed, and for how long they were not, against a naive twin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.over_replication import OverReplicationReport, UnneededCopies, is_unneeded
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState

AGE_S = 10


def _metadata(state: LedgerState, *ensembles: tuple[str, ...]) -> LedgerMetadata:
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=5,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        fragments=tuple(Fragment(10 * n, one) for n, one in enumerate(ensembles)),
        state=state,
        last_entry_id=99 if is_closed else -1,
        length=99 if is_closed else 0,
        digest_type=DigestType.CRC32C,
        password=b"",
    )


@pytest.mark.parametrize("state", list(LedgerState))
@pytest.mark.parametrize("at", [None, 0, 1, 2])
def test_only_closed_ledgers_that_name_the_bookie_nowhere_are_unneeded(
    state: LedgerState, at: int | None
) -> None:
    ensembles = [("a:1", "b:1"), ("b:1", "c:1"), ("c:1", "a:1")]
    if at is not None:
        ensembles[at] = ("a:1", "me:1")
    found = is_unneeded(_metadata(state, *ensembles), "me:1")
    assert found is (state is LedgerState.CLOSED and at is None)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.sampled_from(("found", "arriving", "forget", "due")),
            st.integers(0, 4),
        ),
        max_size=60,
    ),
    st.integers(1, 5),
)
def test_copies_are_due_when_they_were_unneeded_for_long_enough(
    steps: list[tuple[int, str, int]], count_max: int
) -> None:
    copies, now = UnneededCopies(AGE_S, 3), 0
    twin: list[tuple[int, int]] = []
    """Pairs (since, ledger) in the order of time."""
    for ledger_id, what, wait_s in steps:
        now += wait_s
        if what == "due":
            old = [ledger for since, ledger in twin if now - since >= AGE_S]
            assert copies.due(now, count_max) == old[:count_max]
        elif what == "forget":
            copies.forget(ledger_id)
            twin = [one for one in twin if one[1] != ledger_id]
        else:
            if what == "arriving":
                twin = [one for one in twin if one[1] != ledger_id]
            since = next((since for since, ledger in twin if ledger == ledger_id), None)
            if since is None and len(twin) < 3:
                twin.append((now, ledger_id))
            is_old = what == "found" and since is not None and now - since >= AGE_S
            assert copies.found(ledger_id, now, is_arriving=what == "arriving") is is_old
        assert len(copies) == len(twin)


def test_with_no_age_a_copy_is_due_at_once_unless_it_is_arriving() -> None:
    copies = UnneededCopies(0, 0)
    assert copies.found(1, 5)
    assert not copies.found(1, 5, is_arriving=True)


def test_reports_are_added_and_shown_without_zeros() -> None:
    total = OverReplicationReport(ledgers_asked=1, put_off="doubt")
    total.add(OverReplicationReport(ledgers_asked=2, copies_removed=3, put_off="other"))
    assert total == OverReplicationReport(ledgers_asked=3, copies_removed=3, put_off="doubt")
    assert str(total) == "ledgers_asked=3 copies_removed=3 put_off=doubt"
    assert str(OverReplicationReport()) == ""
