"""Asks bookies which of the entries that they should hold they lack.

One request per bookie and ledger: our bookies, and some of Apache's, list the entries that they
hold. Of a bookie that does not list them, the first and the last entry of each fragment are read,
as Apache's auditor does; then a hole in the middle stays unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ledger.client import LedgerClient
from ledger.core.availability import (
    Range,
    decode_entries_held,
    expected_ranges,
    fragment_ranges,
    missing_ranges,
)
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    RemoteProtocolError,
    Status,
    UnknownLedgerState,
    error_of_status,
)
from ledger.wire.messages import ListEntriesResponse, ReadRequest

RANGES_MAX = 1000
_NOT_LISTED = (Status.BAD_REQUEST, Status.BAD_VERSION, Status.IO_ERROR)


async def lacking_ranges(
    client: LedgerClient, metadata: LedgerMetadata, bookie: str
) -> Sequence[Range]:
    """Returns up to `RANGES_MAX` ranges of entries that `bookie` should hold and lacks, in order.
    The ledger must be closed (see `fixed_part`).

    Raises UnknownLedgerState if the bookie may have forgotten entries of this ledger, which it then
    repairs by itself, BookieUnavailable, OperationTimeout, and other LedgerErrors that say nothing
    about entries.
    """
    answer = await client.pool.list_entries(
        bookie, metadata.ledger_id, timeout_s=client.options.read_timeout_s
    )
    if answer is None:
        return await _by_reading(client, metadata, bookie)
    what = f"the entries of ledger {metadata.ledger_id} at bookie {bookie}"
    if answer.status is Status.NO_SUCH_LEDGER:
        return list(islice(expected_ranges(metadata, bookie), RANGES_MAX))
    if answer.status is Status.UNKNOWN_LEDGER_STATE:
        raise UnknownLedgerState(f"bookie {bookie} repairs ledger {metadata.ledger_id} by itself")
    if answer.status in _NOT_LISTED:
        return await _by_reading(client, metadata, bookie)
    if answer.status is not Status.OK:
        raise error_of_status(answer.status, what)
    if not isinstance(answer, ListEntriesResponse):
        raise RemoteProtocolError(f"{what}: answered with {type(answer).__name__}")
    held = sorted(decode_entries_held(answer.availability or b""))
    return list(islice(missing_ranges(expected_ranges(metadata, bookie), held), RANGES_MAX))


async def _by_reading(
    client: LedgerClient, metadata: LedgerMetadata, bookie: str
) -> Sequence[Range]:
    """Reads the first and the last entry of each fragment; without one of them all of that
    fragment counts as missing."""
    lacking: list[Range] = []
    for number, fragment in enumerate(metadata.fragments):
        if bookie not in fragment.bookies or len(lacking) >= RANGES_MAX:
            continue
        index = fragment.bookies.index(bookie)
        ends = _ends(fragment_ranges(metadata, number, index))
        for entry_id in ends:
            if not await _has(client, metadata.ledger_id, bookie, entry_id):
                ranges = fragment_ranges(metadata, number, index)
                lacking += islice(ranges, RANGES_MAX - len(lacking))
                break
    return lacking


def _ends(ranges: Iterator[Range]) -> tuple[int, ...]:
    first = last = next(ranges, None)
    if first is None or last is None:
        return ()
    for each in ranges:
        last = each
    return tuple(dict.fromkeys((first[0], last[1])))


async def _has(client: LedgerClient, ledger_id: int, bookie: str, entry_id: int) -> bool:
    answer = await client.pool.call(
        bookie, ReadRequest(ledger_id, entry_id), timeout_s=client.options.read_timeout_s
    )
    if answer.status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):
        return False
    if answer.status is not Status.OK:
        raise error_of_status(
            answer.status, f"entry {entry_id} of ledger {ledger_id} at bookie {bookie}"
        )
    return True
