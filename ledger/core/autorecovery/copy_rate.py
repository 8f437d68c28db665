"""How fast entries are copied: a rate in bytes per second, and a window of bytes in flight that
yields to the traffic of users.

The window follows LEDBAT (RFC 6817): what a bookie needs to answer beyond the least that it ever
needed is queueing. While that is below a target, the window grows; above it, the window shrinks, so
that the appends of users never wait behind more than about the target. A bookie that refuses
because it is overloaded halves the window and is left alone for a moment. Must never stop a copy
for good: one request may always be in flight.
"""

from __future__ import annotations

from collections import deque

WINDOW_BYTES_MIN = 64 * 1024
"""The window never shrinks below this: a copy advances on a bookie that is always busy."""
_WINDOW_BYTES_FIRST = 512 * 1024
_STEP_BYTES = 64 * 1024
"""The window grows by this for each window that is answered without queueing."""
_SAMPLES = 4
"""The current delay is the least of this number of samples: a single late answer proves nothing."""
_MINUTE_S = 60.0
_MINUTES = 10
"""The base delay is the least of this number of minutes: a disk may become slower for good."""
_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0


class TokenBucket:
    """A bound of bytes per second over all copies of a process; 0 is no bound.

    Bytes are taken when they are requested, as estimated, and the difference is put back or taken
    when they arrive. The bucket may be overdrawn by the last request; then the next one waits.
    """

    _BURST_S = 0.1

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s >= 0
        self._rate = bytes_per_s
        self._most = bytes_per_s * self._BURST_S
        self._left = self._most
        self._at_s = 0.0

    def take(self, nbytes: int, now_s: float) -> None:
        """Takes bytes; a negative number puts bytes back."""
        if self._rate:
            self._fill(now_s)
            self._left = min(self._most, self._left - nbytes)

    def wait_s(self, now_s: float) -> float:
        """Returns how long the next request must wait; 0 if it need not."""
        if not self._rate:
            return 0.0
        self._fill(now_s)
        # One byte more than none, so that rounding cannot end in waits of no time.
        return 0.0 if self._left > 0 else (1.0 - self._left) / self._rate

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._left = min(self._most, self._left + (now_s - self._at_s) * self._rate)
            self._at_s = now_s


class DelayWindow:
    """The bytes that may be in flight to or from one bookie.

    Args:
        bytes_max: the window never grows above this.
        delay_target_s: the queueing that a copy may cause, in seconds.
    """

    __slots__ = (
        "_bases",
        "_delay_target_s",
        "_delays",
        "_is_starting",
        "_max",
        "_pause_s",
        "_window",
        "in_flight",
        "paused_until_s",
    )

    def __init__(self, bytes_max: int, delay_target_s: float) -> None:
        assert bytes_max > 0
        assert delay_target_s > 0
        self.in_flight = 0
        self.paused_until_s = 0.0
        """The bookie refused a request: it gets none before this time."""
        self._max = float(bytes_max)
        self._window = min(self._max, _WINDOW_BYTES_FIRST)
        self._delay_target_s = delay_target_s
        self._is_starting = True
        self._delays: deque[float] = deque(maxlen=_SAMPLES)
        self._bases: deque[tuple[int, float]] = deque(maxlen=_MINUTES)
        """The least delay of each minute that had one."""
        self._pause_s = _PAUSE_S

    @property
    def nbytes(self) -> int:
        """The present size of the window."""
        return int(self._window)

    def may_send(self, now_s: float) -> bool:
        """Whether one more request may be in flight; it may exceed the window by its size."""
        return self.in_flight < self._window and now_s >= self.paused_until_s

    def sent(self, nbytes: int) -> None:
        """Counts bytes as in flight."""
        self.in_flight += nbytes

    def dropped(self, nbytes: int) -> None:
        """Bytes in flight will not be answered; nothing is learned of the delay."""
        self.in_flight -= nbytes
        assert self.in_flight >= 0

    def answered(self, nbytes: int, delay_s: float, now_s: float) -> None:
        """Bytes in flight were answered `delay_s` after they were sent."""
        was_used = 2 * self.in_flight >= self._window
        self.dropped(nbytes)
        self._pause_s = _PAUSE_S
        self._delays.append(delay_s)
        off_target = 1.0 - (min(self._delays) - self._base_s(delay_s, now_s)) / self._delay_target_s
        if off_target > 0:
            if off_target <= 0.5:
                self._is_starting = False
            if was_used:  # a window that is not used proves nothing about a larger one
                grown = nbytes if self._is_starting else off_target * self._share(nbytes)
                self._window = min(self._max, self._window + grown)
        else:
            # At most half in each window that is answered.
            self._is_starting = False
            self._shrink(min(1.0, -off_target) * nbytes / 2)

    def refused(self, now_s: float) -> None:
        """The bookie is overloaded: halves the window, once for all requests in flight, and pauses,
        longer each time until one is answered."""
        self._is_starting = False
        if now_s >= self.paused_until_s:
            self._shrink(self._window / 2)
            self.pause(now_s)

    def pause(self, now_s: float) -> None:
        """Sends nothing for a moment, twice as long each time until a request is answered."""
        self.paused_until_s = now_s + self._pause_s
        self._pause_s = min(_PAUSE_MAX_S, 2 * self._pause_s)

    def _share(self, nbytes: int) -> float:
        return _STEP_BYTES * nbytes / self._window

    def _shrink(self, nbytes: float) -> None:
        self._window = max(min(self._max, WINDOW_BYTES_MIN), self._window - nbytes)

    def _base_s(self, delay_s: float, now_s: float) -> float:
        minute = int(now_s // _MINUTE_S)
        bases = self._bases
        if not bases or bases[-1][0] != minute:
            bases.append((minute, delay_s))
        elif delay_s < bases[-1][1]:
            bases[-1] = minute, delay_s
        return min(base for _, base in bases)
