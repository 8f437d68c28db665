"""Whose silence proves that he is dead: only that of one who could have spoken.

A process that is stopped in the middle of a change holds the file locked, and nobody's heartbeat
gets in. Whoever is first to have the file again must not bury all the others, all bookies among
them: that they were silent is not their fault. ZooKeeper has the same rule: a new leader gives
every session its whole timeout again. Pure, but shared by two threads.
"""

from __future__ import annotations

from collections.abc import Mapping


class OwnBeats:
    """Since when this process's own heartbeats got in without a gap: for that long, others' could
    have got in, too."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._steady: tuple[int, int] | None = None  # since when, last beat; replaced as a whole

    def began(self, now_ms: int) -> None:
        """A session of ours has begun. What was before is not known."""
        self._steady = (now_ms, now_ms)

    def beat(self, now_ms: int) -> None:
        """A heartbeat was committed, with this time."""
        assert self._steady is not None, "the heartbeat of no session"
        since_ms, last_ms = self._steady
        self._steady = (now_ms if self._is_gap(last_ms, now_ms) else since_ms, now_ms)

    def too_silent(
        self, others: Mapping[int, tuple[int, int]], own_ms: int | None, now_ms: int
    ) -> list[int]:
        """Which of the other sessions, with heartbeat and timeout in ms each, were silent for too
        long, as seen in one view of the file in which our own heartbeat is `own_ms`.

        Too long is longer than either's timeout: heartbeats come four times per timeout, and ours
        notices no gap that is shorter than half of ours. If ours is overdue, or newer than we have
        noted, then nothing is known.
        """
        if self._steady is None:
            return []
        since_ms, last_ms = self._steady
        if own_ms != last_ms or self._is_gap(last_ms, now_ms):
            return []
        return [
            session
            for session, (heartbeat_ms, timeout_ms) in others.items()
            if now_ms - max(heartbeat_ms, since_ms) > max(timeout_ms, self._timeout_ms)
        ]

    def _is_gap(self, last_ms: int, now_ms: int) -> bool:
        return now_ms - last_ms > self._timeout_ms // 2
