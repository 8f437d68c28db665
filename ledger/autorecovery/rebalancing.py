"""Moves copies from full bookies to empty ones, for an operator that added bookies.

Two passes over the metadata: the first adds up what each bookie holds, the second proposes moves
and makes them. A copy is made first, then metadata names it; the old one is removed by its bookie
later. So no entry ever has fewer copies than before, and an interrupted rebalance is begun again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ledger.autorecovery.cluster_view import read_bookies
from ledger.autorecovery.copier import CopyReport
from ledger.client import LedgerClient
from ledger.connection.pool import BookieSpace
from ledger.core.autorecovery.plan import Move, with_moved_copy
from ledger.core.autorecovery.rebalance import Balance, copies_of, moves_of
from ledger.core.availability import Range, fragment_ranges
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    MetadataConflict,
    MetadataCorrupt,
    NoSuchLedger,
)
from ledger.metastore.decommissions import Decommissions
from ledger.runtime.concurrency import map_bounded

_READ_AT_ONCE = 64
_RANGES_PER_COPY = 1000
_PROBLEMS_MAX = 100


class CopiesEntries(Protocol):
    """The part of `ledger.autorecovery.copier.Copier` that is used here."""

    async def copy(
        self, metadata: LedgerMetadata, target: str, ranges: Sequence[Range]
    ) -> CopyReport: ...


@dataclass(slots=True, kw_only=True)
class RebalanceProgress:
    """How far a rebalance is. Bytes are payload by metadata, in proportion to entries."""

    ledgers: int
    ledgers_seen: int = 0
    copies_moved: int = 0
    bytes_moved: int = 0
    copies_failed: int = 0
    skew_before: float = 1.0
    skew: float = 1.0
    """The largest load over the average, by what was proposed so far; 1 is even."""
    problems: list[str]
    """Why copies could not be moved, the first ones."""


OnProgress = Callable[[RebalanceProgress], None]
OnMove = Callable[[LedgerMetadata, Move], None]


async def balance_of(client: LedgerClient, *, tolerance: float) -> Balance:
    """Returns what each writable bookie holds, by one pass over the metadata.

    Raises InvalidArgument if fewer than two bookies are writable or `tolerance` is not above 0,
    MetadataUnavailable.
    """
    if not tolerance > 0:
        raise InvalidArgument(f"a tolerance of {tolerance} is not above 0")
    bookies = await read_bookies(client.bookies, Decommissions(client.store))
    if len(bookies.writable) < 2:
        raise InvalidArgument(
            f"{len(bookies.writable)} bookies are writable: there is nothing to balance. Cure: "
            "start another bookie"
        )
    space = await client.bookie_info()
    known = {
        one: float(found.total_bytes)
        for one in bookies.writable
        if isinstance(found := space.get(one), BookieSpace) and found.total_bytes > 0
    }
    # Capacities that are not known are taken to be usual ones.
    usual = sum(known.values()) / len(known) if known else 1.0
    balance = Balance(
        {one: known.get(one, usual) for one in sorted(bookies.writable)}, tolerance=tolerance
    )
    ids = await client.list_ledgers()

    async def add(ledger_id: int) -> None:
        metadata = await _read(client, ledger_id)
        if metadata is not None:
            for number, index, nbytes in copies_of(metadata[0]):
                balance.add(metadata[0].fragments[number].bookies[index], nbytes)

    for begin in range(0, len(ids), _READ_AT_ONCE):
        await map_bounded(ids[begin : begin + _READ_AT_ONCE], add, concurrent_max=_READ_AT_ONCE)
    return balance


async def _read(client: LedgerClient, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
    try:
        return await client.ledgers.read(ledger_id)
    except (NoSuchLedger, MetadataCorrupt):
        return None


async def rebalance(
    client: LedgerClient,
    balance: Balance,
    copier: CopiesEntries | None,
    *,
    owner: str,
    ledgers_at_once: int = 8,
    on_move: OnMove | None = None,
    on_progress: OnProgress | None = None,
) -> RebalanceProgress:
    """Moves copies until no bookie is above its share by more than the tolerance, or all ledgers
    were seen. Without a `copier` it only proposes. `owner` names this process in locks of ledgers.

    Ledgers that lack copies, or that another process changes, are left alone. Raises
    MetadataUnavailable.
    """
    topology = await client.bookies.topology()
    ids = await client.list_ledgers()
    progress = RebalanceProgress(ledgers=len(ids), skew_before=balance.skew, problems=[])

    async def look(ledger_id: int) -> None:
        found = await _read(client, ledger_id)
        progress.ledgers_seen += 1
        if found is None:
            return
        metadata, _ = found
        moves = moves_of(metadata, balance, topology)
        if on_move is not None:
            for move in moves:
                on_move(metadata, move)
        if moves and copier is not None:
            await _move(client, copier, metadata, moves, balance, progress, owner)
        else:
            _count(metadata, moves, progress)
        progress.skew = balance.skew
        if on_progress is not None:
            on_progress(progress)

    at_once = _READ_AT_ONCE if copier is None else ledgers_at_once
    for begin in range(0, len(ids), _READ_AT_ONCE):
        await map_bounded(ids[begin : begin + _READ_AT_ONCE], look, concurrent_max=at_once)
    progress.skew = balance.skew
    return progress


def _bytes_of(metadata: LedgerMetadata, move: Move) -> int:
    for number, index, nbytes in copies_of(metadata):
        if (number, index) == (move.number, move.index):
            return nbytes
    return 0


def _count(metadata: LedgerMetadata, moves: Sequence[Move], progress: RebalanceProgress) -> None:
    progress.copies_moved += len(moves)
    progress.bytes_moved += sum(_bytes_of(metadata, move) for move in moves)


async def _move(
    client: LedgerClient,
    copier: CopiesEntries,
    metadata: LedgerMetadata,
    moves: Sequence[Move],
    balance: Balance,
    progress: RebalanceProgress,
    owner: str,
) -> None:
    try:
        problem = await _copy_and_store(client, copier, metadata, moves, owner)
    except MetadataConflict:
        problem = "it was changed meanwhile"
    except LedgerError as error:
        problem = str(error)
    if not problem:
        _count(metadata, moves, progress)
        return
    for move in moves:
        balance.move(move.new, move.old, _bytes_of(metadata, move))
    progress.copies_failed += len(moves)
    if len(progress.problems) < _PROBLEMS_MAX:
        progress.problems.append(f"ledger {metadata.ledger_id}: {problem}")


async def _copy_and_store(
    client: LedgerClient,
    copier: CopiesEntries,
    seen: LedgerMetadata,
    moves: Sequence[Move],
    owner: str,
) -> str:
    """Makes the moves of one ledger; returns why they were not made, "" if they were. Raises
    LedgerError."""
    ledger_id = seen.ledger_id
    async with client.underreplication.lock(ledger_id, owner) as is_locked:
        if not is_locked:
            return "another process copies it"
        if await client.underreplication.read(ledger_id) is not None:
            return "it lacks copies, which auto-recovery makes first"
        metadata, version = await client.ledgers.read(ledger_id)
        if metadata.fragments != seen.fragments:
            return "it was changed meanwhile"
        moved = metadata
        for move in moves:
            ranges = fragment_ranges(metadata, move.number, move.index)
            while some := list(islice(ranges, _RANGES_PER_COPY)):
                report = await copier.copy(metadata, move.new, some)
                if not report.is_complete:
                    failed = [failure.reason for failure in report.failures]
                    return report.target_error or "; ".join(failed) or "the copy was stopped"
            moved = with_moved_copy(moved, move.first_entry_id, move.old, move.new) or moved
        # At the version read before the copying: what was copied may have been removed since.
        await client.ledgers.compare_and_put(moved, version)
    return ""
