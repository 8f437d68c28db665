"""Plots a soak as SVG: charts of memory, space and latencies over time, one above the other.

Writes SVG directly, because three charts need no library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from benchmarks.soak_verdict import Sample

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _GAP = 900, 200, 70, 190, 40, 60
_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#b58900", "#555555")
_MIB = 1 << 20


class _Line(NamedTuple):
    name: str
    values: list[float | None]


def plot(samples: Sequence[Sample]) -> str:
    """The whole file."""
    bookies = range(len(samples[0].rss_mib))
    charts: list[tuple[str, list[_Line]]] = [
        (
            "memory of each bookie (RSS), MiB",
            [_Line(f"bookie {n + 1}", [one.rss_mib[n] for one in samples]) for n in bookies],
        ),
        (
            "disk, MiB",
            [
                _Line("live data", [one.live_bytes / _MIB for one in samples]),
                *(
                    _Line(
                        f"bookie {n + 1}: logs, index",
                        [one.log_bytes[n] / _MIB for one in samples],
                    )
                    for n in bookies
                ),
                _Line("journals, most", [max(one.journal_bytes) / _MIB for one in samples]),
            ],
        ),
        (
            "latency, ms",
            [
                _Line("append p50", [one.append_p50_ms for one in samples]),
                _Line("append p99", [one.append_p99_ms for one in samples]),
                _Line("tail p50", [one.tail_p50_ms for one in samples]),
                _Line("tail p99", [one.tail_p99_ms for one in samples]),
            ],
        ),
    ]
    seconds = [one.seconds for one in samples]
    height = _TOP + len(charts) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (title, lines) in enumerate(charts):
        parts += _chart(title, lines, seconds, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(title: str, lines: list[_Line], seconds: Sequence[float], top: int) -> list[str]:
    most = max([value for line in lines for value in line.values if value is not None] or [1.0])
    most = most or 1.0
    end = seconds[-1] or 1.0
    right, bottom = _WIDTH - _RIGHT, top + _HEIGHT

    def at(second: float, value: float) -> str:
        x = _LEFT + (right - _LEFT) * second / end
        return f"{x:.1f},{bottom - _HEIGHT * value / most:.1f}"

    parts = [
        f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape(title)}</text>',
        f'<path d="M{_LEFT},{top} V{bottom} H{right}" fill="none" stroke="#333"/>',
    ]
    for step in range(5):
        share = step / 4
        y = bottom - _HEIGHT * share
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:.4g}</text>'
        )
        x = _LEFT + (right - _LEFT) * share
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">'
            f"{end * share / 60:.1f} min</text>"
        )
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(
            at(second, value)
            for second, value in zip(seconds, line.values, strict=True)
            if value is not None
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        y = top + 14 + 18 * number
        parts.append(f'<text x="{right + 12}" y="{y}" fill="{colour}">{escape(line.name)}</text>')
    return parts
