"""Counting by bounds: compared with counting one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.metrics import SECONDS, Histogram

BOUNDS = (1.0, 2.0, 5.0)


@given(st.lists(st.floats(0, 10)))
def test_each_value_is_counted_below_its_bound(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    found = histogram.distribution()
    expected = [sum(low < v <= high for v in values) for low, high in ((-1, 1), (1, 2), (2, 5))]
    assert list(found.counts) == [*expected, sum(v > 5 for v in values)]
    assert found.total == pytest.approx(sum(values))
    assert found.count == len(values)


def test_a_distribution_does_not_change_afterwards() -> None:
    histogram = Histogram(BOUNDS)
    before = histogram.distribution()
    histogram.observe(1)
    assert (before.count, before.mean, before.quantile(0.5)) == (0, 0.0, None)


def test_quantiles_are_bounds() -> None:
    histogram = Histogram(BOUNDS)
    for value in (0.5, 1.5, 1.6, 4.0):
        histogram.observe(value)
    found = histogram.distribution()
    assert [found.quantile(share) for share in (0.25, 0.5, 0.75, 1)] == [1.0, 2.0, 2.0, 5.0]
    histogram.observe(50)
    assert histogram.distribution().quantile(1) is None


def test_bounds_must_rise() -> None:
    with pytest.raises(AssertionError, match="do not rise"):
        Histogram((2.0, 1.0))
    assert list(SECONDS) == sorted(SECONDS)
