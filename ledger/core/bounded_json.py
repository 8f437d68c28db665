"""Parses JSON of the metadata store, whose cost is bounded before it is parsed.

A few bytes of JSON can cost much memory and time: `[],` takes 64 bytes as a Python object. What is
parsed here was perhaps written by an attacker who can write metadata, and is parsed in the event
loop. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

ELEMENTS_MAX: Final = 1_000_000
"""Values in lists and objects. 20,000 segments of a stream, which fill a node, have 280,000."""
CONTAINERS_MAX: Final = 250_000
"""Lists and objects; 20,000 segments are one list each."""
DEPTH_MAX: Final = 32
"""How deep lists and objects are nested; no document of ours goes beyond 4."""
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"')
_NO_MARK: Final = bytes(sorted(set(range(256)) - set(b'"[]{}')))


def parse_json(data: bytes) -> Any:
    """Returns the value of JSON in UTF-8.

    Raises ValueError if it is not JSON, has more than ELEMENTS_MAX elements or CONTAINERS_MAX lists
    and objects, or is nested deeper than DEPTH_MAX. Commas and brackets in strings count, too.
    """
    elements = data.count(b",") + 1
    if elements > ELEMENTS_MAX:
        raise ValueError(f"it has {elements} elements, limit {ELEMENTS_MAX}")
    containers = data.count(b"[") + data.count(b"{")
    if containers > CONTAINERS_MAX:
        raise ValueError(f"it has {containers} lists and objects, limit {CONTAINERS_MAX}")
    if containers > DEPTH_MAX and not _is_shallow(data):
        raise ValueError(
            f"its brackets do not match, or lists and objects are nested over {DEPTH_MAX} deep"
        )
    return json.loads(data.decode())  # as text: of bytes, json guesses the encoding


def _is_shallow(data: bytes) -> bool:
    """Whether no more than DEPTH_MAX brackets are open at any place. Each round removes the pairs
    without content, so that one level less is left."""
    if b"\\" in data:
        data = _ESCAPE.sub(b"", data)
    left = _STRING.sub(b"", data.translate(None, _NO_MARK))
    for _ in range(DEPTH_MAX):
        if not left:
            break
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    return not left
