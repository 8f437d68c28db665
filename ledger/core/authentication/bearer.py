"""Tokens in AUTH messages: the form of OAUTHBEARER (RFC 7628). What a token says is not decided
here."""

from __future__ import annotations

import re
from typing import Final

from ledger.errors import Unauthorized

TOKEN_BYTES_MAX: Final = 16 * 1024
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_MESSAGE = re.compile(
    rb"[ny],(?:a=[^,\x00-\x1f]{0,256})?,\x01((?:[A-Za-z]+=[^\x00\x01]*\x01)*)\x01"
)


def bearer_message(token: str) -> bytes:
    """Returns the client's only message. Raises Unauthorized for what cannot be a token."""
    data = token.encode()
    if len(data) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(data):
        raise Unauthorized(
            f"the token has characters that no token has, or is longer than {TOKEN_BYTES_MAX} bytes"
        )
    return b"n,,\x01auth=Bearer " + data + b"\x01\x01"


def token_in(message: bytes) -> str:
    """Returns the token in a client's message. Raises Unauthorized."""
    match = _MESSAGE.fullmatch(message) if len(message) <= TOKEN_BYTES_MAX + 1024 else None
    if match is None:
        raise Unauthorized("the message is not one of OAUTHBEARER")
    values = [part[5:] for part in match[1].split(b"\x01") if part.startswith(b"auth=")]
    if len(values) != 1 or values[0][:7].lower() != b"bearer ":
        raise Unauthorized("the message has no bearer token, or several")
    token = values[0][7:].strip(b" ")
    if not _TOKEN.fullmatch(token) or len(token) > TOKEN_BYTES_MAX:
        raise Unauthorized("the token has characters that no token has")
    return token.decode("ascii")
