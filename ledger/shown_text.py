"""Text from elsewhere as it may be shown: without characters that control a terminal or mislead.

Names, values, errors and log lines hold what others wrote: a record, a bookie's id, an answer over
HTTP. Shown as they are, they could move the cursor, change its title or colours, reorder a line or
hide a part of it. Everything that is shown to people passes here, and so does JSON, which stays the
same document. Pure.
"""

from __future__ import annotations

import json
import re

_SERVERS = re.compile(r"[^:,;@]+(?::\d{1,5})?(?:[,;][^:,;@]+(?::\d{1,5})?)*|.*\[.*")
_HIDDEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls: C0, DEL, C1
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # without width
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # without width, line separators, bidirectional
    "\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\ud800-\udfff"  # halves of pairs, and bytes of arguments that are not UTF-8
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


def shown_text(text: str) -> str:
    r"""Returns `text` on one line, with \x1b, \u202e and the like for what controls a terminal,
    misleads or is invisible. A byte that was not UTF-8 (U+DCFF) is \xff."""
    return _HIDDEN.sub(_escape, text)


def shown_bytes(data: bytes) -> bytes:
    """Returns bytes that are perhaps UTF-8 as `shown_text` in UTF-8."""
    return shown_text(data.decode("utf-8", "surrogateescape")).encode()


def shown_address(uri: str) -> str:
    """Returns the address of a cluster without a user and a password, as `zk://host/ledgers`. They
    are not supported, but given; a password may have slashes, and a path may have an `@`."""
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme == "sqlite":
        return uri
    slashes = "//" if rest.startswith("//") else ""
    authority, _, path = rest.removeprefix(slashes).partition("/")
    has_servers = slashes and _SERVERS.fullmatch(authority)
    if "@" not in authority and ("@" not in path or has_servers):
        return uri
    return f"{scheme if slashes else '***'}:{slashes}{rest.rpartition('@')[2]}"


def escaped_json(text: str) -> str:
    r"""Returns a JSON text in which the same characters are \u escapes. It is parsed to the same
    document, if it is on one line and is not cut off."""
    return _HIDDEN.sub(_escape_in_json, text)


_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    if code <= 0xFF:
        return _SHORT.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _escape_in_json(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]
