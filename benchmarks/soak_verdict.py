"""Judges a soak: whether memory is flat, whether anything failed, and whether space is reclaimed.

Pure: computes verdicts from samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

WARM_UP_SHARE = 0.25
"""While caches and allocators fill, the growth of memory is not judged."""
GROWTH_MAX = 0.10
"""Limit of memory growth after the warm-up: the slope of all samples, times the duration."""
GROWTH_FREE_MIB = 8.0
SPACE_MAX = 1.3


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the cluster at one time; lists have one number per bookie."""

    seconds: float
    is_settling: bool
    rss_mib: list[float]
    log_bytes: list[int]
    """The disk space of entry logs and index."""
    journal_bytes: list[int]
    live_bytes: int
    """The bytes of all entries that are not deleted, which each bookie should hold."""
    records: int
    records_tailed: int
    records_caught_up: int
    append_p50_ms: float | None
    append_p99_ms: float | None
    tail_p50_ms: float | None
    tail_p99_ms: float | None
    errors: int

    @property
    def space_ratio(self) -> float:
        """The highest disk use of a bookie, as a multiple of the live data."""
        return max(self.log_bytes) / max(1, self.live_bytes)


@dataclass(frozen=True, slots=True)
class Verdict:
    is_memory_flat: bool
    growth_mib: list[float]
    """The growth of memory after the warm-up, by bookie."""
    is_free_of_errors: bool
    is_space_reclaimed: bool
    space_ratio: float
    """After the bookies have settled."""
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.is_memory_flat and self.is_free_of_errors and self.is_space_reclaimed


def judge(samples: Sequence[Sample], failures: Sequence[str]) -> Verdict:
    """Returns the verdicts on a soak. `failures` are error texts."""
    loaded = [one for one in samples if not one.is_settling]
    warm = [one for one in loaded if one.seconds >= WARM_UP_SHARE * loaded[-1].seconds]
    growths = []
    is_flat = True
    for bookie in range(len(samples[0].rss_mib)):
        points = [(one.seconds, one.rss_mib[bookie]) for one in warm]
        growth = slope(points) * (points[-1][0] - points[0][0])
        mean = sum(rss for _, rss in points) / len(points)
        growths.append(round(growth, 1))
        is_flat = is_flat and growth <= max(GROWTH_FREE_MIB, GROWTH_MAX * mean)
    ratio = samples[-1].space_ratio
    return Verdict(
        is_memory_flat=is_flat,
        growth_mib=growths,
        is_free_of_errors=not failures,
        is_space_reclaimed=ratio <= SPACE_MAX,
        space_ratio=round(ratio, 3),
        failures=list(failures),
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of the least-squares line; 0 for fewer than two points."""
    count = len(points)
    if count < 2:
        return 0.0
    middle_x = sum(x for x, _ in points) / count
    middle_y = sum(y for _, y in points) / count
    above = sum((x - middle_x) * (y - middle_y) for x, y in points)
    below = sum((x - middle_x) ** 2 for x, _ in points)
    return above / below if below else 0.0
