"""Which ledgers may name a bookie by its new id, and what is stored then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.renaming import Hold, held_by, names_bookie, renamed
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState

BOOKIES = ("a:1", "b:1", "c:1", "d:1", "old:1")
NEW = "new:1"


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 3))
    firsts = sorted({0, *draw(st.lists(st.integers(1, 50), max_size=3))})
    ensembles = st.permutations(BOOKIES).map(lambda one: tuple(one[:size]))
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=size,
        write_quorum=size,
        ack_quorum=draw(st.integers(1, size)),
        state=state,
        fragments=tuple(Fragment(first, draw(ensembles)) for first in firsts),
        digest_type=DigestType.CRC32C,
        password=b"secret",
        last_entry_id=draw(st.integers(-1, 60)) if is_closed else -1,
        length=8 if is_closed else 0,
        custom={"tag": b"value"},
        c_token=9,
    )


@given(ledgers())
def test_only_the_name_changes_and_an_open_last_fragment_is_in_recovery(
    before: LedgerMetadata,
) -> None:
    after = renamed(before, "old:1", NEW)
    assert not names_bookie(after, "old:1")
    assert names_bookie(after, NEW) is names_bookie(before, "old:1")
    # The same places of the same ensembles; and it can be undone.
    assert [one.first_entry_id for one in after.fragments] == [
        one.first_entry_id for one in before.fragments
    ]
    back = renamed(after, NEW, "old:1")
    assert replace(back, state=before.state) == before
    is_fenced = before.state is LedgerState.OPEN and "old:1" in before.last_fragment.bookies
    assert after.state is (LedgerState.IN_RECOVERY if is_fenced else before.state)


@given(ledgers(), st.booleans(), st.booleans())
def test_the_last_fragment_of_a_writer_that_may_live_is_not_changed(
    ledger: LedgerMetadata, names_writer: bool, is_writer_alive: bool
) -> None:
    is_writer_alive &= names_writer
    hold = held_by(ledger, "old:1", names_writer=names_writer, is_writer_alive=is_writer_alive)
    if ledger.is_closed or "old:1" not in ledger.fragments[-1].bookies:
        assert hold is None
    elif ledger.state is LedgerState.IN_RECOVERY:
        assert hold is Hold.IN_RECOVERY
    elif is_writer_alive:
        assert hold is Hold.WRITER_LIVES
    else:
        assert hold is (None if names_writer else Hold.WRITER_UNKNOWN)


@pytest.mark.parametrize("hold", list(Hold))
def test_each_reason_names_its_cure(hold: Hold) -> None:
    assert "Cure: " in hold.value
