"""Deadlines of parked polls."""

from __future__ import annotations

from bookie.core.long_polls import LongPoll, ParkedPolls


def test_polls_are_answered_once_by_whichever_comes_first() -> None:
    answered: list[str] = []
    polls = ParkedPolls(10)
    early = LongPoll(lambda: answered.append("early"), lambda: False)
    late = LongPoll(lambda: answered.append("late"), lambda: False)
    assert polls.park(late, 5.0)
    assert polls.park(early, 3.0)
    assert polls.next_deadline() == 3.0
    early.answer()
    assert polls.next_deadline() == 5.0
    polls.expire(4.0)
    assert answered == ["early"]
    polls.expire(5.0)
    late.answer()
    assert answered == ["early", "late"]
    assert polls.next_deadline() is None


def test_answered_polls_make_room() -> None:
    polls = ParkedPolls(3)
    parked = [LongPoll(lambda: None, lambda: False) for _ in range(3)]
    for deadline, poll in enumerate(parked):
        polls.park(poll, deadline)
    assert polls.is_full
    parked[1].answer()
    assert not polls.is_full


def test_polls_of_peers_that_left_make_room() -> None:
    polls = ParkedPolls(2)
    gone: list[bool] = []
    for deadline in range(2):
        polls.park(LongPoll(lambda: None, lambda: bool(gone)), deadline)
    assert polls.is_full
    gone.append(True)
    assert not polls.is_full


def test_a_full_house_is_not_searched_for_each_who_asks() -> None:
    """There may be ten thousand polls, and thousands beyond that ask again and again."""
    polls, looks, is_gone = ParkedPolls(1000), 0, False

    def look() -> bool:
        nonlocal looks
        looks += 1
        return is_gone

    for deadline in range(1000):
        polls.park(LongPoll(lambda: None, look), deadline)
    assert all(polls.is_full for _ in range(1000))
    assert looks <= 10 * 1000
    is_gone = True
    assert not all(polls.is_full for _ in range(200))
