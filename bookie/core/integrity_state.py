"""What an index says of itself when it may not know all that the bookie once acknowledged.

Kept in the index under the key `X` (docs/formats.md). While it is there, absence is not believed:
first all ledgers that may have entries here are put in limbo, then limbo ends ledger by ledger.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class IntegrityStage(IntEnum):
    """Values may never change."""

    LEDGERS_UNKNOWN = 1
    """Ledgers may be missing here. Nothing is served before the metadata was asked which ledgers
    have entries on this bookie, and each of them has its state, in limbo."""
    LEDGERS_IN_LIMBO = 2
    """All of them are known; some may still be in limbo."""


class IntegrityState(NamedTuple):
    stage: IntegrityStage
    reason: str
    """In words, for operators."""


def encode_integrity_state(state: IntegrityState) -> bytes:
    return bytes([state.stage]) + state.reason.encode()


def decode_integrity_state(data: bytes) -> IntegrityState:
    """Never fails: a record that is damaged, or of a later version, is the gravest doubt."""
    stage = data[0] if data else 0
    known = IntegrityStage.LEDGERS_IN_LIMBO if stage == 2 else IntegrityStage.LEDGERS_UNKNOWN
    return IntegrityState(known, data[1:].decode(errors="replace"))
