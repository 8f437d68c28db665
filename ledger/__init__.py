"""Ledgers: replicated append-only sequences of entries. These are the public names.

- `client`: `LedgerClient`. `errors`, `options`: its errors and settings. - `recovery`: fences a
ledger's writer, finds the end, closes it. - `verify`, `copy_reader`: reads and judges all copies of
a ledger's entries. `autorecovery/`: makes the copies that ledgers lack. `lost_ledgers`: what
bookies have of ledgers without metadata. `repair`: mends the end of a ledger. - `core/`: decisions
without I/O. `wire/`, `proto/`: the protocols. `connection/`: to bookies. - `writing/`, `reading/`:
of ledgers. `metastore/`: the metadata. `runtime/`: tasks, threads, sockets. - `cli/`: the command
line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.core.copies import CopyFault, CopyState, CopyVerdict, LedgerReport
    from ledger.core.entry import DigestType, Entry
    from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
    from ledger.core.placement.policies import PlacementPolicy
    from ledger.credentials import Credentials, Secret, read_credentials
    from ledger.errors import (
        BookieUnavailable,
        DigestMismatch,
        InvalidArgument,
        LedgerClosed,
        LedgerError,
        LedgerFenced,
        MetadataUnavailable,
        NoSuchCluster,
        NoSuchEntry,
        NoSuchLedger,
        NotEnoughBookies,
        OperationTimeout,
        RecoveryIncomplete,
        Unauthorized,
    )
    from ledger.options import ClientOptions
    from ledger.reading.reader import LedgerReader
    from ledger.verify import ExpectedEntry, verify_entry, verify_ledger
    from ledger.writing.receipts import BookieAck, EntryAcks, EntryReceipt
    from ledger.writing.writer import LedgerWriter

__distribution__ = "ledgerstream"

__all__ = [
    "BookieAck",
    "BookieUnavailable",
    "ClientOptions",
    "CopyFault",
    "CopyState",
    "CopyVerdict",
    "Credentials",
    "DigestMismatch",
    "DigestType",
    "Entry",
    "EntryAcks",
    "EntryReceipt",
    "ExpectedEntry",
    "Fragment",
    "InvalidArgument",
    "LedgerClient",
    "LedgerClosed",
    "LedgerError",
    "LedgerFenced",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerReport",
    "LedgerState",
    "LedgerWriter",
    "MetadataUnavailable",
    "NoSuchCluster",
    "NoSuchEntry",
    "NoSuchLedger",
    "NotEnoughBookies",
    "OperationTimeout",
    "PlacementPolicy",
    "RecoveryIncomplete",
    "Secret",
    "Unauthorized",
    "read_credentials",
    "verify_entry",
    "verify_ledger",
]

_HOMES = {
    "ledger.client": "LedgerClient",
    "ledger.core.entry": "DigestType Entry",
    "ledger.core.metadata": "Fragment LedgerMetadata LedgerState",
    "ledger.core.placement.policies": "PlacementPolicy",
    "ledger.credentials": "Credentials Secret read_credentials",
    "ledger.errors": (
        "BookieUnavailable DigestMismatch InvalidArgument LedgerClosed LedgerError "
        "LedgerFenced MetadataUnavailable NoSuchCluster NoSuchEntry NoSuchLedger "
        "NotEnoughBookies OperationTimeout RecoveryIncomplete Unauthorized"
    ),
    "ledger.options": "ClientOptions",
    "ledger.reading.reader": "LedgerReader",
    "ledger.writing.writer": "LedgerWriter",
    "ledger.core.copies": "CopyFault CopyState CopyVerdict LedgerReport",
    "ledger.writing.receipts": "BookieAck EntryAcks EntryReceipt",
    "ledger.verify": "ExpectedEntry verify_entry verify_ledger",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports a name on first use, so that a program pays only for what it uses."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
