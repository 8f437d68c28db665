"""One line of an audit log, as bookies and commands write it: who did what, from where, with what
outcome. Pure.

The form is documented in docs/security.md. A line must never hold a payload, a password, a token or
a key: callers name each field, and nothing is taken from requests as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from ledger.core.times import time_text
from ledger.shown_text import escaped_json

TEXT_MAX: Final = 500
"""Characters of one text: peers choose some of them."""
LIST_MAX: Final = 100
"""Values of one list."""

Field: TypeAlias = "str | int | bool | Sequence[Field] | Mapping[str, Field] | None"


def audit_line(
    time_ms: int, source: tuple[str, str], action: str, outcome: str, /, **fields: Field
) -> bytes:
    """Returns one line of JSON with its end.

    Args:
        time_ms: milliseconds since 1970.
        source: what wrote it, like ("bookie", "10.0.0.1:3181").
        action: what was done, like "write".
        outcome: "ok", "allowed", "refused", "failed" or a status of HTTP.
        fields: all others, in their order. Those that are None are left out, and long ones cut off.
    """
    line: dict[str, Field] = {
        "time": str(time_text(time_ms)),
        source[0]: source[1][:TEXT_MAX],
        "action": action,
        "outcome": outcome,
    }
    line |= {name: _bounded(value) for name, value in fields.items() if value is not None}
    return escaped_json(json.dumps(line, ensure_ascii=False)).encode() + b"\n"


def _bounded(value: Field) -> Field:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}..."
    if isinstance(value, Mapping):
        return {name: _bounded(one) for name, one in list(value.items())[:LIST_MAX]}
    if isinstance(value, Sequence):
        return [_bounded(one) for one in value[:LIST_MAX]]
    return value
