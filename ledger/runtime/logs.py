"""The log of a process: one line per event, as text with `key=value` or as JSON, on stderr or in a
file.

Modules call `logging` with a message like `"disk is full directory=%s free_bytes=%d"`. The formats
here know from it which arguments are fields, so a value with spaces is quoted, and in JSON each
field has its own name. Only main programs call `open_log`: a library must not configure logging.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from ledger.errors import InvalidArgument
from ledger.runtime.private_files import private_opener
from ledger.shown_text import escaped_json, shown_text

LEVEL_VARIABLE = "LEDGERSTREAM_LOG_LEVEL"
FORMAT_VARIABLE = "LEDGERSTREAM_LOG_FORMAT"
FILE_VARIABLE = "LEDGERSTREAM_LOG_FILE"
VARIABLES = (LEVEL_VARIABLE, FORMAT_VARIABLE, FILE_VARIABLE)
LEVELS = ("debug", "info", "warning", "error", "critical")
OF_PEER: Final = {"of_peer": True}
"""The argument `extra` of lines that a peer causes as often as it likes."""
PEER_LINES_MAX: Final = 20
PEER_LINES_S: Final = 10.0
"""No more of these lines of one kind are written in this time: an attack must not fill the disk."""
_FIELD = re.compile(r"(?:\b(\w+)=)?%(?:%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")
_PLAIN = re.compile(r"[^\s\"\\=]+\Z")


def _parts(record: logging.LogRecord) -> Iterator[tuple[str | None, str]]:
    """Yields the message in pieces: (None, text) and (key, value)."""
    args = record.args
    if not isinstance(args, tuple) or not isinstance(record.msg, str):
        yield None, record.getMessage()
        return
    at, left = 0, list(args)
    for found in _FIELD.finditer(record.msg):
        yield None, record.msg[at : found.start()]
        at = found.end()
        spec = found[0].removeprefix(f"{found[1]}=") if found[1] else found[0]
        yield found[1], "%" if spec == "%%" else spec % (left.pop(0),)
    yield None, record.msg[at:]


def _one_line(text: str) -> str:
    return shown_text(" ".join(text.split("\n")))


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER event key=value`; values with spaces or quotes are JSON strings."""

    def format(self, record: logging.LogRecord) -> str:
        text = "".join(
            value if key is None else f"{key}={_quoted(value)}" for key, value in _parts(record)
        )
        line = f"{_time_of(record)} {record.levelname} {record.name} {_one_line(text)}"
        return "\n".join([line, *_traceback(self, record)])


class MessageFormatter(logging.Formatter):
    """The message alone, as commands print warnings."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join([_one_line(record.getMessage()), *_traceback(self, record)])


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    if not record.exc_info:
        return []
    return [shown_text(line) for line in formatter.formatException(record.exc_info).split("\n")]


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, and the fields by their names."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = "", {}
        for key, value in _parts(record):
            if key is None:
                event += value
            else:
                fields[key] = value
        line = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": " ".join(event.split()),
            **{f"field_{key}" if key in _OWN else key: value for key, value in fields.items()},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(line, ensure_ascii=False))


_OWN = ("time", "level", "logger", "event", "traceback")


class PeerLineLimit(logging.Filter):
    """Leaves out lines with the mark OF_PEER that are too many of their kind, which is their
    message without the fields. The next line that is written says how many, as `left_out`."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}
        """When the time of a kind began, and how many lines it has had since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "of_peer", False):
            return True
        kind, now = (record.name, record.msg), record.created
        begun_at, lines = self._kinds.get(kind, (now, 0))
        left_out = max(0, lines - PEER_LINES_MAX)
        if not 0 <= now - begun_at < PEER_LINES_S:
            begun_at, lines = now, 0
        self._kinds[kind] = begun_at, lines + 1
        if lines >= PEER_LINES_MAX:
            return False
        if lines == 0 and left_out and isinstance(record.args, tuple):
            record.msg = f"{record.msg} left_out=%d"
            record.args = (*record.args, left_out)
        return True


def _quoted(value: str) -> str:
    is_plain = _PLAIN.match(value) and shown_text(value) == value
    return value if is_plain else escaped_json(json.dumps(value, ensure_ascii=False))


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def open_log(environment: Mapping[str, str], *, level: str = "info") -> Callable[[], bool]:
    """Sends the log of this process to stderr, or to the file that the environment names.

    A file takes the place of stderr as a whole, so that what the interpreter prints is in it, too.
    Returns a function that opens the file again, after it was renamed; it returns False, and does
    nothing, if the log goes to stderr.

    Args:
        environment: `LEDGERSTREAM_LOG_LEVEL`, `LEDGERSTREAM_LOG_FORMAT` (text or json) and
            `LEDGERSTREAM_LOG_FILE`.
        level: the level if the environment names none.

    Raises:
        InvalidArgument: for an unknown level or format, or a file that cannot be opened.
    """
    level = environment.get(LEVEL_VARIABLE, "").lower() or level
    if level not in LEVELS:
        raise InvalidArgument(f"{LEVEL_VARIABLE} is '{level}', use one of {', '.join(LEVELS)}")
    kinds: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}
    kind = environment.get(FORMAT_VARIABLE, "").lower() or "text"
    if kind not in kinds:
        raise InvalidArgument(f"{FORMAT_VARIABLE} is '{kind}', use one of {', '.join(kinds)}")
    path = environment.get(FILE_VARIABLE, "")

    def reopen() -> bool:
        if path:
            _stderr_to(path)
        return bool(path)

    reopen()
    handler = logging.StreamHandler()
    handler.setFormatter(kinds[kind]())
    handler.addFilter(PeerLineLimit())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return reopen


def escape_warnings() -> None:
    """Has warnings of a process that opens no log printed without codes that control a terminal.

    Names in the metadata are in them, which anybody may have chosen who can write there.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(MessageFormatter())


def _stderr_to(path: str) -> None:
    try:
        file = private_opener(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError as error:
        raise InvalidArgument(
            f"the log file {path} cannot be opened: {error.strerror}. Cure: change "
            f"{FILE_VARIABLE}, or let this user write there"
        ) from error
    sys.stderr.flush()
    os.dup2(file, 2)
    os.close(file)
