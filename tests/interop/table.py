"""Formats and parses the table of docs/interoperability.md; the result of formatting can be parsed.

Does not depend on tests and results; `tests.interop.results` fills the table, and
`tests.tidy.test_interoperability` reads it where Java is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BEGIN = "<!-- interop table: begin (generated: python -m tests.interop.results --write) -->"
END = "<!-- interop table: end -->"
WORDS = ("yes", "no", "n.a.", "not run")
_CELL = re.compile(r"(yes|no|n\.a\.|not run)(?: \((\d+)\))?")
_FOOTNOTE = re.compile(r"\((\d+)\) (.+)")
_BOTH = ", "
_AREAS = (
    "Java client, our bookies",
    "our client, Apache bookies",
    "mixed ensembles",
    "takeover",
    "metadata",
    "wire",
    "bookkeeper shell",
    "auto-recovery",
    "our auto-recovery",
)
"""Areas in the order of the table; others follow."""


class Row(NamedTuple):
    """A row. `wire` is one version, or "-" where it makes no difference."""

    area: str
    feature: str
    wire: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell. `word` is one of WORDS; `reason` is the cause or the limits."""

    word: str
    reason: str = ""


Table = dict[Row, dict[str, Cell]]
"""The cells of each row, by column: a version of BookKeeper, or another program."""


def format_table(table: Table, versions: Sequence[str]) -> str:
    """Returns Markdown: first the rows about versions, then those about other programs.

    Rows that are the same for both wire versions become one line.
    """
    footnotes: dict[str, int] = {}
    lines = _head(("Area", "Feature", "Wire", *versions))
    programs = _head(("Program", "Feature", "Wire", "Works"))
    heads = len(programs)
    for row, found in _merged(table):
        cells = {column: _format_cell(cell, footnotes) for column, cell in found.items()}
        if set(cells) & set(versions):
            lines.append(_line(*row, *(cells.pop(version, "-") for version in versions)))
        for program, cell in cells.items():
            programs.append(_line(program, f"{row.area}: {row.feature}", row.wire, cell))
    if len(programs) > heads:
        lines += ["", *programs]
    if footnotes:
        lines += ["", *(f"({number}) {reason}  " for reason, number in footnotes.items())]
    return "\n".join(lines) + "\n"


def _merged(table: Table) -> list[tuple[Row, dict[str, Cell]]]:
    """Returns the rows in order; rows that differ only in the wire version are merged."""
    merged: list[tuple[Row, dict[str, Cell]]] = []
    for row in sorted(table, key=_place):
        if merged:
            last, cells = merged[-1]
            if (last.area, last.feature) == (row.area, row.feature) and cells == table[row]:
                merged[-1] = (row._replace(wire=f"{last.wire}{_BOTH}{row.wire}"), cells)
                continue
        merged.append((row, table[row]))
    return merged


def parse_table(text: str) -> Table:
    """Parses the table of a document. Raises ValueError if it is not well-formed."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the document must have the lines {BEGIN} and {END} once")
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    notes = {m[1]: m[2].strip() for line in lines if (m := _FOOTNOTE.fullmatch(line))}
    table: Table = {}
    used: set[str] = set()
    columns: list[str] = []
    for line in lines:
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = _split(line)[3:]
        elif not line.startswith("|---"):
            merged, cells = _parse_line(line, columns, notes, used)
            for wire in merged.wire.split(_BOTH):
                row = merged._replace(wire=wire)
                if table.setdefault(row, {}).keys() & cells.keys():
                    raise ValueError(f"twice: {line}")
                table[row].update(cells)
    if used != set(notes):
        raise ValueError(f"footnotes without a reference: {sorted(set(notes) - used)}")
    return table


def _parse_line(
    line: str, columns: list[str], notes: dict[str, str], used: set[str]
) -> tuple[Row, dict[str, Cell]]:
    fields = _split(line)
    if len(fields) != 3 + len(columns):
        raise ValueError(f"{len(fields)} fields, not {3 + len(columns)}: {line}")
    row = Row(*fields[:3])
    if columns == ["Works"]:
        columns, (area, _, feature) = [row.area], row.feature.partition(": ")
        row = Row(area, feature, row.wire)
    cells: dict[str, Cell] = {}
    for column, text in zip(columns, fields[3:], strict=True):
        if text == "-":
            continue
        match = _CELL.fullmatch(text)
        if match is None or (match[2] and match[2] not in notes):
            raise ValueError(f"a cell is {text!r}: {line}")
        used.update({match[2]} - {None})
        cells[column] = Cell(match[1], notes[match[2]] if match[2] else "")
    return row, cells


def _place(row: Row) -> tuple[int, Row]:
    return (_AREAS.index(row.area) if row.area in _AREAS else len(_AREAS), row)


def _format_cell(cell: Cell, footnotes: dict[str, int]) -> str:
    if not cell.reason:
        return cell.word
    return f"{cell.word} ({footnotes.setdefault(cell.reason, len(footnotes) + 1)})"


def _head(names: Sequence[str]) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*fields: str) -> str:
    return "| " + " | ".join(fields) + " |"


def _split(line: str) -> list[str]:
    return [field.strip() for field in line.strip().strip("|").split("|")]
