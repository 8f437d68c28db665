"""Tables of the command line: aligned for a terminal, tab-separated for a pipe or file.

Names of columns end with their unit: `_bytes` are shown as sizes, `_ms` and `_s` as durations, and
times as ages. A terminal shows the columns that fit into its width, from the left; the others are
named on stderr, and `--wide` shows them. A pipe gets every column, one line per row, and no
headings. Programs must read `--json` instead, which is exact.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ledger.shown_text import shown_text
from ledger.units import duration_text, size_text

WIDTH_DEFAULT = 80
_GAP = "  "
_PROSE_WORDS_MIN = 4
_PROSE_WIDTH_MIN = 24
_UNITS = (("_bytes", "_size"), ("_seconds", ""), ("_ms", ""), ("_s", ""))
"""Ends of the names of columns, and what a heading has instead."""


@dataclass(frozen=True, slots=True)
class Page:
    """Where tables are written."""

    width: int | None
    """Columns of the terminal; None: a pipe or a file."""
    is_wide: bool
    """Whether all columns are shown, and times in full, however wide that is."""
    has_styles: bool
    now: datetime


def page_of_stdout(*, is_wide: bool) -> Page:
    """Returns the page that stdout is now. NO_COLOR and TERM=dumb switch styles off."""
    is_terminal = sys.stdout.isatty()
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Page(
        width=shutil.get_terminal_size((WIDTH_DEFAULT, 24)).columns if is_terminal else None,
        is_wide=is_wide,
        has_styles=is_terminal and not is_plain,
        now=datetime.now(UTC),
    )


def property_lines(data: Mapping[str, object], title: str, page: Page) -> list[str]:
    """Returns the lines of one object: a name and a value each."""
    rows = [
        (shown_text(_heading(name, [value])), shown_text(_cell(name, value, page)))
        for name, value in data.items()
    ]
    if page.width is None:
        return ["\t".join(row) for row in rows]
    name_width = max((_width(name) for name, _ in rows), default=0)
    room = page.width - name_width - len(_GAP)
    lines = [_styled(shown_text(title), page)]
    for name, value in rows:
        folded = [value] if page.is_wide else _folded(value, max(room, 8))
        lines += [
            f"{_padded(name if number == 0 else '', name_width)}{_GAP}{part}".rstrip()
            for number, part in enumerate(folded)
        ]
    return lines


def row_lines(
    items: Sequence[Mapping[str, object]], title: str, page: Page
) -> tuple[list[str], list[str]]:
    """Returns the lines of a table with a row for each item, and the headings left out."""
    names = list(items[0])
    rows = [[shown_text(_cell(name, item[name], page)) for name in names] for item in items]
    if page.width is None:
        return ["\t".join(row) for row in rows], []
    columns = [
        _Column(
            _heading(name, [item[name] for item in items]),
            [row[number] for row in rows],
            is_number=all(_is_number(item[name]) for item in items),
        )
        for number, name in enumerate(names)
    ]
    shown = columns if page.is_wide else _fitting(columns, page.width)
    lines = [_styled(shown_text(title), page)]
    heading = _GAP.join(_padded(c.heading, c.width, c.is_number) for c in shown)
    lines.append(_styled(heading.rstrip(), page))
    for number in range(len(rows)):
        parts = [_folded(column.cells[number], column.width) for column in shown]
        for line in range(max(map(len, parts))):
            cells = [
                _padded(part[line] if line < len(part) else "", column.width, column.is_number)
                for part, column in zip(parts, shown, strict=True)
            ]
            lines.append(_GAP.join(cells).rstrip())
    return lines, [column.heading for column in columns if column not in shown]


class _Column:
    def __init__(self, heading: str, cells: list[str], *, is_number: bool) -> None:
        self.heading = heading
        self.cells = cells
        self.is_number = is_number
        self.is_prose = any(cell.count(" ") >= _PROSE_WORDS_MIN - 1 for cell in cells)
        self.width = max([_width(heading), *map(_width, cells)])


def _fitting(columns: Sequence[_Column], width: int) -> list[_Column]:
    """Returns the columns that fit, and narrows those of prose. The first column stays, and
    sentences stay longer than what has a name."""
    shown = list(columns)
    while True:
        over = sum(column.width for column in shown) + len(_GAP) * (len(shown) - 1) - width
        prose = [column for column in shown if column.is_prose]
        slack = sum(max(0, column.width - _PROSE_WIDTH_MIN) for column in prose)
        if over <= slack or len(shown) == 1:
            break
        others = [column for column in shown[1:] if not column.is_prose]
        shown.remove(others[-1] if others else shown[-1])
    for column in sorted(prose, key=lambda one: -one.width):
        taken = min(max(over, 0), max(0, column.width - _PROSE_WIDTH_MIN))
        column.width -= taken
        over -= taken
    if over > 0:
        shown[0].width = max(1, shown[0].width - over)
    return shown


def _heading(name: str, values: Sequence[object]) -> str:
    """Returns the name of a column as its heading: without the unit if the values get one."""
    if name == "bytes":
        return "size"
    if any(map(_is_number, values)) and not name.endswith("_per_s"):
        for unit, shown in _UNITS:
            if name.endswith(unit):
                return f"{name.removesuffix(unit)}{shown}".replace("_", " ")
    return name.replace("_", " ")


def _cell(name: str, value: object, page: Page) -> str:
    if _is_number(value):
        assert isinstance(value, int | float), "what _is_number means"
        if name == "bytes" or name.endswith("_bytes"):
            return size_text(int(value))
        if name.endswith("_ms"):
            return duration_text(int(value))
        if name.endswith(("_s", "_seconds")) and not name.endswith("_per_s"):
            return duration_text(int(value * 1000))
    if isinstance(value, str) and not page.is_wide:
        return _age(value, page.now) or value
    return shown(value)


def shown(value: object) -> str:
    """Returns a value as text without a unit."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={shown(item)}" for key, item in value.items())
    return str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _age(text: str, now: datetime) -> str | None:
    """Returns "3 d ago" or "in 2 h" for a time as `time_of` writes it, else None."""
    if not (text.endswith("Z") and "T" in text and text[:4].isdigit()):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    seconds = int((now - moment).total_seconds())
    amount = duration_text(abs(seconds) * 1000)
    return f"{amount} ago" if seconds >= 0 else f"in {amount}"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _padded(text: str, width: int, is_right: bool = False) -> str:
    padding = " " * (width - _width(text))
    return padding + text if is_right else text + padding


def _folded(text: str, width: int) -> list[str]:
    if _width(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _styled(text: str, page: Page) -> str:
    return f"\x1b[1m{text}\x1b[0m" if page.has_styles else text
