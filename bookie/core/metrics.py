"""Metrics: name, kind, help, Apache's name, and where the number is read.

Histograms count values in plain numbers that a scrape reads. They belong to one task, so nothing is
locked. Must stay as cheap as a search among a dozen bounds, and is fed once per batch, never per
entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

SECONDS: Final = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds for times: from a fast disk's sync to a disk that hangs."""
SIZES: Final = tuple(float(4096 * 4**power) for power in range(9))
"""Upper bounds for bytes: 4 KiB to 256 MiB."""
COUNTS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 1e5)
"""Upper bounds for numbers of entries."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment. `counts` has one number more than `bounds`: that of values above
    all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    """Sum of all values."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean, or 0 if nothing was counted."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float | None:
        """Returns the bound below which `share` (0 to 1) of the values are; None if there are none,
        or if it is above the last bound."""
        wanted = share * self.count
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen and seen >= wanted:
                return bound
        return None


class Histogram:
    """Counts values by upper bounds, which are inclusive."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` must be in ascending order."""
        assert list(bounds) == sorted(set(bounds)), f"bounds {bounds} do not rise"
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)


S = TypeVar("S")


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Labelled = Mapping[tuple[str, ...], float]
"""A number for each combination of values of the metric's own labels."""
Number = float | Labelled | Distribution | None
"""None is unknown: then there is no sample."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One metric.

    Attributes:
        name: without the prefix; counters end with `_total`.
        apache: Apache BookKeeper's name of the same thing, "" if it has none.
        labels: the metric's own, if `read` gives a number for each of their values.
    """

    name: str
    kind: Kind
    help: str
    apache: str
    read: Callable[[S], Number]
    labels: tuple[str, ...] = ()


def counter(name: str, help_: str, apache: str, read: Callable[[S], Number]) -> Metric[S]:
    return Metric(f"{name}_total", Kind.COUNTER, help_, apache, read)


def gauge(name: str, help_: str, apache: str, read: Callable[[S], Number]) -> Metric[S]:
    return Metric(name, Kind.GAUGE, help_, apache, read)


def histogram(name: str, help_: str, apache: str, read: Callable[[S], Number]) -> Metric[S]:
    return Metric(name, Kind.HISTOGRAM, help_, apache, read)
