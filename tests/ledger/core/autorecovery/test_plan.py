"""Plans of auto-recovery against a naive twin that looks at every entry and every bookie."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.autorecovery.bookies import LIVE, Bookies, BookieState, LostBookies
from ledger.core.autorecovery.plan import copies_left, plan, with_moved_copy
from ledger.core.availability import fragment_ranges
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import write_set
from ledger.errors import InvalidArgument, MetadataConflict, NotEnoughBookies

NAMES = [f"b{n}" for n in range(8)]


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(1, write_quorum))
    begins = [0, *sorted(draw(st.sets(st.integers(1, 20), max_size=3)))]
    fragments = tuple(
        Fragment(first, tuple(draw(st.permutations(NAMES))[:size])) for first in begins
    )
    is_closed = draw(st.booleans())
    last = draw(st.integers(max(-1, begins[-1] - 1), 24)) if is_closed else -1
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
        fragments=fragments,
        digest_type=DigestType.CRC32C,
        last_entry_id=last,
        length=100 if is_closed and last >= 0 else 0,
    )


@st.composite
def clusters(draw: st.DrawFn) -> Bookies:
    states = {
        name: draw(st.sampled_from(["up", "up", "up", "ro", "out", "down", "lost"]))
        for name in NAMES
    }
    return Bookies(
        writable=[name for name in NAMES if states[name] == "up"],
        read_only=[name for name in NAMES if states[name] in ("ro", "out")],
        emptying=[name for name in NAMES if states[name] == "out"],
        awaited=[name for name in NAMES if states[name] == "down"],
    )


def choose_from(bookies: Bookies):  # type: ignore[no-untyped-def]
    def choose(metadata: LedgerMetadata, fragment: Fragment, index: int) -> str:
        left = [one for one in sorted(bookies.writable) if one not in fragment.bookies]
        if not left:
            raise NotEnoughBookies("none is left")
        return left[0]

    return choose


@given(ledgers(), clusters())
def test_after_the_moves_only_copies_that_are_held_are_not_where_they_should_be(
    metadata: LedgerMetadata, bookies: Bookies
) -> None:
    found = plan(metadata, bookies, {}, choose_from(bookies))
    changed = metadata
    for move in found.moves:
        after = with_moved_copy(changed, move.first_entry_id, move.old, move.new)
        assert after is not None
        changed = after
    last = len(metadata.fragments) - 1
    unsafe = []
    for number, (before, now) in enumerate(zip(metadata.fragments, changed.fragments, strict=True)):
        assert len(set(now.bookies)) == len(now.bookies), "one bookie is one copy"
        if number == last and not metadata.is_closed:
            assert now == before, "it belongs to its writer"
            continue
        for old, new in zip(before.bookies, now.bookies, strict=True):
            state = bookies.state_of(old)
            if old != new:
                assert state not in (BookieState.WRITABLE, BookieState.READ_ONLY)
                assert bookies.state_of(new) is BookieState.WRITABLE
            elif state in (BookieState.LOST, BookieState.EMPTYING):
                unsafe.append(old)
    if unsafe:
        assert found.holds
    assert not found.fills
    assert changed == metadata or found.moves


@given(ledgers(), clusters())
def test_a_copy_moves_only_if_each_of_its_entries_has_a_live_copy(
    metadata: LedgerMetadata, bookies: Bookies
) -> None:
    found = plan(metadata, bookies, {}, choose_from(bookies))
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    for move in found.moves:
        fragment = metadata.fragments[move.number]
        fixed = metadata if metadata.is_closed else None
        if fixed is None:
            continue
        for first, last in fragment_ranges(fixed, move.number, move.index):
            for entry_id in range(first, last + 1):
                holders = [fragment.bookies[i] for i in write_set(entry_id, size, quorum)]
                assert move.old in holders
                assert any(bookies.state_of(one) in LIVE for one in holders)


@given(ledgers(), clusters())
def test_the_copies_left_are_those_of_the_worst_entry(
    metadata: LedgerMetadata, bookies: Bookies
) -> None:
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    counts = [quorum]
    for number, fragment in enumerate(metadata.fragments):
        ends = [one.first_entry_id for one in metadata.fragments[1:]] + [30]
        end = min(ends[number], metadata.last_entry_id + 1 if metadata.is_closed else 30)
        is_end = number == len(metadata.fragments) - 1 and not metadata.is_closed
        first = fragment.first_entry_id
        # Any of the entries to come, or of those that there are.
        entries = range(first, first + size) if is_end else range(first, end)
        if not is_end and len(entries) >= 1:
            entries = range(first, first + size)  # bounded by whole turns, see below
        for entry_id in entries:
            live = [
                bookies.state_of(fragment.bookies[i]) in LIVE
                for i in write_set(entry_id, size, quorum)
            ]
            counts.append(sum(live))
    assert copies_left(metadata, bookies) == min(counts)


def closed(*fragments: tuple[int, str], last: int = 9) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        fragments=tuple(Fragment(first, tuple(names.split())) for first, names in fragments),
        digest_type=DigestType.CRC32C,
        last_entry_id=last,
        length=1,
    )


def test_reasons_name_entries_and_holders() -> None:
    metadata = closed((0, "b0 b1"), (5, "b2 b3"))
    bookies = Bookies(writable=["b0", "b1", "b4"])
    (hold, _) = plan(metadata, bookies, {}, choose_from(bookies)).holds
    assert hold.reason == "no live copy of entries 5 to 9; last holders b2, b3"
    assert hold.bookies == ("b2", "b3")
    assert hold.is_loss
    waiting = Bookies(writable=["b0", "b1", "b4"], awaited=["b3"])
    assert not any(one.is_loss for one in plan(metadata, waiting, {}, choose_from(waiting)).holds)


@given(ledgers(), clusters())
def test_a_ledger_is_whole_only_if_all_of_its_bookies_are_there(
    metadata: LedgerMetadata, bookies: Bookies
) -> None:
    """Also without entries, and while it is open: to another process a bookie that may return is
    lost, and its mark must not be deleted here."""
    named = {one for fragment in metadata.fragments for one in fragment.bookies}
    states = {bookies.state_of(one) for one in named}
    found = plan(metadata, bookies, {}, choose_from(bookies))
    assert found.is_whole == (states <= {BookieState.WRITABLE, BookieState.READ_ONLY})
    awaited = [one for one in named if bookies.state_of(one) is BookieState.AWAITED]
    assert {f"bookie {one} is down and may return" for one in awaited} <= {
        hold.reason for hold in found.holds
    }


def test_a_lack_at_a_writable_bookie_is_filled_and_at_a_full_one_moved() -> None:
    metadata = closed((0, "b0 b1"))
    bookies = Bookies(writable=["b0", "b2"], read_only=["b1"])
    lacking = {"b0": [(1, 2)], "b1": [(3, 3)]}
    found = plan(metadata, bookies, lacking, choose_from(bookies))
    assert [(fill.bookie, fill.ranges) for fill in found.fills] == [("b0", ((1, 2),))]
    assert [(move.old, move.new) for move in found.moves] == [("b1", "b2")]
    assert not plan(metadata, bookies, {}, choose_from(bookies)).moves


def test_a_move_that_is_out_of_date_is_refused() -> None:
    metadata = closed((0, "b0 b1"), (5, "b0 b1"))
    assert with_moved_copy(metadata, 5, "b2", "b3") is None
    with pytest.raises(MetadataConflict, match="no fragment that begins at entry 4 now"):
        with_moved_copy(metadata, 4, "b0", "b3")
    with pytest.raises(InvalidArgument, match="one bookie is one copy"):
        with_moved_copy(metadata, 5, "b0", "b1")
    opened = LedgerMetadata(
        ledger_id=7,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        fragments=metadata.fragments,
        digest_type=DigestType.CRC32C,
    )
    with pytest.raises(MetadataConflict, match="its last fragment belongs to its writer"):
        with_moved_copy(opened, 5, "b0", "b3")
    moved = with_moved_copy(opened, 0, "b0", "b3")
    assert moved is not None
    assert moved.fragments == (Fragment(0, ("b3", "b1")), Fragment(5, ("b0", "b1")))


def test_one_lost_bookie_is_waited_for_two_are_not_and_an_outage_is() -> None:
    lost = LostBookies(60)
    known = NAMES[:5]
    lost.observe(known, known, 0)
    assert lost.awaited(0) == []
    lost.observe(known, known[1:], 10)
    assert (lost.awaited(69), lost.next_loss_s(69)) == (["b0"], 70)
    assert (lost.awaited(70), lost.next_loss_s(70)) == ([], None)
    lost.observe(known, known, 71)
    lost.observe(known, known[1:], 80)
    lost.observe(known, known[2:], 90)
    assert lost.awaited(90) == [], "with two copies gone nothing may be lost any more"
    lost.observe(known, known[3:], 100)
    assert lost.awaited(100) == ["b0", "b1", "b2"], "an outage"
    assert lost.awaited(141) == ["b1", "b2"]
    assert lost.down_since_s("b2") == 100
    lost.observe(known, known[2:], 150)
    assert lost.down_since_s("b2") is None


def test_random_histories_of_bookies_lose_none_that_is_registered() -> None:
    chance = random.Random(4)
    lost, now_s = LostBookies(30), 0.0
    for _ in range(2000):
        now_s += chance.expovariate(0.1)
        up = {name for name in NAMES if chance.random() < 0.8}
        lost.observe(NAMES, up, now_s)
        awaited = lost.awaited(now_s)
        assert not up & set(awaited)
        next_s = lost.next_loss_s(now_s)
        assert (next_s is None) == (not awaited)
        if next_s is not None:
            assert now_s < next_s <= now_s + 30
