"""Ledgers that bookies have and the metadata does not list, since it was put back to a backup.

Only what the bookies themselves know is left of them: entries, but neither the ensembles nor the
password. So every bookie is asked for every entry, and entries that need a password to be checked
cannot be read. The ranges of ids come from `ledger.metastore.restores`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import trio

from ledger.client import LedgerClient
from ledger.core.availability import decode_entries_held, held_without_hole
from ledger.core.entry import Digest, DigestType, Entry
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import DigestMismatch, LedgerError, NoSuchLedger, Status
from ledger.metastore.restores import RestoreLog
from ledger.reading.reader import LedgerReader
from ledger.wire.messages import ListEntriesRequest, ListEntriesResponse, ReadRequest, ReadResponse

_AT_ONCE = 32
"""Ledgers that are asked for at the same time."""
_RANGES_MAX = 1_000_000
"""Ranges of entries that are taken from one bookie: a few bytes may describe any number of them."""
_WITHOUT_PASSWORD = (DigestType.CRC32C, DigestType.CRC32)


@dataclass(frozen=True, slots=True)
class LostLedger:
    """What the bookies that answered have of a ledger that the metadata does not list.

    `holders` have some of its entries. The first `entries` entries are on at least one of them;
    `behind_gap` more are there behind an entry that is on none. What the `silent` bookies have is
    unknown.
    """

    ledger_id: int
    holders: tuple[str, ...]
    entries: int
    behind_gap: int
    silent: tuple[str, ...]


async def find_lost_ledgers(
    client: LedgerClient, on_progress: Callable[[int, int], None] | None = None
) -> list[LostLedger]:
    """Returns the lost ledgers of all restores that are not released, by id.

    `on_progress` is called with how many ids were looked at, of how many. Raises
    MetadataUnavailable; a bookie that does not answer is in `silent`.
    """
    ranges = [each for each in await RestoreLog(client.store).read() if not each.is_released]
    ids = sorted({at for each in ranges for at in range(each.first_id, each.end_id)})
    found: list[LostLedger] = []
    done = 0

    async def look(share: list[int]) -> None:
        nonlocal done
        for ledger_id in share:
            lost = await look_for_lost_ledger(client, ledger_id)
            if lost is not None and lost.holders:
                found.append(lost)
            done += 1
            if on_progress is not None:
                on_progress(done, len(ids))

    async with trio.open_nursery() as nursery:
        for first in range(min(_AT_ONCE, len(ids))):
            nursery.start_soon(look, ids[first::_AT_ONCE])
    return sorted(found, key=lambda lost: lost.ledger_id)


async def look_for_lost_ledger(client: LedgerClient, ledger_id: int) -> LostLedger | None:
    """Asks all bookies for a ledger; returns None if the metadata lists it.

    Raises MetadataUnavailable.
    """
    if await client.ledgers.exists(ledger_id):
        return None
    held: dict[str, list[tuple[int, int]]] = {}
    silent: list[str] = []

    async def ask(bookie: str) -> None:
        try:
            answer = await client.pool.call(
                bookie, ListEntriesRequest(ledger_id), timeout_s=client.options.read_timeout_s
            )
            if answer.status is Status.OK and isinstance(answer, ListEntriesResponse):
                ranges = decode_entries_held(answer.availability or b"")
                held[bookie] = list(islice(ranges, _RANGES_MAX + 1))
                if len(held[bookie]) > _RANGES_MAX:
                    del held[bookie][_RANGES_MAX:]
                    silent.append(bookie)  # about the rest
            elif answer.status is not Status.NO_SUCH_LEDGER:
                silent.append(bookie)  # it may have forgotten some, and says so
        except LedgerError:
            silent.append(bookie)

    async with trio.open_nursery() as nursery:
        for bookie in await client.bookies.all():
            nursery.start_soon(ask, bookie)
    ranges = sorted(each for ranges in held.values() for each in ranges)
    entries, behind_gap = held_without_hole(ranges)
    holders = tuple(sorted(bookie for bookie, ranges in held.items() if ranges))
    return LostLedger(ledger_id, holders, entries, behind_gap, tuple(sorted(silent)))


async def open_lost_ledger(client: LedgerClient, lost: LostLedger) -> LedgerReader:
    """Returns a reader of its first `entries` entries.

    Raises NoSuchLedger if there are none, DigestMismatch if they cannot be checked without the
    password that was lost, and what reading raises.
    """
    if not lost.entries:
        raise NoSuchLedger(
            f"no bookie that answered has entry 0 of ledger {lost.ledger_id}; `ledgerstream "
            "stream lost-ledgers` lists what there is"
        )
    size = len(lost.holders)
    metadata = LedgerMetadata(
        ledger_id=lost.ledger_id,
        ensemble_size=size,
        write_quorum=size,
        ack_quorum=1,
        state=LedgerState.CLOSED,
        fragments=(Fragment(0, lost.holders),),
        digest_type=await _digest_type(client, lost),
        last_entry_id=lost.entries - 1,
    )
    return client.reader_of(metadata)


async def _digest_type(client: LedgerClient, lost: LostLedger) -> DigestType:
    """Returns the type with which the first entry is whole on some bookie."""
    for bookie in lost.holders:
        answer = await client.pool.call(
            bookie, ReadRequest(lost.ledger_id, 0), timeout_s=client.options.read_timeout_s
        )
        if not isinstance(answer, ReadResponse) or answer.body is None:
            continue
        for digest_type in _WITHOUT_PASSWORD:
            if _is_whole(Digest(digest_type), lost.ledger_id, answer.body):
                return digest_type
    raise DigestMismatch(
        f"entry 0 of ledger {lost.ledger_id} matches no digest that needs no password "
        f"({', '.join(each.name for each in _WITHOUT_PASSWORD)}); what it needs was in the metadata"
    )


def _is_whole(digest: Digest, ledger_id: int, body: bytes | memoryview | bytearray) -> bool:
    try:
        found: Entry = digest.decode_entry(ledger_id, 0, body)
    except DigestMismatch:
        return False
    return found.entry_id == 0
