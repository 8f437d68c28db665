"""What the soak calls flat memory and reclaimed space, on samples made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.soak_plot import plot
from benchmarks.soak_verdict import Sample, judge, slope

_SAMPLE = Sample(
    seconds=0.0,
    is_settling=False,
    rss_mib=[100.0, 100.0],
    log_bytes=[110, 100],
    journal_bytes=[10, 10],
    live_bytes=100,
    records=1,
    records_tailed=1,
    records_caught_up=1,
    append_p50_ms=1.0,
    append_p99_ms=2.0,
    tail_p50_ms=None,
    tail_p99_ms=None,
    errors=0,
)


def _samples(rss_mib: Callable[[int], float]) -> list[Sample]:
    return [
        replace(_SAMPLE, seconds=10.0 * number, rss_mib=[100.0, rss_mib(number)])
        for number in range(1, 101)
    ]


@pytest.mark.parametrize(
    ("rss_mib", "is_flat"),
    [
        (lambda number: 100.0, True),
        (lambda number: min(100.0, 20.0 + 4 * number), True),  # caches fill while it warms up
        (lambda number: 100.0 + random.Random(number).uniform(-20, 20), True),
        (lambda number: 100.0 + number / 20, True),  # 4 MiB
        (lambda number: 100.0 + number / 4, False),
        (lambda number: 1000.0 + number, True),  # less than a tenth
        (lambda number: 1000.0 + 2 * number, False),
    ],
)
def test_memory_is_flat_if_its_slope_after_the_warm_up_is(
    rss_mib: Callable[[int], float], is_flat: bool
) -> None:
    verdict = judge(_samples(rss_mib), [])
    assert verdict.is_memory_flat is verdict.is_good is is_flat
    assert verdict.growth_mib[0] == 0


def test_errors_and_space_that_does_not_come_back_are_reported() -> None:
    samples = _samples(lambda _: 100.0)
    verdict = judge(samples, ["append: IoError"])
    assert (verdict.is_free_of_errors, verdict.is_good) == (False, False)
    # The worst bookie counts, and only how it was in the end.
    full = replace(_SAMPLE, seconds=1010.0, is_settling=True, log_bytes=[90, 131])
    settled = replace(full, seconds=1020.0, log_bytes=[90, 129])
    assert judge([*samples, full], []).is_space_reclaimed is False
    verdict = judge([*samples, full, settled], [])
    assert (verdict.is_space_reclaimed, verdict.space_ratio, verdict.is_good) == (True, 1.29, True)


def test_a_slope_is_that_of_the_line_through_all_points() -> None:
    assert slope([(x, 3 * x + 1) for x in range(10)]) == pytest.approx(3)
    assert slope([(1, 1)]) == slope([]) == 0


def test_the_plot_leaves_out_what_was_not_measured() -> None:
    svg = plot(_samples(lambda number: float(number)))
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    assert svg.count("<polyline") == 2 + 4 + 4
    assert 'points=""' in svg  # the tail's latencies
