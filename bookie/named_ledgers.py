"""Finds the ledgers that name a bookie, and of which it may have entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from ledger.core.metadata import LedgerMetadata
from ledger.errors import MetadataCorrupt, MetadataUnavailable, NoSuchLedger
from ledger.metastore.ledgers import LedgerStore

_LEDGERS_AT_ONCE = 64
_READ_AGAIN_S = 0.2
_FRUITLESS_MAX = 10
"""After this number of times without one answer the metadata store counts as unavailable."""


def may_hold(metadata: LedgerMetadata | None, bookie_id: str) -> bool:
    """Returns whether a bookie may have stored entries of a ledger, whose metadata is None if it
    cannot be read."""
    return metadata is None or any(bookie_id in one.bookies for one in metadata.fragments)


async def is_named(ledgers: LedgerStore, bookie_id: str) -> bool:
    """Returns whether any ledger names a bookie, or might. Raises MetadataUnavailable."""
    for step in in_steps(await ledgers.list()):
        metadata = await read_metadata(ledgers, step)
        if any(may_hold(one, bookie_id) for one in metadata.values()):
            return True
    return False


def in_steps(ledger_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields as many as are read at a time, because each takes a round trip, and their number has
    no limit."""
    for begin in range(0, len(ledger_ids), _LEDGERS_AT_ONCE):
        yield ledger_ids[begin : begin + _LEDGERS_AT_ONCE]


async def read_metadata(
    ledgers: LedgerStore, ledger_ids: Sequence[int]
) -> dict[int, LedgerMetadata | None]:
    """Returns the metadata of those ledgers that exist, or None where it cannot be read.

    Reads what failed again, alone: a store that loses one request of a thousand must not make the
        bookie begin with the first ledger again each time. Raises MetadataUnavailable.
    """
    found: dict[int, LedgerMetadata | None] = {}
    failed: dict[int, MetadataUnavailable] = {}

    async def read(ledger_id: int) -> None:
        try:
            found[ledger_id], _ = await ledgers.read(ledger_id)
        except NoSuchLedger:
            pass
        except MetadataCorrupt:
            found[ledger_id] = None
        except MetadataUnavailable as error:
            failed[ledger_id] = error

    left, fruitless = list(ledger_ids), 0
    while True:
        async with trio.open_nursery() as nursery:
            for ledger_id in left:
                nursery.start_soon(read, ledger_id)
        if not failed:
            return found
        fruitless = 0 if len(failed) < len(left) else fruitless + 1
        if fruitless == _FRUITLESS_MAX:
            raise next(iter(failed.values()))
        left = list(failed)
        failed.clear()
        await trio.sleep(_READ_AGAIN_S)
