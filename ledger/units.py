"""Durations and sizes as people write them: "7d", "1h30m", "10GiB", and back.

Parsing is exact. Text for people is rounded, and programs must never parse it.
"""

from __future__ import annotations

import re

from ledger.errors import InvalidArgument

_DURATIONS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZES = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip
_SIZES_BY_LOWER = {unit.lower(): factor for unit, factor in _SIZES.items()}
DURATION_MS_MAX = 1 << 50
"""The longest duration: 35,000 years, which every format and every calculation can hold."""

_DURATION = re.compile(r"(?:\d{1,15}(?:ms|[smhdw]))+", re.ASCII)
_SIZE = re.compile(r"(\d{1,18})\s*([A-Za-z]+)", re.ASCII)


def parse_duration_ms(text: str) -> int:
    """Parses "7d", "1h30m", "500ms", or a bare number of milliseconds. Raises InvalidArgument."""
    word = text.strip()
    if word.isascii() and word.isdigit() and len(word) <= 18:
        return _bounded(int(word), text)
    if not _DURATION.fullmatch(word):
        raise InvalidArgument(
            f"duration {text[:40]!r}: write 7d, 1h30m, 90s or a number of milliseconds"
        )
    parts = re.findall(r"(\d+)(ms|[smhdw])", word)
    return _bounded(sum(int(number) * _DURATIONS[unit] for number, unit in parts), text)


def _bounded(milliseconds: int, text: str) -> int:
    """Raises InvalidArgument beyond the longest duration."""
    if milliseconds > DURATION_MS_MAX:
        longest = DURATION_MS_MAX // _DURATIONS["d"]
        raise InvalidArgument(f"duration {text[:40]!r} is longer than {longest:,} days, the most")
    return milliseconds


def parse_size_bytes(text: str) -> int:
    """Parses "10GiB", "500 MB", or a bare number of bytes. Raises InvalidArgument."""
    word = text.strip()
    if word.isascii() and word.isdigit() and len(word) <= 19:
        return int(word)
    match = _SIZE.fullmatch(word)
    if match is None or match[2].lower() not in _SIZES_BY_LOWER:
        raise InvalidArgument(
            f"size {text[:40]!r}: write 10GiB, 500MB or a number of bytes "
            f"(units: {', '.join(_SIZES)})"
        )
    return int(match[1]) * _SIZES_BY_LOWER[match[2].lower()]


def duration_text(milliseconds: int) -> str:
    """Returns a duration in its two largest units: "3 d 4 h", "1 h", "12 s", "40 ms"."""
    if milliseconds < 0:
        return f"-{duration_text(-milliseconds)}"
    words = []
    rest = milliseconds
    for unit in ("d", "h", "m", "s", "ms"):
        number, rest = divmod(rest, _DURATIONS[unit])
        if number:
            words.append(f"{number} {'min' if unit == 'm' else unit}")
        elif words:
            break  # "3 d 4 h", but not "3 d 4 s"
        if len(words) == 2:
            break
    if len(words) == 2 and words[1].endswith(" ms"):
        words.pop()
    return " ".join(words) or "0 s"


def size_text(nbytes: int) -> str:
    """Returns a size with three digits and a binary unit: "812 B", "1.50 MiB", "256 MiB"."""
    if nbytes < 1000:
        return f"{nbytes} B"
    amount = nbytes / 1024
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1000 or unit == "TiB":
            return f"{amount:.2f} {unit}" if amount < 10 else f"{amount:,.0f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit has no upper bound")
