"""Compares an add with the entry that the bookie has: history is never changed.

Entries are added again for good reasons: a writer sends again what a lost connection may not have
delivered, and a recovery or a replication worker sends what a bookie may have. The payload is the
same then, and so is the length of the ledger up to it; only a recovery names another LAC, which
changes the digest. The first entry stays whatever a later add says, so that a comparison that is
wrong costs no more than a wrong answer.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from bookie.core.caches import Buffer
from bookie.core.integrity import HEADER_BYTES, digest_that_fits

_IDS: Final = slice(0, 16)
_LAC: Final = slice(16, 24)
_LENGTH: Final = slice(24, 32)
_DIGEST_BYTES: Final = {"CRC32C": 4, "CRC32": 8}
_LONGEST_DIGEST_BYTES: Final = 20
"""That of HMAC, which no bookie can check."""


class Presence(Enum):
    """Whether the entry of an add is on the bookie already."""

    ABSENT = auto()
    """It is not, or what is there is damaged: the add is stored."""
    EQUAL = auto()
    """It is: nothing is stored, and the add is acknowledged."""
    OTHER = auto()
    """Another entry is in its place: the add is refused."""
    UNREAD = auto()
    """A disk must be read to compare them."""


def compare(stored: Buffer, sent: Buffer) -> Presence:
    """Returns EQUAL or OTHER for two entries with one ledger and entry id, header included.

    Under another LAC, the digest that fits the stored entry shows where its payload begins. If none
    fits, it is an entry with HMAC or without a digest; then what HMAC's digest would occupy is not
    compared.
    """
    old, new = memoryview(stored), memoryview(sent)
    if len(old) != len(new) or old[_IDS] != new[_IDS] or old[_LENGTH] != new[_LENGTH]:
        return Presence.OTHER
    if old[HEADER_BYTES:] == new[HEADER_BYTES:]:
        return Presence.EQUAL
    if old[_LAC] == new[_LAC]:
        return Presence.OTHER  # the same header and payload would have the same digest
    digest = digest_that_fits(old)
    size = _LONGEST_DIGEST_BYTES if digest is None else _DIGEST_BYTES[digest]
    at = HEADER_BYTES + size
    is_same = len(old) >= at and old[at:] == new[at:]
    return Presence.EQUAL if is_same else Presence.OTHER
