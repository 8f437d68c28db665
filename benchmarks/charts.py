"""Line charts as SVG, one above the other. Writes SVG directly, because charts need no library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _GAP = 900, 200, 70, 190, 40, 60
_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#b58900", "#555555")


class Line(NamedTuple):
    """A line: a value for each x of its chart, None where there is none."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. `label` writes a value of x; `is_log`: both axes are logarithmic."""

    title: str
    xs: Sequence[float]
    lines: Sequence[Line]
    label: Callable[[float], str]
    is_log: bool = False


def svg(charts: Sequence[Chart]) -> str:
    """Returns the whole file."""
    height = _TOP + len(charts) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, chart in enumerate(charts):
        parts += _drawn(chart, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """Maps values to 0..1, from `first` to `last`."""

    def __init__(self, first: float, last: float, *, is_log: bool) -> None:
        self._is_log = is_log
        self._first = math.log(first) if is_log else first
        self._span = ((math.log(last) if is_log else last) - self._first) or 1.0

    def share(self, value: float) -> float:
        return ((math.log(value) if self._is_log else value) - self._first) / self._span

    def value(self, share: float) -> float:
        found = self._first + share * self._span
        return math.exp(found) if self._is_log else found


def _axes(chart: Chart) -> tuple[_Axis, _Axis]:
    values = [one for line in chart.lines for one in line.values if one is not None] or [1.0]
    most = max(values) or 1.0
    if chart.is_log:
        least = min(value for value in values if value > 0)
        return _Axis(chart.xs[0], chart.xs[-1], is_log=True), _Axis(least, most, is_log=True)
    return _Axis(0.0, chart.xs[-1] or 1.0, is_log=False), _Axis(0.0, most, is_log=False)


def _drawn(chart: Chart, top: int) -> list[str]:
    across, up = _axes(chart)
    right, bottom = _WIDTH - _RIGHT, top + _HEIGHT

    def at(x: float, y: float) -> str:
        return (
            f"{_LEFT + (right - _LEFT) * across.share(x):.1f},{bottom - _HEIGHT * up.share(y):.1f}"
        )

    parts = [
        f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape(chart.title)}</text>',
        f'<path d="M{_LEFT},{top} V{bottom} H{right}" fill="none" stroke="#333"/>',
    ]
    for step in range(5):
        share = step / 4
        y = bottom - _HEIGHT * share
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{up.value(share):.4g}</text>'
        )
        x = _LEFT + (right - _LEFT) * share
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{escape(chart.label(across.value(share)))}</text>"
        )
    for number, line in enumerate(chart.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            at(x, value)
            for x, value in zip(chart.xs, line.values, strict=True)
            if value is not None
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        y = top + 14 + 18 * number
        parts.append(f'<text x="{right + 12}" y="{y}" fill="{colour}">{escape(line.name)}</text>')
    return parts
