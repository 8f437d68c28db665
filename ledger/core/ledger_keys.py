"""Derives the passwords of ledgers from the secret of their cluster, and recognizes their keys.

A ledger's password is an HMAC of the secret and the ledger's id. So a bookie that has the secret
recognizes the key of a ledger that it has never seen, without its metadata, and the metadata need
not hold the password: `completed` fills it in. The custom metadata `ledgerstream-key` names the
secret (docs/formats.md). A secret must never be shown, nor compared in a time that depends on it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.core.entry import master_key
from ledger.core.metadata import DERIVED_KEY_PREFIX, OWN_KEY_TAG, LedgerMetadata
from ledger.errors import InvalidArgument, Unauthorized

SECRET_BYTES_MIN: Final = 32
SECRETS_MAX: Final = 16
"""Each contact with an unknown ledger tries all of them."""
_FILE_BYTES_MAX: Final = 64 * 1024
_PASSWORD_LABEL: Final = b"ledgerstream ledger password v1"
_ID_LABEL: Final = b"ledgerstream cluster secret id v1"
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """One secret of a cluster."""

    value: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """A name that does not reveal the secret: 16 hexadecimal digits."""
        return hmac.digest(self.value, _ID_LABEL, hashlib.sha256)[:8].hex()

    def password(self, ledger_id: int) -> bytes:
        """Returns the password (32 bytes) of a ledger of the cluster."""
        message = _PASSWORD_LABEL + ledger_id.to_bytes(8, "big")
        return hmac.digest(self.value, message, hashlib.sha256)


class LedgerKeys:
    """The secrets of a cluster; without one it derives and recognizes nothing.

    Args:
        secrets: keys of new ledgers come from the first; those of the others are accepted.
    """

    def __init__(self, secrets: Sequence[ClusterSecret] = ()) -> None:
        self._secrets = tuple(secrets)
        self._by_tag = {DERIVED_KEY_PREFIX + one.name.encode(): one for one in secrets}

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def new_key(self, ledger_id: int) -> tuple[bytes, bytes]:
        """Returns the value of the tag `OWN_KEY_TAG` and the password of a new ledger. There must
        be a secret."""
        secret = self._secrets[0]
        return DERIVED_KEY_PREFIX + secret.name.encode(), secret.password(ledger_id)

    def completed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Returns the metadata with its derived password, if it has one and the secret is here."""
        if not metadata.has_derived_key:
            return metadata
        secret = self._by_tag.get(metadata.custom[OWN_KEY_TAG])
        if secret is None:
            return metadata
        return replace(metadata, password=secret.password(metadata.ledger_id))

    def is_derived(self, ledger_id: int, key: bytes | memoryview) -> bool:
        """Returns whether `key` is the master key of this ledger by one of the secrets."""
        return any(
            hmac.compare_digest(master_key(one.password(ledger_id)), key) for one in self._secrets
        )


NO_KEYS: Final = LedgerKeys()


def master_key_of(metadata: LedgerMetadata) -> bytes:
    """Returns the master key of a ledger; b"" if its secret is unknown here."""
    return b"" if metadata.is_key_missing else master_key(metadata.password)


def check_key_known(metadata: LedgerMetadata) -> None:
    """Raises Unauthorized if the key of the ledger is derived from a secret that is unknown here,
    so that it can be neither fenced nor written."""
    if metadata.is_key_missing:
        tag = metadata.custom[OWN_KEY_TAG].removeprefix(DERIVED_KEY_PREFIX)
        name = tag.decode("ascii", "replace")
        raise Unauthorized(
            f"ledger {metadata.ledger_id} has a key that is derived from the cluster secret "
            f"{name!r}, which this process does not have. Cure: give the file with it, by "
            "cluster_secret_file or LEDGERSTREAM_CLUSTER_SECRET_FILE"
        )


def parse_secrets(data: bytes, source: str) -> LedgerKeys:
    """Returns the secrets in a file: one in each line, but for empty ones and those that begin
    with `#`; at least 32 printable ASCII characters without spaces, such as 64 hexadecimal digits.

    Args:
        data: the bytes of the file.
        source: names it in errors, which never quote it.

    Raises InvalidArgument.
    """
    if len(data) > _FILE_BYTES_MAX:
        raise InvalidArgument(f"{source} has more than {_FILE_BYTES_MAX} bytes: {_CURE}")
    found: dict[bytes, ClusterSecret] = {}
    for number, line in enumerate(data.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        if len(text) < SECRET_BYTES_MIN or not _PRINTABLE.fullmatch(text):
            raise InvalidArgument(
                f"{source}, line {number}: {len(text)} bytes; a secret is at least "
                f"{SECRET_BYTES_MIN} printable ASCII characters without spaces: {_CURE}"
            )
        found[text] = ClusterSecret(text)
    if not 1 <= len(found) <= SECRETS_MAX:
        raise InvalidArgument(f"{source} has {len(found)} secrets, 1 to {SECRETS_MAX}: {_CURE}")
    return LedgerKeys(tuple(found.values()))


_CURE = "Cure: make a file with `openssl rand -hex 32`, the same for all bookies and clients"
