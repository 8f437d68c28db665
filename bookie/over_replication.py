"""Removes copies that metadata does not name any more, after a ledger was moved to other bookies.

Auto-recovery, a decommission or a rebalance copies a ledger elsewhere and changes its metadata; the
entries stay where they were. In rounds the bookie reads the metadata of the ledgers that it has,
and removes those that name it in no fragment. Of the others it records where closed ones end, so
that nothing is added behind (`LedgerStorage.closed`). It must never remove entries that any
metadata names, now or later. For each ledger:

1. it takes the ledger's replication lock, so that no worker copies to it meanwhile, and leaves the
   ledger alone if it is marked as lacking copies;
2. it accepts no more entries of the ledger, and lists none;
3. it writes the ledger's metadata again, unchanged, at the version that it read. A worker that had
   read it before finds another version when it wants to name this bookie, and begins again;
4. it removes the entries, and keeps the fence;
5. it accepts entries again: what arrives from now on was sent by a worker that has read the
   metadata after step 3, or is in nobody's metadata and removed by a later round.

The lock is a courtesy, which ends with a session; steps 2 to 5 hold without it. A crash anywhere
leaves all or some of the entries of a ledger that names other bookies, and a round does it again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import trio

from bookie.core.compaction import TokenBucket
from bookie.core.over_replication import (
    OverReplicationOptions,
    OverReplicationReport,
    UnneededCopies,
    is_unneeded,
)
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.index.key_value import IndexUnreadable
from bookie.storage.ledger_storage import LedgerStorage
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    BookieIoError,
    LedgerError,
    MetadataConflict,
    MetadataCorrupt,
    MetadataUnavailable,
    NoSuchLedger,
)
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.restores import Restore, RestoreLog
from ledger.metastore.underreplication import UnderreplicationStore

_log = logging.getLogger(__name__)

FIRST_PASS_S_MAX: Final = 3600.0
"""The first pass begins this long after the bookie, or sooner: one that is restarted every day
would never make one."""
_LEDGERS_PER_ROUND: Final = 10_000
_LEDGERS_PER_STEP: Final = 200
_UNNEEDED_MAX: Final = 100_000
_FAILURES_MAX: Final = 10
_ASKS_BURST_S: Final = 0.05


class OverReplication:
    """The rounds of one bookie. Must not run while garbage is collected.

    Args:
        check_cluster: raises MetadataUnavailable if the store holds another cluster's metadata.
    """

    def __init__(
        self,
        storage: BookieStorage,
        bookie_id: str,
        *,
        ledgers: LedgerStore,
        marks: UnderreplicationStore,
        restores: RestoreLog,
        check_cluster: Callable[[], Awaitable[None]],
        options: OverReplicationOptions,
    ) -> None:
        self._storage = storage
        self._bookie_id = bookie_id
        self._owner = f"{bookie_id} removes its copy"  # never that of a worker in this process
        self._ledgers = ledgers
        self._marks = marks
        self._restores = restores
        self._check_cluster = check_cluster
        self._options = options
        now = trio.current_time()
        rate = options.asks_per_s_max
        self._asks = TokenBucket(rate, rate * _ASKS_BURST_S, now)
        self._removals = TokenBucket(options.removals_per_s_max, 1, now)
        self._unneeded = UnneededCopies(options.age_s, _UNNEEDED_MAX)
        self._next_pass_at = now + min(options.interval_s, FIRST_PASS_S_MAX)
        self._at: tuple[int, int] | None = None
        """The directory and the ledger after which the pass continues; None: there is no pass."""
        self._failures = 0
        self.total = OverReplicationReport()
        self.passes = 0
        """Passes over all ledgers that were completed."""

    @property
    def unneeded(self) -> int:
        """The number of copies that were found unneeded and are still here."""
        return len(self._unneeded)

    async def round(self, *, is_forced: bool = False) -> OverReplicationReport:
        """Examines the copies that are due and the next part of the pass; all, if it is forced.

        Raises MetadataUnavailable, and StorageFailed if the index could not be changed.
        """
        now = trio.current_time()
        if self._at is None and self._options.interval_s > 0 and now >= self._next_pass_at:
            self._at = (0, -1)
            self._next_pass_at = now + self._options.interval_s
        if is_forced:
            self._at = (0, -1)
        report = OverReplicationReport()
        if self._at is None and not self._unneeded.due(now, 1):
            return report
        self._failures = 0
        report.put_off = _doubt(await self._restores.read())
        if not report.put_off:
            try:
                await self._examine_due(report)
                await self._continue_pass(report, is_forced=is_forced)
            finally:
                self.total.add(report)
        if report.did_something:
            _log.info("unneeded copies bookie=%s %s", self._bookie_id, report)
        return report

    async def _examine_due(self, report: OverReplicationReport) -> None:
        due = self._unneeded.due(trio.current_time(), _LEDGERS_PER_ROUND)
        directories = self._storage.directories
        for ledger_id in due:
            directory = directories[ledger_id % len(directories)]
            await self._examine(directory, [ledger_id], report, is_forced=False)

    async def _continue_pass(self, report: OverReplicationReport, *, is_forced: bool) -> None:
        """Examines ledgers until the end of the pass, or as many as belong in one round."""
        changed = report.copies_removed
        while self._at is not None:
            number, after = self._at
            if number == len(self._storage.directories):
                self._at = None
                self.passes += 1
                break
            directory = self._storage.directories[number]
            ledger_ids: Sequence[int] = ()
            try:
                if directory.integrity.state is None:  # else its ledgers are being compared
                    ledger_ids = directory.ledger_ids(after, _LEDGERS_PER_STEP)
            except BookieIoError as error:
                self._failed(report, after, error)
            await self._examine(directory, ledger_ids, report, is_forced=is_forced)
            if self._failures >= _FAILURES_MAX:
                break
            is_end = len(ledger_ids) < _LEDGERS_PER_STEP
            self._at = (number + 1, -1) if is_end else (number, ledger_ids[-1])
            if is_end and report.copies_removed > changed:
                await directory.garbage.copies.flush()
                changed = report.copies_removed
            if not is_forced and report.ledgers_asked >= _LEDGERS_PER_ROUND:
                break
            await trio.lowlevel.checkpoint()

    async def _examine(
        self,
        directory: LedgerStorage,
        ledger_ids: Iterable[int],
        report: OverReplicationReport,
        *,
        is_forced: bool,
    ) -> None:
        last_ids: dict[int, int] = {}
        for ledger_id in ledger_ids:
            if self._failures >= _FAILURES_MAX:
                break  # the store does not answer: the pass continues in a later round
            try:
                if directory.garbage.copies.has_entries(ledger_id):
                    metadata = await self._examine_one(
                        directory, ledger_id, report, is_forced=is_forced
                    )
                    if metadata is not None and metadata.is_closed:
                        last_ids[ledger_id] = metadata.last_entry_id
                else:
                    self._unneeded.forget(ledger_id)
                self._failures = 0
            except (MetadataUnavailable, MetadataCorrupt, BookieIoError) as error:
                self._failed(report, ledger_id, error)
        try:
            await directory.history.closed(last_ids)
        except IndexUnreadable as error:
            _log.info("ends of ledgers not recorded cause=%s", error)  # a later pass does

    def _failed(self, report: OverReplicationReport, ledger_id: int, error: LedgerError) -> None:
        report.asks_failed += 1
        self._failures += isinstance(error, MetadataUnavailable)
        _log.info("copy kept ledger=%d cause=%s", ledger_id, error)

    async def _examine_one(
        self,
        directory: LedgerStorage,
        ledger_id: int,
        report: OverReplicationReport,
        *,
        is_forced: bool,
    ) -> LedgerMetadata | None:
        """Returns the metadata if the copy stays."""
        await _wait_turn(self._asks)
        report.ledgers_asked += 1
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except NoSuchLedger:
            self._unneeded.forget(ledger_id)  # garbage collection decides about it
            return None
        if not is_unneeded(metadata, self._bookie_id):
            self._unneeded.forget(ledger_id)
            return metadata
        report.copies_unneeded += 1
        is_arriving = directory.garbage.copies.is_arriving(ledger_id)
        is_old = self._unneeded.found(ledger_id, trio.current_time(), is_arriving=is_arriving)
        if not (is_old or is_forced):
            report.copies_young += 1
            return None
        await _wait_turn(self._removals)
        self._unneeded.forget(ledger_id)
        if not await self._remove(directory, ledger_id, report):
            self._unneeded.found(ledger_id, trio.current_time())  # not again for a while
        return None

    async def _remove(
        self, directory: LedgerStorage, ledger_id: int, report: OverReplicationReport
    ) -> bool:
        async with self._marks.lock(ledger_id, self._owner) as is_locked:
            if not is_locked:
                report.copies_locked += 1
                return False
            if await self._marks.read(ledger_id) is not None:
                report.copies_lacking += 1  # one that nobody knows of may be the last
                return False
            state = directory.state(ledger_id)
            if state is None or state.is_deleted or not state.is_key_known:
                return False
            directory.fence(state, lambda: None)
            copies = directory.garbage.copies
            with copies.refusing(state):
                if not await self._write_again(ledger_id):
                    report.copies_changed += 1
                    return False
                await copies.remove(state)
        report.copies_removed += 1
        return True

    async def _write_again(self, ledger_id: int) -> bool:
        """Writes the metadata unchanged; returns False if it names the bookie now, or changed. If
        the outcome is unknown it raises MetadataUnavailable, and the copy stays."""
        try:
            metadata, version = await self._ledgers.read(ledger_id)
            if not is_unneeded(metadata, self._bookie_id):
                return False
            await self._check_cluster()
            await self._ledgers.compare_and_put(metadata, version)
        except (MetadataConflict, NoSuchLedger):
            return False
        return True


async def _wait_turn(bucket: TokenBucket) -> None:
    wait_s = bucket.take(1, trio.current_time())
    if wait_s > 0:
        await trio.sleep(wait_s)


def _doubt(restores: Sequence[Restore]) -> str:
    """Returns why the metadata may not be the newest, "" if there is no sign of that."""
    if any(not restore.is_released for restore in restores):
        return "the metadata was put back to an older state. Cure: ledgerstream metadata release"
    return ""
