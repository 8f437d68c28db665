"""To whom a ledger belongs by its metadata, and whether what is stored here belongs to it.

Clients of streams can write to the metadata store, so one could give a ledger of another namespace
to its own there. But it cannot change the key that bookies have stored with the entries: if that is
not the key that the metadata implies, the metadata speaks of another ledger than the one that is
here. Where a key is unknown there is doubt, which must never pass for a proof that they differ.
"""

from __future__ import annotations

import enum
import hmac
from dataclasses import dataclass, field

from bookie.core.journal_frames import MASTER_KEY_BYTES
from ledger.core.ledger_keys import master_key_of
from ledger.core.metadata import LedgerMetadata
from ledger.core.permissions import namespace_of_ledger


class Fit(enum.Enum):
    """Whether a ledger that is here is the one that its metadata describes."""

    FITS = enum.auto()
    DIFFERS = enum.auto()
    DOUBTFUL = enum.auto()
    """The metadata does not imply a key, or one from a secret that is not here."""


@dataclass(frozen=True, slots=True)
class LedgerOwner:
    """What the metadata of a ledger said of it.

    Attributes:
        namespace: None if it belongs to none.
        key: its master key, empty if it is unknown.
    """

    namespace: str | None
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> LedgerOwner:
        """Returns the owner of a ledger. Metadata of Apache BookKeeper before 4.2 has no
        password."""
        key = b"" if metadata.digest_type is None else master_key_of(metadata)
        return cls(namespace_of_ledger(metadata.custom), key)

    def fit(self, here: bytes | None, given: bytes | memoryview | None) -> Fit:
        """Returns whether the ledger that is here, or would begin to be, is this one.

        Args:
            here: the master key that is stored with it, empty if it was lost; None if nothing of
                the ledger is here.
            given: the key of a request, if it has one. It counts if nothing is here.
        """
        key = given if here is None else here
        if key is None or len(key) != MASTER_KEY_BYTES:
            return Fit.FITS  # it begins nothing here, or there is nothing to compare with
        if not self.key:
            return Fit.DOUBTFUL
        return Fit.FITS if hmac.compare_digest(key, self.key) else Fit.DIFFERS
