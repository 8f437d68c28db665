"""A writer and metadata that other clients change, compared with a twin of the whole history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, closed_by_writer, with_next_ensemble
from ledger.errors import LedgerFenced

BOOKIES = [f"b{i}" for i in range(8)]
ENSEMBLES = st.permutations(BOOKIES).map(lambda order: tuple(order[:3]))


def metadata(*fragments: tuple[int, tuple[str, ...]]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=tuple(Fragment(first, bookies) for first, bookies in fragments),
        digest_type=DigestType.CRC32C,
    )


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("writer"), st.integers(1, 9), ENSEMBLES),
            st.tuples(st.just("mover"), st.integers(0, 5), ENSEMBLES),
        ),
        max_size=12,
    )
)
def test_a_writer_and_a_mover_of_fragments_never_undo_each_other(
    steps: list[tuple[str, int, tuple[str, ...]]],
) -> None:
    """The mover may replace any fragment, as auto-recovery does, except the writer's last one."""
    stored = metadata((0, ("b0", "b1", "b2")))
    own = stored.last_fragment
    moved: dict[int, tuple[str, ...]] = {}
    for who, number, ensemble in steps:
        if who == "writer":
            if own.bookies == ensemble:
                continue
            changed = with_next_ensemble(stored, own, own.first_entry_id + number, ensemble)
            assert changed is not None
            # The previous fragment of the writer stays as the writer stored it.
            moved[own.first_entry_id] = own.bookies
            stored, own = changed, changed.last_fragment
            # The same change is stored again, because the response was lost.
            assert with_next_ensemble(stored, own, own.first_entry_id, ensemble) is None
        else:
            i = number % len(stored.fragments)
            fragments = list(stored.fragments)
            fragments[i] = Fragment(fragments[i].first_entry_id, ensemble)
            stored = metadata(*((f.first_entry_id, f.bookies) for f in fragments))
            if i < len(fragments) - 1:
                moved[fragments[i].first_entry_id] = ensemble
    closed = closed_by_writer(stored, own, 1000, 5000)
    assert closed is not None
    assert closed.is_closed
    assert closed.last_fragment == own
    assert {f.first_entry_id: f.bookies for f in closed.fragments[:-1]} == moved


def test_a_ledger_in_recovery_no_longer_belongs_to_its_writer() -> None:
    stored = metadata((0, ("b0", "b1", "b2")))
    own = stored.last_fragment
    with pytest.raises(LedgerFenced, match="took it over"):
        with_next_ensemble(stored.in_recovery(), own, 5, ("b0", "b1", "b3"))
    with pytest.raises(LedgerFenced, match="recovered"):
        closed_by_writer(stored.in_recovery(), own, 5, 50)


def test_an_additional_fragment_is_from_another_writer() -> None:
    stored = metadata((0, ("b0", "b1", "b2")), (4, ("b0", "b1", "b3")))
    own = stored.fragments[0]
    with pytest.raises(LedgerFenced, match="from entry 4, ours b0, b1, b2 from entry 0"):
        with_next_ensemble(stored, own, 9, ("b0", "b1", "b4"))
    with pytest.raises(LedgerFenced, match="from entry 4"):
        closed_by_writer(stored, own, 9, 90)


def test_closing_a_ledger_that_another_client_closed_depends_on_its_end() -> None:
    stored = metadata((0, ("b0", "b1", "b2"))).closed(9, 90)
    own = stored.last_fragment
    assert closed_by_writer(stored, own, 9, 90) is None
    with pytest.raises(LedgerFenced, match="at entry 9; this writer confirmed up to 12"):
        closed_by_writer(stored, own, 12, 120)


def test_a_writer_may_close_while_its_change_of_the_ensemble_is_in_flight() -> None:
    """The new ensemble is stored, and the writer ends before it receives the response."""
    old, new = ("b0", "b1", "b2"), ("b0", "b1", "b3")
    stored = metadata((0, ("b4", "b1", "b2")), (4, old), (10, new))
    closed = closed_by_writer(stored, Fragment(4, old), 9, 90)
    assert closed is not None
    assert (closed.is_closed, closed.last_entry_id, closed.length) == (True, 9, 90)
    assert closed.fragments == stored.fragments
    # Another client moved a fragment: the entries are where the writer stored them.
    moved = metadata((0, old), (4, ("b5", "b1", "b2")), (10, new))
    closed = closed_by_writer(moved, Fragment(4, old), 9, 90)
    assert closed is not None
    assert closed.fragments == metadata((0, old), (4, old), (10, new)).fragments
    # The change is not the writer's: it has two more fragments.
    with pytest.raises(LedgerFenced, match="from entry 7"):
        closed_by_writer(metadata((0, old), (4, old), (7, new), (10, old)), Fragment(4, old), 9, 90)
