"""Long polls that are parked: when each must be answered at the latest. Pure.

Waking by a growing LAC is `LedgerState.watch`; this answers only for the deadlines, with
one heap for all, so that a parked poll costs no task and no timer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

_ASKS_PER_SEARCH = 8
"""So many polls are looked at for each ask, on average."""


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
            self.answer()  # nobody hears it, and nothing is kept for it any more
        return self._answer is None

    def answer(self) -> None:
        """Answers now; later calls do nothing."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer()


class ParkedPolls:
    """Deadlines of parked polls, at most `count_max` of them."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self._heap: list[tuple[float, int, LongPoll]] = []
        self._sequence = 0
        self._asks_until_search = 0

    @property
    def is_full(self) -> bool:
        """Answered ones count until they are searched for. Among many that wait that is done
        for one ask in many: each costs a look at all."""
        if len(self._heap) < self.count_max:
            return False
        self._asks_until_search -= 1
        if self._asks_until_search <= 0:
            self._forget_answered()
            self._asks_until_search = len(self._heap) // _ASKS_PER_SEARCH
        return len(self._heap) >= self.count_max

    @property
    def waiting(self) -> int:
        """How many wait. Costs a look at all."""
        self._forget_answered()
        return len(self._heap)

    def park(self, poll: LongPoll, deadline: float) -> bool:
        """True if this deadline is now the earliest."""
        self._sequence += 1
        heapq.heappush(self._heap, (deadline, self._sequence, poll))
        return self._heap[0][2] is poll

    def next_deadline(self) -> float | None:
        """When `expire` must be called, or None."""
        while self._heap and self._heap[0][2].is_answered:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expire(self, now: float) -> None:
        """Answers all polls whose deadline has come."""
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].is_answered):
            heapq.heappop(self._heap)[2].answer()

    def _forget_answered(self) -> None:
        self._heap = [item for item in self._heap if not item[2].is_answered]
        heapq.heapify(self._heap)
