"""What a metric is: name, kind, help, what Apache calls it, and where its number is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from bookie.core.histogram import Distribution

S = TypeVar("S")


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


Labelled = Mapping[tuple[str, ...], float]
"""A number for each combination of values of the metric's own labels."""
Number = float | Labelled | Distribution | None
"""None is not known: then there is no sample."""


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
