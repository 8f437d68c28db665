"""Which bookies get the last add confirmed at once, which later, and which not at all."""

from __future__ import annotations

from ledger.core.lac_hints import LacHints

ALL = (0, 1, 2)


def test_a_bookie_that_says_nothing_is_notified_at_once() -> None:
    hints = LacHints(3)
    assert hints.due(hints.owed(4, ALL)) == [0, 1, 2]
    for index in ALL:
        hints.sent(index, 4)
    assert hints.due(hints.owed(4, ALL)) == hints.owed(4, ALL) == []


def test_where_nobody_waits_it_is_owed_until_an_add_has_carried_it() -> None:
    hints = LacHints(3)
    hints.said(0, is_unpolled=True)
    hints.said(2, is_unpolled=True)
    assert hints.due(hints.owed(4, ALL)) == [1]
    hints.sent(1, 4)
    assert hints.owed(4, ALL) == [0, 2]
    hints.carried = 4
    assert hints.owed(4, ALL) == []
    assert hints.owed(5, ALL) == [0, 1, 2]


def test_a_reader_that_came_makes_it_due() -> None:
    hints = LacHints(1)
    hints.said(0, is_unpolled=True)
    assert hints.due(hints.owed(1, (0,))) == []
    hints.said(0, is_unpolled=False)
    assert hints.due(hints.owed(1, (0,))) == [0]


def test_what_was_lost_is_due_again_unless_a_later_one_was_sent() -> None:
    hints = LacHints(2)
    hints.sent(0, 7)
    hints.sent(1, 8)
    hints.lost(0, 7)
    hints.lost(1, 7)
    assert hints.due(hints.owed(7, (0, 1))) == [0]
