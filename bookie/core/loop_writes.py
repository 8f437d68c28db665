"""Decides whether a journal writes its next group in the event loop or in its thread.

A thread costs more than the write: two switches of threads, two of them with the interpreter, and
a turn of the loop. But a write in the loop keeps all other connections waiting for the disk. So
the loop writes while the disk has been fast and has little to do, and a small group at a time; the
thread takes over with the first sign of the contrary (docs/adr/0047). Which of the two writes
changes nothing of when a group is durable or acknowledged.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_WRITES: Final = 100
"""The latest writes that count. At most one of them may have been slow: the 99th percentile."""
GROUP_BYTES_MAX: Final = 60 * 1024
"""Larger groups, with what fills their last block, are written by the thread, beside which the loop
receives the next. From 64 KiB on they go around the page cache, which takes more steps."""
HANG_FACTOR: Final = 10
"""A write this many times slower than a slow one ends the writes in the loop by itself."""
_BUSY_WRITES: Final = 16
_BUSY_SHARE_MAX: Final = 0.5
"""Of the loop's time, for all journals together."""


class LoopWrites:
    """The latest writes of one journal, in the loop or not.

    Args:
        slow_s: a write that takes longer is slow. With 0, the thread writes all groups.
        journals: the number of journals that share the loop.
    """

    __slots__ = (
        "_begins", "_busy_share_max", "_durations", "_latest", "_slow", "is_fast", "slow_s",
    )  # fmt: skip

    def __init__(self, slow_s: float, journals: int = 1) -> None:
        self.slow_s = slow_s
        self._busy_share_max = _BUSY_SHARE_MAX / journals
        self.is_fast = False
        """Whether the disk has been fast for as many writes as count."""
        self._durations: deque[float] = deque()
        self._begins: deque[float] = deque(maxlen=_BUSY_WRITES)
        self._latest: deque[float] = deque(maxlen=_BUSY_WRITES)  # durations of the same
        self._slow = 0

    def is_in_loop(
        self, now_s: float, nbytes: int, *, is_thread_awaited: bool, has_gathered: bool
    ) -> bool:
        """Returns whether a group of `nbytes` bytes is written in the loop now.

        `is_thread_awaited`: a task waits for the result of a thread, so that the loop has other
        things to do soon. `has_gathered`: the loop has received from all connections since the
        group was begun. `now_s` is by the clock of `wrote`.
        """
        if not self.is_fast or nbytes > GROUP_BYTES_MAX or is_thread_awaited:
            return False
        # After a pause, many connections may have an add each in the same turn of the loop: the
        # first is written, and the others gather until the next turn.
        if not has_gathered:
            latest_s = self._latest[-1]
            if now_s - (self._begins[-1] + latest_s) < latest_s:
                return False
        # A journal that is busy for half of the time gathers groups while a thread writes.
        return sum(self._latest) < self._busy_share_max * (now_s - self._begins[0])

    def wrote(self, began_s: float, seconds: float) -> None:
        """Records how long the disk took for a write and its sync, in the loop or in the thread."""
        if not self.slow_s:
            return
        durations = self._durations
        self._begins.append(began_s)
        self._latest.append(seconds)
        durations.append(seconds)
        self._slow += seconds > self.slow_s
        if len(durations) > WINDOW_WRITES:
            self._slow -= durations.popleft() > self.slow_s
        if self._slow > 1 or seconds > HANG_FACTOR * self.slow_s:
            self._forget()
        elif len(durations) == WINDOW_WRITES:
            self.is_fast = True

    def _forget(self) -> None:
        """Has the next `WINDOW_WRITES` writes show that the disk is fast again."""
        self.is_fast = False
        self._durations.clear()
        self._begins.clear()
        self._latest.clear()
        self._slow = 0
