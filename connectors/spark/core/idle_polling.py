"""Decides how long a poll of an idle query waits for records, and what it then asks the cluster.

Spark polls an idle query every 10 ms. Notifications keep the ends of the streams in memory, so that
a poll waits for one of them, the longer the longer it has been quiet. Before it reports that there
are no new records it asks what is not known otherwise: an answer is always as fresh as the poll
(`processAllAvailable` relies on it). Doubt must never be kept as an answer. Time is an argument.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

WAIT_S = 0.25
"""The longest wait of a poll for a notification: so long a query that is to stop may wait."""
WAIT_SHARE = 0.25
"""A poll waits for this share of the time since the last change."""
POLLED_WITHIN_S = 0.05
"""A call that follows the previous one within this time is a poll of an idle query. Other calls do
not wait: the query has a trigger with an interval, or another source that has records."""
ANSWER_KEPT_S = 5.0
"""How long the bookies' answer that there are no more records is kept, while long polls are in
flight that would say otherwise."""


class IdlePolling:
    """The calls of one query. The methods are called in the order `begin`, the others, `end`."""

    def __init__(self) -> None:
        self._may_ask = False
        self._ended_s = self._changed_s = -math.inf

    def begin(self, now_s: float) -> float:
        """Begins a call; returns the time until which it waits for a notification."""
        self._may_ask = True
        if now_s - self._ended_s > POLLED_WITHIN_S:
            return now_s
        return now_s + min(WAIT_S, WAIT_SHARE * (now_s - self._changed_s))

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


class Questions(enum.Enum):
    """The questions that show whether streams have new records."""

    NONE = 0
    METADATA = 1
    METADATA_AND_BOOKIES = 2


@dataclass(frozen=True, slots=True)
class Known:
    """What a tracker of streams knows at a time.

    `version` changes with each change of the streams. `listening` stays the same while nothing
    interrupts watches and long polls, None: there is not one for all. `commits` changes with each
    change of the metadata, None: that is not known without a question.
    """

    now_s: float
    version: int
    listening: int | None
    commits: int | None


class KeptAnswer:
    """The last answer that there are no new records, for as long as it holds."""

    def __init__(self) -> None:
        self._asked: Known | None = None

    def questions(self, known: Known) -> Questions:
        """Returns what to ask."""
        asked = self._asked
        if (
            asked is None
            or known.now_s - asked.now_s >= ANSWER_KEPT_S
            or known.version != asked.version
            or known.listening is None
            or known.listening != asked.listening
        ):
            return Questions.METADATA_AND_BOOKIES
        if known.commits is None or known.commits != asked.commits:
            return Questions.METADATA
        return Questions.NONE

    def asked(self, questions: Questions, known: Known, *, is_answered: bool) -> None:
        """Records an answer; `known` is from before the questions.

        Without one, or if it brings a change, the next call asks everything.
        """
        if not is_answered:
            self._asked = None
        elif questions is Questions.METADATA and self._asked is not None:
            self._asked = replace(known, now_s=self._asked.now_s)
        elif questions is not Questions.NONE:
            self._asked = known


class Listening:
    """What may bring records, and whether a watch or a long poll is in place for all of it."""

    def __init__(self) -> None:
        self._missing: dict[tuple[str, str], None] = {}
        self._interruptions = 0

    @property
    def number(self) -> int | None:
        """Returns a number that stays the same until something is missed; None while it is."""
        return None if self._missing else self._interruptions

    def hears(self, kind: str, name: str) -> None:
        """Records that a watch or long poll is in place, or is not needed any more."""
        self._missing.pop((kind, name), None)

    def misses(self, kind: str, name: str) -> None:
        """Records that there is none for now."""
        self._missing[kind, name] = None
        self._interruptions += 1
