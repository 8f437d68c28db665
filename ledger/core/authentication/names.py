"""The names of users and of mechanisms.

A user name is also the name of a node in the metadata store, and it is shown in log lines and
tables, so that it has no character that is special in one of them.
"""

from __future__ import annotations

import re
from typing import Final

from ledger.errors import InvalidArgument

ANONYMOUS: Final = "anonymous"
"""The user of a connection that has not authenticated; nobody else can have this name."""
USER_CHARS_MAX: Final = 128
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]*", re.ASCII)

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
DIGEST_MD5: Final = "DIGEST-MD5"
TOKEN: Final = "TOKEN"
CERTIFICATE: Final = "CERTIFICATE"
MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, DIGEST_MD5, TOKEN, CERTIFICATE)

BASIC: Final = "Basic"
"""A password over HTTP."""
NOT_IN_CLEAR: Final = (TOKEN, DIGEST_MD5, BASIC)
"""A listener can use a token or a password of Basic as it is, and guess the password of an exchange
of DIGEST-MD5 at the speed of MD5. With SCRAM each guess takes 16,384 hashes."""

PLUGINS: Final = {
    SCRAM_SHA_256: SCRAM_SHA_256,
    SCRAM_SHA_512: SCRAM_SHA_512,
    DIGEST_MD5: "sasl",
    TOKEN: "OAUTHBEARER",
}
"""The plugin name in AUTH messages. Apache's plugin `sasl` names no mechanism: it is DIGEST-MD5. A
certificate was shown before, in the handshake of TLS."""


def check_user_name(name: str) -> str:
    """Returns the name. Raises InvalidArgument for one that no user can have."""
    if not _USER.fullmatch(name) or len(name) > USER_CHARS_MAX or name.lower() == ANONYMOUS:
        raise InvalidArgument(
            f"user name {name[: USER_CHARS_MAX + 1]!r}: use up to {USER_CHARS_MAX} letters and "
            f"digits of ASCII and . _ @ : + -, with a letter or digit in front; {ANONYMOUS!r} is "
            "the user of a connection without credentials"
        )
    return name
