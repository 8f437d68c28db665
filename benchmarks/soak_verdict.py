"""What a soak has shown: is memory flat, did anything fail, does space come back?

Pure: samples in, verdicts out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

WARM_UP_SHARE = 0.25
"""Caches and allocators fill first: what memory does meanwhile says nothing."""
GROWTH_MAX = 0.10
"""Of memory, from the end of the warm-up to the end: the slope of all samples, times the time."""
GROWTH_FREE_MIB = 8.0
SPACE_MAX = 1.3


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment; by bookie where there are several numbers."""

    seconds: float
    is_settling: bool
    rss_mib: list[float]
    log_bytes: list[int]
    """Entry logs and index."""
    journal_bytes: list[int]
    live_bytes: int
    """Of the entries of all ledgers that are not deleted, as each bookie should hold them."""
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
        """The worst bookie's disk use, as a multiple of the live data."""
        return max(self.log_bytes) / max(1, self.live_bytes)


@dataclass(frozen=True, slots=True)
class Verdict:
    is_memory_flat: bool
    growth_mib: list[float]
    """By bookie, from the end of the warm-up on."""
    is_free_of_errors: bool
    is_space_reclaimed: bool
    space_ratio: float
    """Settled."""
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.is_memory_flat and self.is_free_of_errors and self.is_space_reclaimed


def judge(samples: Sequence[Sample], failures: Sequence[str]) -> Verdict:
    """`failures`: what went wrong, in words."""
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
    """Of the straight line that fits best (least squares); 0 for fewer than two points."""
    count = len(points)
    if count < 2:
        return 0.0
    middle_x = sum(x for x, _ in points) / count
    middle_y = sum(y for _, y in points) / count
    above = sum((x - middle_x) * (y - middle_y) for x, y in points)
    below = sum((x - middle_x) ** 2 for x, _ in points)
    return above / below if below else 0.0
