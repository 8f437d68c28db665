"""Heals marked ledgers: makes the copies that they lack, then deletes the mark.

The ledgers are taken by urgency (`core.autorecovery.backlog`), a bounded number at a time, each
under its lock. What is copied is durable before metadata names it; metadata is changed by
compare-and-set at the version that was read before the copying. So a worker may die anywhere: what
it copied without success is removed by the bookies, and another worker begins again.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import trio

from ledger.autorecovery.cluster_view import ClusterView
from ledger.autorecovery.copier import CopyReport
from ledger.autorecovery.last_fragment import end_ledger
from ledger.autorecovery.missing_entries import lacking_ranges
from ledger.autorecovery.worker_share import FEED_OPERATIONS, HEAL_OPERATIONS, WorkerShare
from ledger.client import LedgerClient
from ledger.core.autorecovery.backlog import Backlog
from ledger.core.autorecovery.bookies import Bookies, BookieState
from ledger.core.autorecovery.plan import Fill, Hold, Move, copies_left, plan, with_moved_copy
from ledger.core.availability import Range, fixed_part, fragment_ranges
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.placement.policies import placement_or_default
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    MetadataConflict,
    MetadataCorrupt,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    UnknownLedgerState,
)
from ledger.metastore.base import Check
from ledger.metastore.underreplication import Mark
from ledger.runtime.concurrency import map_bounded

_log = logging.getLogger(__name__)

_ROUNDS_MAX = 1000
_RANGES_PER_COPY = 1000
_READ_AT_ONCE = 32
_METADATA_RETRY_S = 1.0
_OTHERS_RETRY_S = 5.0
IN_OTHER_HANDS = "another worker copies it"
"""Not published: that worker says what holds the ledger up, if anything does."""
_TARGET_RETRY_S = 5.0


class CopiesEntries(Protocol):
    """The part of `ledger.autorecovery.copier.Copier` that a worker uses."""

    async def copy(
        self,
        metadata: LedgerMetadata,
        target: str,
        ranges: Sequence[Range],
        *,
        is_wanted: Callable[[], bool],
    ) -> CopyReport: ...


@dataclass(slots=True)
class WorkerStatistics:
    """What a worker did since it was started."""

    ledgers_healed: int = 0
    ledgers_deleted: int = 0
    """Marked ledgers that were deleted before they were healed."""
    copies_moved: int = 0
    copies_filled: int = 0
    copies_stopped: int = 0
    """Copies that were not needed any more, as the bookie returned."""
    entries_copied: int = 0
    bytes_copied: int = 0
    conflicts: int = 0
    """Ledgers whose metadata was changed by others during the copying."""


class _Held(Exception):
    """No error: the ledger is tried again later."""

    def __init__(self, *holds: Hold) -> None:
        super().__init__(holds)
        self.holds = holds


class ReplicationWorker:
    """A replication worker; any number of them share the marks of a cluster.

    Args:
        worker_id: unique to this process; the owner of its locks.
        rng: chooses among bookies.
    """

    def __init__(
        self,
        client: LedgerClient,
        view: ClusterView,
        copier: CopiesEntries,
        share: WorkerShare,
        *,
        worker_id: str,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._view = view
        self._copier = copier
        self._options = share.options
        self._share = share
        self._worker_id = worker_id
        self._rng = rng
        self._marks = client.underreplication
        self.backlog = Backlog(rng.getrandbits(31))
        self.statistics = WorkerStatistics()
        self.in_progress: dict[int, None] = {}
        self._idle = trio.lowlevel.ParkingLot()
        self._look = trio.Event()
        self._news = trio.Event()
        view.on_change(self._bookies_changed)

    async def wait_news(self) -> None:
        """Returns after a ledger was begun or tried since the last call."""
        await self._news.wait()
        self._news = trio.Event()

    # Which ledgers.

    async def run(self) -> None:
        """Heals ledgers until cancelled. Survives outages of the metadata store."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed)
            for _ in range(self._options.ledgers_at_once):
                nursery.start_soon(self._heal_ledgers)

    def _bookies_changed(self, changed: set[str]) -> None:
        self.backlog.bookies_changed(changed, trio.current_time())
        self._look.set()

    async def _feed(self) -> None:
        """Adds marked ledgers to the backlog. Without marks it waits for one, asking nothing."""
        while True:
            await self._view.wait_enabled()
            try:
                await self._share.wait_for_marks()
                await self._share.wait_turn()
                self._look = trio.Event()
                marked = await self._marks.list()
                if not marked:
                    await self._marks.prune_empty()
                missing = self.backlog.unknown(marked, trio.current_time())
                missing = [one for one in missing if one not in self.in_progress]
                missing = await self._share.take(marked, missing, is_idle=not self.backlog)
                room = max(0, self._share.queued_max - len(self.backlog))
                await map_bounded(missing[:room], self._add, concurrent_max=_READ_AT_ONCE)
            except MetadataUnavailable:
                await trio.sleep(_METADATA_RETRY_S)
                continue
            self._idle.unpark(count=len(self.backlog))
            await self._share.rest(self._look, len(marked))

    async def _add(self, ledger_id: int) -> None:
        try:
            await self._share.pace(FEED_OPERATIONS)
            metadata, _ = await self._client.ledgers.read(ledger_id)
        except NoSuchLedger:
            self.backlog.add(ledger_id, 0)  # its mark is deleted
        except (MetadataCorrupt, InvalidArgument) as error:
            self.backlog.hold(ledger_id, [Hold(str(error))], trio.current_time())
        else:
            self.backlog.add(ledger_id, copies_left(metadata, self._view.bookies))

    async def _heal_ledgers(self) -> None:
        while True:
            ledger_id = self.backlog.next() if self._view.is_enabled else None
            if ledger_id is None:
                await self._idle.park()
                continue
            self.in_progress[ledger_id] = None
            self._news.set()
            try:
                await self._try(ledger_id)
            finally:
                del self.in_progress[ledger_id]
                self._news.set()
            if not len(self.backlog):
                self._look.set()

    async def _try(self, ledger_id: int) -> None:
        now_s = trio.current_time
        try:
            await self._share.pace(HEAL_OPERATIONS)
            await self._heal(ledger_id)
        except _Held as held:
            self.backlog.hold(ledger_id, held.holds, now_s())
        except NoSuchLedger:
            await self._deleted(ledger_id)
        except MetadataConflict:
            self.statistics.conflicts += 1  # the next look finds it again
        except MetadataUnavailable:
            await trio.sleep(_METADATA_RETRY_S)
        except LedgerError as error:
            self.backlog.hold(ledger_id, [Hold(str(error))], now_s())
        else:
            self.backlog.healed(ledger_id)

    async def _deleted(self, ledger_id: int) -> None:
        """Leaves no trace of a ledger that was deleted."""
        try:
            mark = await self._marks.read(ledger_id)
            if mark is not None:
                await self._marks.unmark(mark)
            else:
                await self._marks.prune(ledger_id)
        except (MetadataUnavailable, MetadataCorrupt):
            return
        self.statistics.ledgers_deleted += 1
        self.backlog.healed(ledger_id)

    # One ledger.

    async def _heal(self, ledger_id: int) -> None:
        # Before the lock: a ledger that another worker has healed meanwhile costs one look. What a
        # bookie lacks is asked for later, so a client that marks it in between is not missed.
        mark = await self._marks.read(ledger_id)
        if mark is None:
            await self._marks.prune(ledger_id)
            return
        async with self._marks.lock(ledger_id, self._worker_id) as is_locked:
            if not is_locked:
                raise _Held(Hold(IN_OTHER_HANDS, retry_s=_OTHERS_RETRY_S))
            for _ in range(_ROUNDS_MAX):
                if not self._view.is_enabled:
                    return  # the mark stays for the time when it is enabled again
                version = await self._heal_some(mark)
                if version is not None:
                    read = Check(await self._client.ledgers.path(ledger_id), version)
                    are_more = len(self.in_progress) > 1
                    if await self._marks.unmark(
                        mark, are_more_marked=are_more, while_unchanged=read, unlocks=True
                    ):
                        self.statistics.ledgers_healed += 1
                    return

    async def _heal_some(self, mark: Mark) -> int | None:
        """Makes the copies that are possible now; returns the version of the metadata by which
        nothing is left to do, or None. Raises _Held if nothing can be done for what is left."""
        metadata, version = await self._client.ledgers.read(mark.ledger_id)
        fixed = fixed_part(metadata)
        holds: list[Hold] = []
        bookies = self._view.bookies  # one that comes up later has not been asked
        lacking = await self._lacking(mark, fixed, bookies, holds)
        found = plan(metadata, bookies, lacking, self._choose)
        holds += found.holds
        for fill in found.fills:
            await self._fill(fixed, fill, holds)
        moved = [move for move in found.moves if await self._move(fixed, move, holds)]
        moved = [move for move in moved if not self._is_leaving(move.new)]
        stored = await self._store(metadata, version, moved) if moved else version
        is_end_marked = any(one in mark.replicas for one in metadata.last_fragment.bookies)
        is_end_wanted = not metadata.is_closed and (found.is_end_unsafe or is_end_marked)
        if moved and is_end_wanted:
            return None  # the version of the metadata is another one now
        if is_end_wanted and await end_ledger(
            self._client,
            metadata,
            version,
            is_unsafe=found.is_end_unsafe,
            grace_s=self._options.open_ledger_grace_s,
            held_since_s=partial(self.backlog.held_since_s, metadata.ledger_id),
            holds=holds,
        ):
            return None
        if holds:
            raise _Held(*holds)
        # What was filled is asked for again. A copy that was moved is complete; if one was not,
        # its bookie may have returned, and it is not known yet what that one lacks.
        return stored if not found.fills and len(moved) == len(found.moves) else None

    async def _lacking(
        self, mark: Mark, fixed: LedgerMetadata, bookies: Bookies, holds: list[Hold]
    ) -> dict[str, Sequence[Range]]:
        """Asks the live ones of `bookies` of which copies are said to be missing what they lack."""
        named = dict.fromkeys(one for f in fixed.fragments for one in f.bookies)
        lacking: dict[str, Sequence[Range]] = {}
        for bookie in (one for one in named if not mark.replicas or one in mark.replicas):
            state = bookies.state_of(bookie)
            if state not in (BookieState.WRITABLE, BookieState.READ_ONLY):
                continue
            try:
                lacking[bookie] = await lacking_ranges(self._client, fixed, bookie)
            except UnknownLedgerState as error:
                holds.append(Hold(str(error)))
            except LedgerError as error:
                holds.append(Hold(f"bookie {bookie} does not answer: {error}", (bookie,)))
        return lacking

    def _choose(self, metadata: LedgerMetadata, fragment: Fragment, index: int) -> str:
        bookies, old = self._view.bookies, fragment.bookies[index]
        wanted = bookies.replacements.get(old)
        if wanted is not None and wanted not in fragment.bookies:
            if wanted not in bookies.writable:
                raise NotEnoughBookies(f"bookie {wanted}, which replaces {old}, is not writable")
            return wanted
        try:
            return placement_or_default(metadata.custom).replace(
                fragment.bookies,
                (index,),
                metadata.write_quorum,
                metadata.ack_quorum,
                self._view.candidates,
                tuple(bookies.emptying),
                self._rng,
                prefers_same_rack=False,  # the copies of one bookie are made by all others
            )[index]
        except NotEnoughBookies:
            if len(bookies.writable) >= metadata.ensemble_size:
                raise
            raise NotEnoughBookies(
                f"needs {metadata.ensemble_size} bookies, {len(bookies.writable)} are writable"
            ) from None

    async def _fill(self, fixed: LedgerMetadata, fill: Fill, holds: list[Hold]) -> None:
        report = await self._copier.copy(
            fixed, fill.bookie, fill.ranges, is_wanted=lambda: self._view.is_enabled
        )
        self._count(report)
        self.statistics.copies_filled += report.is_complete
        holds += _holds_of(fixed, report)

    async def _move(self, fixed: LedgerMetadata, move: Move, holds: list[Hold]) -> bool:
        """Copies what `move.new` is to hold; returns whether it has all of it."""

        def is_wanted() -> bool:
            state = self._view.bookies.state_of(move.old)
            return self._view.is_enabled and state is not BookieState.WRITABLE

        ranges = fragment_ranges(fixed, move.number, move.index)
        while some := list(islice(ranges, _RANGES_PER_COPY)):
            report = await self._copier.copy(fixed, move.new, some, is_wanted=is_wanted)
            self._count(report)
            holds += _holds_of(fixed, report)
            if not report.is_complete:
                return False  # if the bookie is back, the next round sees what it has
        self.statistics.copies_moved += 1
        return True

    def _is_leaving(self, bookie: str) -> bool:
        """Whether a bookie was lost, or is to be emptied, since it was chosen."""
        state = self._view.bookies.state_of(bookie)
        return state in (BookieState.LOST, BookieState.EMPTYING)

    def _count(self, report: CopyReport) -> None:
        self.statistics.entries_copied += report.entries
        self.statistics.bytes_copied += report.payload_bytes
        self.statistics.copies_stopped += report.is_stopped

    async def _store(self, metadata: LedgerMetadata, version: int, moved: list[Move]) -> int | None:
        """Names the bookies that have the copies now; returns the version, if it is known. Raises
        MetadataConflict if the metadata of a closed ledger changed since it was read: what was
        copied may have been removed again."""

        def changed(stored: LedgerMetadata) -> LedgerMetadata:
            if stored.is_closed and not metadata.is_closed:
                raise MetadataConflict(f"ledger {stored.ledger_id} was closed during the copying")
            for move in moved:
                stored = with_moved_copy(stored, move.first_entry_id, move.old, move.new) or stored
            return stored

        if metadata.is_closed:
            return await self._client.ledgers.compare_and_put(changed(metadata), version)
        # Its writer changes the metadata too, and bookies remove nothing of an open ledger.
        await self._client.ledgers.update(metadata.ledger_id, changed)
        return None


def _holds_of(fixed: LedgerMetadata, report: CopyReport) -> Iterator[Hold]:
    """Yields why a copy was not completed."""
    if report.target_error:
        reason = f"bookie {report.target} takes no copies: {report.target_error}"
        yield Hold(reason, (report.target,), retry_s=_TARGET_RETRY_S)
    for failure in report.failures:
        first, last = failure.first_entry, failure.last_entry
        holders = fixed.fragment_of(first).bookies
        which = f"entries {first} to {last}" if first < last else f"entry {first}"
        what = "no copy could be read of" if failure.is_doubt else "no live copy of"
        yield Hold(
            f"{what} {which}; last holders {', '.join(holders)} ({failure.reason})",
            holders,
            is_loss=not failure.is_doubt,
        )
