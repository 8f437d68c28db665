"""Which names namespaces and streams may have.

An allow-list: a name is a part of a metadata path and is printed everywhere.
"""

from __future__ import annotations

import re

from ledger.errors import InvalidArgument

NAME_LENGTH_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)


def check_name(name: str, what: str = "stream") -> str:
    """Returns `name` if it may name a `what`. Raises InvalidArgument saying what is wrong."""
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"the {what} name has {len(name)} characters, limit {NAME_LENGTH_MAX}"
        )
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{what} name {name!r}: use letters, digits, '.', '_' and '-' (ASCII), "
            f"beginning with a letter, a digit or '_'"
        )
    return name
