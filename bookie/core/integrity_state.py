"""The record in an index that says that it may lack entries which the bookie has acknowledged.

Stored in the index under the key `X` (docs/formats.md). While it exists, absence proves nothing:
first all ledgers that may have entries here are put in limbo, then limbo ends ledger by ledger.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class IntegrityStage(IntEnum):
    """Values may never change."""

    LEDGERS_UNKNOWN = 1
    """Ledgers may be missing here. Nothing is served before the metadata was queried for the
    ledgers that have entries on this bookie, and each of them has its state, in limbo."""
    LEDGERS_IN_LIMBO = 2
    """All ledgers are known; some may still be in limbo."""


class IntegrityState(NamedTuple):
    stage: IntegrityStage
    reason: str
    """The cause, as text for operators."""


def encode_integrity_state(state: IntegrityState) -> bytes:
    return bytes([state.stage]) + state.reason.encode()


def decode_integrity_state(data: bytes) -> IntegrityState:
    """Never fails: a record that is damaged, or of a later version, counts as the gravest state."""
    stage = data[0] if data else 0
    known = IntegrityStage.LEDGERS_IN_LIMBO if stage == 2 else IntegrityStage.LEDGERS_UNKNOWN
    return IntegrityState(known, data[1:].decode(errors="replace"))
