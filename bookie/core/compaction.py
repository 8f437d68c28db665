"""Decides which entry logs to rewrite, when, and how fast.

The pure core of `bookie.storage.garbage.compactor`. A log is rewritten when few of its bytes are
still needed: cheap ones often (minor), all that are worth it rarely (major). It never decides what
is needed; the index does.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ledger.errors import InvalidArgument

MIB = 1 << 20
RATIO_STEPS = 10
"""The number of classes in the histogram of live ratios: below 10 %, below 20 %, ..."""


class CompactionKind(enum.IntEnum):
    """How much may be, or was, rewritten. A major compaction includes a minor one."""

    NONE = 0
    MINOR = 1
    MAJOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """When logs are rewritten, and which share of the disk's throughput and space that may take."""

    minor_ratio_max: float = 0.2
    """A minor compaction rewrites logs whose share of live bytes is smaller; 0: never."""
    minor_interval_s: float = 3600.0
    minor_s_max: float = 600.0
    """After this time a minor compaction yields to the rest of garbage collection and continues in
    the next round; 0: never."""
    major_ratio_max: float = 0.8
    """The same for a major compaction. Afterwards the space in use is at most 1 / this of the live
    bytes."""
    major_interval_s: float = 86_400.0
    major_s_max: float = 600.0
    bytes_per_s_max: float = 16 * MIB
    """Bytes read and written; 0: no bound."""
    entries_per_s_max: float = 0.0
    """Entries moved; 0: no bound."""
    free_bytes_min: int = 64 * MIB
    """A log is rewritten only if this much stays free on the disk meanwhile."""
    is_small_log_sparse: bool = False
    """Measures a small log as if it had full size, so that small ones are joined."""

    def __post_init__(self) -> None:
        if not 0 <= self.minor_ratio_max <= 1 or not 0 <= self.major_ratio_max <= 1:
            raise InvalidArgument(
                f"compaction below live ratios {self.minor_ratio_max} (minor) and "
                f"{self.major_ratio_max} (major): give 0 to 1"
            )
        if self.minor_ratio_max > self.major_ratio_max > 0:
            raise InvalidArgument(
                f"minor compaction rewrites below a live ratio of {self.minor_ratio_max}, major "
                f"only below {self.major_ratio_max}: give major at least as much, or 0"
            )
        if not (self.minor_interval_s > 0 and self.major_interval_s > 0):
            raise InvalidArgument(
                f"compaction every {self.minor_interval_s} s (minor) and {self.major_interval_s} "
                "s (major): give more than 0; to switch one off, give it a ratio of 0"
            )
        bounds = (self.minor_s_max, self.major_s_max, self.bytes_per_s_max, self.entries_per_s_max)
        if min(*bounds, self.free_bytes_min) < 0:
            raise InvalidArgument("bounds of compaction are never negative; 0 is none")

    def ratio_max(self, kind: CompactionKind) -> float:
        return self.minor_ratio_max if kind is CompactionKind.MINOR else self.major_ratio_max

    def seconds_max(self, kind: CompactionKind) -> float:
        """The time limit of one compaction; 0: none."""
        return self.minor_s_max if kind is CompactionKind.MINOR else self.major_s_max


class CompactionClock:
    """Knows which compaction is due when. A major one resets the minor one's clock, too."""

    def __init__(self, options: CompactionOptions, now: float) -> None:
        """Both intervals begin at `now` (seconds of any clock that never goes back)."""
        self._options = options
        self._done_at = {CompactionKind.MINOR: now, CompactionKind.MAJOR: now}

    def due(
        self,
        now: float,
        most: CompactionKind,
        suspended: Container[CompactionKind] = (),
        *,
        is_forced: bool = False,
    ) -> CompactionKind:
        """Returns what to do now: at most `most`, and nothing that is `suspended`. `is_forced`:
        returns `most` regardless of intervals and suspensions, because a forced compaction needs
        the space."""
        if is_forced:
            return most
        for kind, interval_s in (
            (CompactionKind.MAJOR, self._options.major_interval_s),
            (CompactionKind.MINOR, self._options.minor_interval_s),
        ):
            is_on = kind not in suspended and self._options.ratio_max(kind) > 0
            if kind <= most and is_on and now - self._done_at[kind] >= interval_s:
                return kind
        return CompactionKind.NONE

    def done(self, kind: CompactionKind, now: float) -> None:
        """Records that a compaction ended, whatever it achieved."""
        for done in (CompactionKind.MINOR, CompactionKind.MAJOR):
            if done <= kind:
                self._done_at[done] = now


class LogUse(NamedTuple):
    """How much of a sealed entry log is still needed."""

    log_id: int
    bytes_total: int
    """Bytes of all entries, live or not."""
    bytes_live: int

    @property
    def ratio(self) -> float:
        """The share of live bytes, at most 1: a run that was added again is counted once."""
        return min(1.0, self.bytes_live / max(1, self.bytes_total, self.bytes_live))


def choose_logs(logs: Iterable[LogUse], ratio_max: float, *, full_bytes: int = 0) -> list[LogUse]:
    """Returns the logs to rewrite; those that free most for the least work come first.

    Args:
        ratio_max: only logs with a smaller share of live bytes.
        full_bytes: a log with less in it is measured against this size; 0: against its own.
    """

    def ratio(log: LogUse) -> float:
        return log._replace(bytes_total=max(log.bytes_total, full_bytes)).ratio

    return sorted(
        (log for log in logs if ratio(log) < ratio_max),
        key=lambda log: (ratio(log), log.log_id),
    )


def ratio_histogram(logs: Iterable[LogUse]) -> tuple[int, ...]:
    """Returns the number of logs by tenths of their live ratio; fully live ones are in the last
    class."""
    counts = [0] * RATIO_STEPS
    for log in logs:
        counts[min(RATIO_STEPS - 1, int(log.ratio * RATIO_STEPS))] += 1
    return tuple(counts)


class TokenBucket:
    """Bounds a rate: each call returns how long to wait before the next.

    Since its creation no more was taken than `burst`, plus `rate` per second passed, plus the last
    piece: pieces are never refused, however large.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """`rate` per second; 0 is no bound. The bucket starts full."""
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Takes `amount` and returns the seconds to wait, 0 or more."""
        if self._rate <= 0:
            return 0.0
        gained = (now - self._at) * self._rate
        self._tokens = min(self._burst, self._tokens + gained) - amount
        self._at = now
        return max(0.0, -self._tokens / self._rate)
