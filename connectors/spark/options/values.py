"""Single values of options: one function per kind of value, from Spark's text to a typed value.

Knows no option by name. A value that cannot be read raises InvalidArgument saying what would be
right; the caller adds the option's name.
"""

from __future__ import annotations

import difflib
import json
import re
from datetime import UTC, datetime

from ledger.errors import InvalidArgument
from stream.core.names import check_name
from stream.core.position import FromEnd, FromSequence, FromTime, Position, Start, parse_start
from stream.core.units import parse_duration_ms, parse_size_bytes

STREAM_FORM = "NAMESPACE/STREAM, like demo/clicks, or one partition of it, demo/clicks#2"
START_FORMS = (
    "earliest, latest, segment:entry:slot, sequence=N, time=MS or time=2026-01-31T12:00:00Z, "
    "event-time= likewise, cursor=NAME, end=N"
)
_SPARK_SIZE = re.compile(r"(\d{1,15})\s*([kmgt])", re.ASCII | re.IGNORECASE)
_POWER = {"k": 10, "m": 20, "g": 30, "t": 40}
_NO_MILLISECONDS = range(10**7, 10**10)
"""Nothing was appended in early 1970: these are seconds, or a date without dashes."""
_TIMES = ("time=", "event-time=")


def stream_name(text: str) -> str:
    """ "demo/clicks", checked; what is around it is stripped."""
    namespace, slash, stream = text.strip().partition("/")
    if not slash or not stream:
        raise InvalidArgument("a stream has two names, with a slash between")
    return f"{check_name(namespace, 'namespace')}/{check_name(stream)}"


def list_items(text: str) -> tuple[str, ...]:
    """A list separated by commas, or a JSON list of strings; without the empty ones."""
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"begins like a JSON list, but is none: {error}") from None
        if not all(isinstance(word, str) for word in listed):
            raise InvalidArgument("a JSON list must hold strings only")
    else:
        listed = text.split(",")
    found = tuple(word.strip() for word in listed if word.strip())
    if not found:
        raise InvalidArgument("the list is empty")
    return found


def start(text: str) -> Start:
    """All that `stream.parse_start` reads, and times in ISO 8601 (UTC if they name no zone)."""
    word = text.strip()
    for prefix in _TIMES:
        rest = word.removeprefix(prefix)
        if rest is not word:
            if not rest.isdigit():
                return parse_start(f"{prefix}{_milliseconds(rest)}")
            if prefix == "time=" and int(rest[:20]) in _NO_MILLISECONDS:
                raise InvalidArgument(
                    f"{rest} milliseconds are a time in 1970: write seconds as {rest}000, and a "
                    f"date as 2026-01-31"
                )
    if word.lower() in ("earliest", "latest") or ":" in word or "=" in word:
        try:
            return parse_start(word)
        except InvalidArgument as error:
            raise InvalidArgument(str(error).partition(": use ")[0]) from None
    raise InvalidArgument(f"{word[:80]!r} is no place in a stream")


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is no time: write milliseconds since 1970, or 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise InvalidArgument(f"{text!r} is before 1970")
    return milliseconds


def starts(text: str) -> tuple[Start | None, dict[str, Start]]:
    """One form for all streams, or JSON `{"demo/clicks": form, "*": form}`.

    Returns:
        What holds for all that are not named (None: nothing was said), and the named.
    """
    if not text.lstrip().startswith("{"):
        return start(text), {}
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"begins like a JSON object, but is none: {error}") from None
    found: dict[str, Start] = {}
    everywhere: Start | None = None
    for name, form in given.items():
        if not isinstance(form, str):
            raise InvalidArgument(f"{name!r}: {form!r} is no text")
        if name == "*":
            everywhere = start(form)
        else:
            found[stream_name(name)] = start(form)
    return everywhere, found


def is_behind(start: Start, end: Start) -> bool:
    """Whether nothing can be between them in any stream; places of two kinds may be anywhere."""
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
    """ "64m" (binary, as in Spark's settings), "64MiB", "500MB", or bytes. At least 1."""
    spark = _SPARK_SIZE.fullmatch(text.strip())
    try:
        size = int(spark[1]) << _POWER[spark[2].lower()] if spark else parse_size_bytes(text)
    except InvalidArgument:
        raise InvalidArgument("is no size") from None
    if size < 1:
        raise InvalidArgument("must be at least 1 byte")
    return size


def duration_ms(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except InvalidArgument:
        raise InvalidArgument("is no duration") from None


def count(text: str) -> int:
    """A whole number, 1 or more; `_` may separate digits."""
    word = text.strip().replace("_", "")
    if not (word.isascii() and word.isdigit() and len(word) <= 18 and int(word) >= 1):
        raise InvalidArgument("must be a whole number, 1 or more")
    return int(word)


def version(text: str) -> int:
    """A whole number, 0 or more."""
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 18):
        raise InvalidArgument("must be a whole number, 0 or more")
    return int(word)


def flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise InvalidArgument("must be true or false")
    return word == "true"


def one_of(text: str, accepted: tuple[str, ...]) -> str:
    word = text.strip().lower()
    if word not in accepted:
        raise InvalidArgument(f"must be {', '.join(accepted[:-1])} or {accepted[-1]}")
    return word


def known(text: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Some of these columns, each once."""
    found = tuple(word.lower() for word in list_items(text))
    for word in found:
        if word not in columns:
            meant = nearest(word, list(columns))
            hint = f", did you mean {meant}?" if meant else ""
            raise InvalidArgument(f"no column {word!r}{hint} Columns are {', '.join(columns)}")
    if len(set(found)) != len(found):
        raise InvalidArgument("a column is named twice")
    return found


def nearest(word: str, names: list[str]) -> str | None:
    """The one of `names` that was most likely meant, whatever its case."""
    by_lower = {name.lower(): name for name in names}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None
