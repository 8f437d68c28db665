"""Parses single values of options: one function per kind of value, from Spark's text.

Knows no option by name. A value that cannot be parsed raises InvalidArgument with the accepted
form; the caller adds the option's name.
"""

from __future__ import annotations

import difflib
import json
import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from ledger.core.times import milliseconds_of
from ledger.errors import InvalidArgument
from ledger.units import parse_duration_ms, parse_size_bytes
from stream.core.names import check_name
from stream.core.position import FromEnd, FromSequence, FromTime, Position, Start, parse_start

STREAM_FORM = "NAMESPACE/STREAM, like demo/clicks, or one partition of it, demo/clicks#2"
START_FORMS = (
    "earliest, latest, segment:entry:slot, sequence=N, time=MS or time=2026-01-31T12:00:00Z, "
    "event-time= likewise, cursor=NAME, end=N"
)
_SPARK_SIZE = re.compile(r"(\d{1,15})\s*([kmgt])", re.ASCII | re.IGNORECASE)
_OFFSET = re.compile(r"[+-]\d\d:?\d\d", re.ASCII)
_POWER = {"k": 10, "m": 20, "g": 30, "t": 40}
_NO_MILLISECONDS = range(10**7, 10**10)
"""No record was appended in early 1970: such a number is seconds, or a date without dashes."""
_TIMES = ("time=", "event-time=")


def stream_name(text: str) -> str:
    """Returns a full name "demo/clicks", checked and stripped of white space."""
    namespace, slash, stream = text.strip().partition("/")
    if not slash or not stream:
        raise InvalidArgument("a stream has two names, separated by a slash")
    return f"{check_name(namespace, 'namespace')}/{check_name(stream)}"


def list_items(text: str) -> tuple[str, ...]:
    """Parses a list separated by commas, or a JSON list of strings; drops empty items."""
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"begins like a JSON list, but is not one: {error}") from None
        if not all(isinstance(item, str) for item in listed):
            raise InvalidArgument("a JSON list must hold strings only")
    else:
        listed = text.split(",")
    found = tuple(item.strip() for item in listed if item.strip())
    if not found:
        raise InvalidArgument("the list is empty")
    return found


def time_zone(text: str) -> tzinfo:
    """Parses a name like Europe/Berlin or UTC, or an offset like +02:00."""
    try:
        if _OFFSET.fullmatch(text.strip()):
            zone = datetime.strptime(text.strip(), "%z").tzinfo
            assert zone is not None, "%z gives a zone"
            return zone
        return ZoneInfo(text.strip())
    except (KeyError, ValueError, OSError):  # OSError: a directory of zones, like Europe
        raise InvalidArgument(f"{text[:80]!r} is no time zone of this machine") from None


def start(text: str, zone: tzinfo = UTC) -> Start:
    """Parses what `stream.parse_start` accepts, and times in ISO 8601, in `zone` if they name none.

    A local time that a change of the clock skips or repeats is that of before the change, as in
    Spark.
    """
    word = text.strip()
    for prefix in _TIMES:
        rest = word.removeprefix(prefix)
        if rest is not word:
            if not rest.removeprefix("-").isdigit():
                milliseconds = _milliseconds(rest, zone)
                if prefix == "time=" and milliseconds < 0:
                    raise InvalidArgument(f"{rest!r} is before 1970: no record was appended then")
                return parse_start(f"{prefix}{milliseconds}")
            if prefix == "time=" and int(rest[:20]) in _NO_MILLISECONDS:
                raise InvalidArgument(
                    f"{rest} milliseconds is a time in 1970: write seconds as {rest}000, and a "
                    f"date as 2026-01-31"
                )
    if word.lower() in ("earliest", "latest") or ":" in word or "=" in word:
        try:
            return parse_start(word)
        except InvalidArgument as error:
            raise InvalidArgument(str(error).partition(": use ")[0]) from None
    raise InvalidArgument(f"{word[:80]!r} is no position in a stream")


