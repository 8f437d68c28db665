"""Mends a ledger that was closed at a wrong end, or whose recovery remains in doubt.

A forged frame could move a ledger's end behind a hole (docs/adr/0038). `ledger.core.repair`
decides; this module asks. It must never change the metadata while a bookie of the ledger is silent,
or may have forgotten entries, nor except by compare-and-set.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import trio

from ledger.client import LedgerClient
from ledger.core.availability import Range, decode_entries_held
from ledger.core.entry import Entry, master_key
from ledger.core.metadata import LedgerMetadata, LedgerState, digest_of
from ledger.core.quorum import write_set
from ledger.core.repair import Hole, check_end, find_hole, repaired
from ledger.errors import (
    INVALID_ENTRY_ID,
    DigestMismatch,
    LedgerError,
    RecoveryIncomplete,
    Status,
)
from ledger.reading.opener import password_of
from ledger.wire.messages import ListEntriesResponse, ReadRequest, ReadResponse

_RANGES_MAX = 1_000_000
"""Ranges of entries that are taken from one bookie: a few bytes may describe any number of them."""
_DENIALS = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER)


@dataclass(frozen=True, slots=True)
class LedgerRepair:
    """What is stored of a ledger at `version`, and what has to be stored instead. `last_entry` is
    the last one that stays; None if none does."""

    stored: LedgerMetadata
    version: int
    hole: Hole
    repaired: LedgerMetadata
    last_entry: Entry | None

    async def store(self, client: LedgerClient) -> None:
        """Stores the new end. Raises MetadataConflict if the metadata was changed meanwhile."""
        await client.ledgers.compare_and_put(self.repaired, self.version)


async def plan_repair(
    client: LedgerClient, ledger_id: int, *, end: int | None = None
) -> LedgerRepair | None:
    """Returns how the ledger's end is mended; None if there is no hole before it, or the ledger is
    open. It fences the bookies of the ledger, as a recovery does, and changes nothing else.

    Args:
        end: the last entry that stays, if the operator decides that those behind the hole are not
            the ledger's own.

    Raises NoSuchLedger, RecoveryIncomplete (with the bookies that did not answer, or the reason for
    doubt), InvalidArgument (`end` is not the entry before the hole), MetadataUnavailable.
    """
    metadata, version = await client.ledgers.read(ledger_id)
    if metadata.state is LedgerState.OPEN:
        return None
    asked = _Questions(client, metadata)
    held = await asked.entries_held()
    hole = find_hole(metadata, list(held.values()))
    if hole is None:
        return None
    check_end(metadata, hole, end)
    await asked.check_denied(hole.end + 1)
    last = await asked.read(hole.end, held) if hole.end >= 0 else None
    new = repaired(metadata, hole.end, 0 if last is None else last.length)
    return LedgerRepair(metadata, version, hole, new, last)


class _Questions:
    """Asks the bookies of one ledger; each has to answer."""

    def __init__(self, client: LedgerClient, metadata: LedgerMetadata) -> None:
        self._client = client
        self._metadata = metadata
        self._timeout_s = client.options.read_timeout_s
        password = password_of(metadata, metadata.password)
        self._key = master_key(password)
        self._digest = digest_of(metadata, password)

    async def entries_held(self) -> dict[str, list[Range]]:
        """Returns all entries that each bookie of the ledger holds, after fencing it."""
        bookies = dict.fromkeys(b for f in self._metadata.fragments for b in f.bookies)
        held: dict[str, list[Range]] = {}
        doubts: dict[str, str] = {}

        async def ask(bookie: str) -> None:
            try:
                held[bookie] = await self._held_by(bookie)
            except LedgerError as error:
                doubts[bookie] = str(error)

        async with trio.open_nursery() as nursery:
            for bookie in bookies:
                nursery.start_soon(ask, bookie)
        if doubts:
            raise self._in_doubt("; ".join(f"{b}: {why}" for b, why in sorted(doubts.items())))
        return held

    async def _held_by(self, bookie: str) -> list[Range]:
        await self._fencing_read(bookie, INVALID_ENTRY_ID, (Status.OK, *_DENIALS))
        answer = await self._client.pool.list_entries(
            bookie, self._metadata.ledger_id, timeout_s=self._timeout_s
        )
        if answer is None:
            raise RecoveryIncomplete("it does not list its entries")
        if answer.status is Status.NO_SUCH_LEDGER:
            return []
        if answer.status is not Status.OK or not isinstance(answer, ListEntriesResponse):
            raise RecoveryIncomplete(f"it answered {answer.status.name}")
        ranges = decode_entries_held(answer.availability or b"")
        found = list(islice(ranges, _RANGES_MAX + 1))
        if len(found) > _RANGES_MAX:
            raise RecoveryIncomplete(f"it lists more than {_RANGES_MAX} ranges of entries")
        return found

    async def check_denied(self, entry_id: int) -> None:
        """Raises RecoveryIncomplete unless every replica of an entry says that it has none."""
        metadata = self._metadata
        indices = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        for index in indices:
            bookie = metadata.fragment_of(entry_id).bookies[index]
            try:
                await self._fencing_read(bookie, entry_id, _DENIALS)
            except LedgerError as error:
                raise self._in_doubt(f"{bookie}: {error}") from error

    async def read(self, entry_id: int, held: dict[str, list[Range]]) -> Entry:
        """Returns an entry from one of the bookies that hold it."""
        why = "no bookie holds it"
        for bookie, ranges in held.items():
            if not any(first <= entry_id <= last for first, last in ranges):
                continue
            try:
                answer = await self._fencing_read(bookie, entry_id, (Status.OK,))
                body = answer.body or b""
                return self._digest.decode_entry(self._metadata.ledger_id, entry_id, body)
            except (LedgerError, DigestMismatch) as error:
                why = f"{bookie}: {error}"
        raise self._in_doubt(f"entry {entry_id} cannot be read: {why}")

    async def _fencing_read(
        self, bookie: str, entry_id: int, expected: tuple[Status, ...]
    ) -> ReadResponse:
        request = ReadRequest(
            self._metadata.ledger_id, entry_id, self._key, is_fencing=True, is_high_priority=True
        )
        answer = await self._client.pool.call(bookie, request, timeout_s=self._timeout_s)
        if answer.status not in expected or not isinstance(answer, ReadResponse):
            raise RecoveryIncomplete(f"it answered {answer.status.name} about entry {entry_id}")
        return answer

    def _in_doubt(self, why: str) -> RecoveryIncomplete:
        return RecoveryIncomplete(
            f"ledger {self._metadata.ledger_id}: every bookie that has been in its ensembles has "
            f"to answer before its end is changed: {why}. Nothing was changed; try again with all "
            "of them up"
        )
