"""How long a poll of an idle query waits, and what it asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.spark.core.idle_polling import (
    ANSWER_KEPT_S,
    POLLED_WITHIN_S,
    WAIT_S,
    WAIT_SHARE,
    IdlePolling,
    KeptAnswer,
    Known,
    Listening,
    Questions,
)

ALL, METADATA, NONE = Questions.METADATA_AND_BOOKIES, Questions.METADATA, Questions.NONE
KNOWN = Known(now_s=100.0, version=3, listening=7, commits=40)


def asks(polling: IdlePolling, now_s: float) -> tuple[float, int]:
    """Makes a call that learns of nothing; returns how long it waits, and how often it asks."""
    waits_s = polling.begin(now_s) - now_s
    asked = sum(polling.should_ask() for _ in range(3))
    polling.end(now_s + waits_s)
    return round(waits_s, 6), asked


def test_an_idle_query_is_polled_four_times_a_second_and_asks_before_each_answer() -> None:
    polling, now_s, asked, calls = IdlePolling(), 100.0, 0, 0
    while now_s < 200:  # Spark polls 10 ms after each answer
        waits_s, count = asks(polling, now_s)
        now_s += waits_s + 0.010
        asked, calls = asked + count, calls + 1
    assert asked == calls <= 100 / WAIT_S + 1


def test_a_query_is_polled_less_the_longer_it_has_been_quiet() -> None:
    polling = IdlePolling()
    polling.note_change(100.0)
    polling.end(100.0)
    now_s, calls = 100.01, 0
    while now_s < 101.0:
        waits_s, _ = asks(polling, now_s)
        assert waits_s <= WAIT_SHARE * (now_s - 100.0) + 1e-6
        now_s += waits_s + 0.010
        calls += 1
    assert calls < 20, "without waits there are a hundred"
    assert asks(polling, now_s + 0.010) == (WAIT_S, 1)


def test_a_query_with_an_interval_does_not_wait() -> None:
    polling = IdlePolling()
    assert asks(polling, 100.0) == (0.0, 1)
    assert asks(polling, 100.01) == (WAIT_S, 1)
    assert asks(polling, 100.01 + WAIT_S + 2 * POLLED_WITHIN_S) == (0.0, 1)


def answered(known: Known = KNOWN) -> KeptAnswer:
    answer = KeptAnswer()
    answer.asked(answer.questions(known), known, is_answered=True)
    return answer


def test_what_is_known_is_not_asked() -> None:
    answer, asked = KeptAnswer(), 0
    for number in range(1000):
        known = replace(KNOWN, now_s=100.0 + number * 0.010)
        questions = answer.questions(known)
        asked += questions is not NONE
        answer.asked(questions, known, is_answered=True)
    assert asked == 10 / ANSWER_KEPT_S


def test_the_metadata_are_asked_after_each_change_of_them_and_where_changes_are_unknown() -> None:
    answer = answered()
    changed = replace(KNOWN, commits=41)
    assert answer.questions(changed) is METADATA
    answer.asked(METADATA, changed, is_answered=True)
    assert answer.questions(changed) is NONE
    assert answer.questions(KNOWN) is METADATA
    unknown = replace(KNOWN, commits=None)
    for _ in range(3):
        assert answer.questions(unknown) is METADATA
        answer.asked(METADATA, unknown, is_answered=True)


@pytest.mark.parametrize(
    "later",
    [
        replace(KNOWN, version=4),
        replace(KNOWN, listening=8),
        replace(KNOWN, listening=None),
        replace(KNOWN, now_s=KNOWN.now_s + ANSWER_KEPT_S),
    ],
)
def test_bookies_are_asked_if_something_may_have_been_missed(later: Known) -> None:
    assert answered().questions(KNOWN) is NONE
    assert answered().questions(later) is ALL
    if later.listening is None:
        assert answered(later).questions(later) is ALL


def test_an_answer_of_the_metadata_does_not_prolong_that_of_the_bookies() -> None:
    answer = answered()
    half = replace(KNOWN, now_s=KNOWN.now_s + ANSWER_KEPT_S / 2, commits=41)
    answer.asked(answer.questions(half), half, is_answered=True)
    assert answer.questions(replace(half, now_s=KNOWN.now_s + ANSWER_KEPT_S)) is ALL


@pytest.mark.parametrize("questions", [ALL, METADATA])
def test_doubt_is_not_kept(questions: Questions) -> None:
    answer = answered()
    answer.asked(questions, KNOWN, is_answered=False)
    assert answer.questions(KNOWN) is ALL


def test_listening_is_interrupted_by_each_thing_that_is_missed() -> None:
    listening = Listening()
    numbers: list[int | None] = []
    for call, kind in (
        (listening.misses, "metadata"),
        (listening.misses, "ledger"),
        (listening.hears, "ledger"),
        (listening.hears, "metadata"),
        (listening.hears, "ledger"),
        (listening.misses, "ledger"),
        (listening.hears, "ledger"),
    ):
        call(kind, "n/a")
        numbers.append(listening.number)
    assert numbers[:3] == [None] * 3
    assert numbers[3] == numbers[4] is not None
    assert numbers[5] is None
    assert numbers[6] not in (None, numbers[3])