def _milliseconds(text: str, zone: tzinfo) -> int:
    try:
        time = datetime.fromisoformat(text)
        return milliseconds_of(time if time.tzinfo else time.replace(tzinfo=zone))
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is not a time: write milliseconds since 1970, or 2026-01-31T12:00:00Z"
        ) from None


def starts(text: str, zone: tzinfo = UTC) -> tuple[Start | None, dict[str, Start]]:
    """Parses one form for all streams, or JSON `{"demo/clicks": form, "*": form}`.

    Returns:
        The position for streams that are not named (None: not given), and those by name.
    """
    if not text.lstrip().startswith("{"):
        return start(text, zone), {}
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"begins like a JSON object, but is not one: {error}") from None
    found: dict[str, Start] = {}
    everywhere: Start | None = None
    for name, form in given.items():
        if not isinstance(form, str):
            raise InvalidArgument(f"{name!r}: {form!r} is not a string")
        if name == "*":
            everywhere = start(form, zone)
        else:
            found[stream_name(name)] = start(form, zone)
    return everywhere, found


def is_behind(start: Start, end: Start) -> bool:
    """Returns whether `start` is after `end` in every stream; different kinds are not compared."""
    match start, end:
        case (Position(), Position()):
            return start > end
        case (FromSequence(sequence=first), FromSequence(sequence=behind)):
            return first > behind
        case (FromTime(append_time_ms=first), FromTime(append_time_ms=behind)):
            return first > behind
        case (FromEnd(records=first), FromEnd(records=behind)):
            return first < behind
    return False


def size_bytes(text: str) -> int:
    """Parses "64m" (binary, as in Spark's settings), "64MiB", "500MB", or bytes; at least 1."""
    spark = _SPARK_SIZE.fullmatch(text.strip())
    try:
        size = int(spark[1]) << _POWER[spark[2].lower()] if spark else parse_size_bytes(text)
    except InvalidArgument:
        raise InvalidArgument("is not a size") from None
    if size < 1:
        raise InvalidArgument("must be at least 1 byte")
    return size


def size_or_none(text: str) -> int:
    """Parses a size, or "0"."""
    return 0 if text.strip() == "0" else size_bytes(text)


def duration_ms(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except InvalidArgument:
        raise InvalidArgument("is not a duration") from None


def count(text: str) -> int:
    """Parses an integer, 1 or more; `_` may separate digits."""
    word = text.strip().replace("_", "")
    if not (word.isascii() and word.isdigit() and len(word) <= 18 and int(word) >= 1):
        raise InvalidArgument("must be an integer, 1 or more")
    return int(word)


def version(text: str) -> int:
    """Parses an integer, 0 or more."""
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 18):
        raise InvalidArgument("must be an integer, 0 or more")
    return int(word)


def flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise InvalidArgument("must be true or false")
    return word == "true"


def file_name(text: str) -> str:
    """Parses the path or the name of a file."""
    name = text.strip()
    if not name or "\n" in name:
        raise InvalidArgument("must be the name of a file, not what is in it")
    return name


def one_of(text: str, accepted: tuple[str, ...]) -> str:
    word = text.strip().lower()
    if word not in accepted:
        raise InvalidArgument(f"must be {', '.join(accepted[:-1])} or {accepted[-1]}")
    return word


def known(text: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Parses a list of columns out of these; each may be named once."""
    found = tuple(item.lower() for item in list_items(text))
    for name in found:
        if name not in columns:
            meant = nearest(name, list(columns))
            hint = f", did you mean {meant}?" if meant else "."
            raise InvalidArgument(f"no column {name!r}{hint} Columns are {', '.join(columns)}")
    if len(set(found)) != len(found):
        raise InvalidArgument("a column is named twice")
    return found


def nearest(word: str, names: list[str]) -> str | None:
    """Returns the most similar of `names`, regardless of case, or None."""
    by_lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None
