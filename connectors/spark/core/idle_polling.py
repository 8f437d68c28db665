"""Decides how long a poll of an idle query waits for records before it asks the cluster for them.

Spark polls an idle query every 10 ms. Notifications keep the ends of the streams in memory, so that
a poll waits for one of them, and then asks once: an answer that there are no new records is always
as fresh as the poll (`processAllAvailable` relies on it), and an idle query asks four times a
second. Time is an argument.
"""

from __future__ import annotations

import math

WAIT_S = 0.25
"""How long a poll of an idle query waits for a notification."""
POLLED_WITHIN_S = 0.05
"""A call that follows the previous one within this time is a poll of an idle query. Other calls do
not wait: the query has a trigger with an interval, or another source that has records."""
ACTIVE_S = 2.0
"""For this time after the last change a query is not idle."""


class IdlePolling:
    """The calls of one query. The methods are called in the order `begin`, the others, `end`."""

    def __init__(self) -> None:
        self._may_ask = False
        self._ended_s = self._changed_s = -math.inf

    def begin(self, now_s: float) -> float:
        """Begins a call; returns the time until which it waits for a notification."""
        self._may_ask = True
        is_polled = now_s - self._ended_s <= POLLED_WITHIN_S
        is_idle = now_s - self._changed_s > ACTIVE_S
        return now_s + WAIT_S if is_polled and is_idle else now_s

    def should_ask(self) -> bool:
        """Returns whether the call asks the cluster, now that no notification has come: once."""
        may_ask, self._may_ask = self._may_ask, False
        return may_ask

    def note_change(self, now_s: float) -> None:
        """Records that something has changed in the streams."""
        self._changed_s = now_s

    def end(self, now_s: float) -> None:
        """Ends a call."""
        self._ended_s = now_s
