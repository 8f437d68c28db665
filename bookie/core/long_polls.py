"""Keeps the deadlines of parked long polls. Pure.

A growing LAC wakes polls by `LedgerState.watch`; this module only handles the deadlines, with one
heap for all, so that a parked poll costs no task and no timer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

_ASKS_PER_SEARCH = 8
"""The average number of polls that are searched per question."""


class LongPoll:
    """One parked poll. `answer` is called exactly once, by whichever comes first.

    `is_gone` says that its peer has left: then its place may be given to another.
    """

    __slots__ = ("_answer", "_is_gone")

    def __init__(self, answer: Callable[[], None], is_gone: Callable[[], bool]) -> None:
        self._answer: Callable[[], None] | None = answer
        self._is_gone = is_gone

    @property
    def is_answered(self) -> bool:
        if self._answer is not None and self._is_gone():
            self.answer()  # the peer has left, so no reply is sent and nothing is kept for it
        return self._answer is None

    def answer(self) -> None:
        """Answers now; later calls do nothing."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer()


class ParkedPolls:
    """The deadlines of parked polls, at most `count_max` of them."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._heap: list[tuple[float, int, LongPoll]] = []
        self._sequence = 0
        self._asks_until_search = 0

    @property
    def is_full(self) -> bool:
        """Answered polls count until they are searched for. If many wait, that happens in one of
        many calls, because each search is linear in their number."""
        if len(self._heap) < self.count_max:
            return False
        self._asks_until_search -= 1
        if self._asks_until_search <= 0:
            self._forget_answered()
            self._asks_until_search = len(self._heap) // _ASKS_PER_SEARCH
        return len(self._heap) >= self.count_max

    @property
    def waiting(self) -> int:
        """Returns how many polls wait, in time linear in their number."""
        self._forget_answered()
        return len(self._heap)

    def park(self, poll: LongPoll, deadline: float) -> bool:
        """Parks a poll, and returns whether its deadline is now the earliest."""
        self._sequence += 1
        heapq.heappush(self._heap, (deadline, self._sequence, poll))
        return self._heap[0][2] is poll

    def next_deadline(self) -> float | None:
        """Returns when `expire` must be called, or None."""
        while self._heap and self._heap[0][2].is_answered:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expire(self, now: float) -> None:
        """Answers all polls whose deadline has passed."""
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].is_answered):
            heapq.heappop(self._heap)[2].answer()

    def _forget_answered(self) -> None:
        self._heap = [item for item in self._heap if not item[2].is_answered]
        heapq.heapify(self._heap)
