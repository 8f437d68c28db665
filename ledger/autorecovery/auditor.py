"""Finds ledgers that lack copies, and marks them. One process of the cluster is the auditor.

An audit is one pass over the metadata of all ledgers, paced in reads per second. It is due when a
bookie was lost or is to be emptied, when an operator asks for it, and once a day. It also grades
how well each ledger keeps its placement; that is shown, and changes nothing. Once a week it also
asks the bookies which entries they hold, and begins to ask where the auditor before ended.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from ledger.autorecovery.cluster_view import ClusterView
from ledger.autorecovery.missing_entries import lacking_ranges
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.published import AuditReport, publish_audit, read_audit
from ledger.client import LedgerClient
from ledger.core.autorecovery.audit import CopyCounts, bytes_named, to_be_copied
from ledger.core.autorecovery.bookies import BookieState
from ledger.core.availability import fixed_part
from ledger.core.metadata import LedgerMetadata
from ledger.core.placement.grading import grade_ledger
from ledger.core.placement.policies import Grade
from ledger.core.placement.topology import Topology
from ledger.errors import (
    LedgerError,
    MetadataConflict,
    MetadataCorrupt,
    NoSuchLedger,
    NoSuchNode,
)
from ledger.metastore.base import Delete
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.metastore.underreplication_nodes import PeriodicCheck
from ledger.runtime.concurrency import map_bounded

_log = logging.getLogger(__name__)

_STEP = 16
_MARK_OPERATIONS = 3
"""The changes of the transaction that makes a mark."""
_PUBLISH_S = 10.0
_RETRY_S = 1.0
_RECOUNT_S = 5.0
_SETTLED_S = 10.0
"""A writer may name a bookie until it has seen that it is read-only. Counted by the auditor from
when it saw the decommission, because clocks differ."""


@dataclass(slots=True)
class _Pass:
    """One audit in progress."""

    report: AuditReport
    begun_s: float
    counts: CopyCounts = field(default_factory=CopyCounts)
    checked_to: int = -1
    """The ledger up to which the auditor before asked for entries. Metadata are read of all."""
    marked: int = 0
    unreadable: int = 0
    asks: int = 0
    topology: Topology | None = None
    grades: dict[Grade, int] = field(default_factory=lambda: dict.fromkeys(Grade, 0))
    naming: dict[str, dict[int, int]] = field(default_factory=dict)
    """Of each bookie to be emptied: the ledgers that name it, and about how many bytes."""


class Auditor:
    """The auditor; `run` while this process is elected.

    Args:
        auditor_id: names this process in its reports.
    """

    def __init__(
        self,
        client: LedgerClient,
        view: ClusterView,
        options: AutoRecoveryOptions,
        *,
        auditor_id: str,
    ) -> None:
        self._client = client
        self._view = view
        self._options = options
        self._auditor_id = auditor_id
        self._marks = client.underreplication
        self._decommissions = Decommissions(client.store)
        self._wanted = trio.Event()
        self._is_loss = True
        """Whether a pass from the beginning is due."""
        self._naming: dict[str, dict[int, int]] = {}
        self._emptying_since_s: dict[str, float] = {}
        self.audits = 0
        """Passes that were completed."""
        self.report: AuditReport | None = None
        """The newest report that was published."""
        view.on_change(self._bookies_changed)
        view.on_audit_wanted(self._audit_wanted)

    def _bookies_changed(self, changed: set[str]) -> None:
        before, now_s = self._emptying_since_s, trio.current_time()
        self._emptying_since_s = {one: before.get(one, now_s) for one in self._view.emptying}
        leaving = (BookieState.LOST, BookieState.EMPTYING)
        if any(self._view.bookies.state_of(one) in leaving for one in changed):
            self._audit_wanted()
        self._wanted.set()

    def _audit_wanted(self) -> None:
        self._is_loss = True
        self._wanted.set()

    async def run(self) -> None:
        """Audits until cancelled. Survives outages of the metadata store."""
        self._is_loss = True
        while True:
            try:
                await self._audit_once()
            except LedgerError as error:
                _log.warning("audit put off cause=%s", error)
                await trio.sleep(_RETRY_S)

    async def _audit_once(self) -> None:
        await self._view.wait_enabled()
        now_ms, marks = self._client.now_ms(), self._marks
        checks_entries, due_s = await self._due(now_ms)
        if self._is_loss or due_s <= 0:
            is_loss, self._is_loss = self._is_loss, False
            try:
                await self._audit(await self._begin(now_ms, checks_entries=checks_entries))
            except LedgerError:
                self._is_loss |= is_loss
                raise
            await marks.set_last_check(PeriodicCheck.ALL_LEDGERS)
            await marks.set_last_check(PeriodicCheck.PLACEMENT)
            if checks_entries:
                await marks.set_last_check(PeriodicCheck.REPLICAS)
            return
        if self._view.emptying and self._naming:
            await self._recount()
            due_s = min(due_s, _RECOUNT_S)
        elif self._view.emptying:
            self._is_loss = True  # a full pass verifies that nothing names them
            due_s = _RECOUNT_S
        await self._wait(due_s)

    async def _due(self, now_ms: int) -> tuple[bool, float]:
        """Returns whether bookies are to be asked for their entries, and in how many seconds the
        next pass is due."""
        dues = []
        for check, interval_s in (
            (PeriodicCheck.ALL_LEDGERS, self._options.ledger_check_interval_s),
            (PeriodicCheck.REPLICAS, self._options.entry_check_interval_s),
        ):
            try:
                last_ms = await self._marks.last_check_ms(check)
            except MetadataCorrupt:
                last_ms = -1
            age_s = (now_ms - last_ms) / 1000 if last_ms >= 0 else float("inf")
            if age_s < -interval_s:
                age_s = float("inf")  # a wall clock that was set back must not put it off for long
            dues.append(interval_s - age_s if interval_s > 0 else float("inf"))
        return dues[1] <= 0, min(dues)

    async def _wait(self, seconds: float) -> None:
        if not self._is_loss:
            self._wanted = trio.Event()
        with trio.move_on_after(seconds):
            await self._wanted.wait()
        self._wanted = trio.Event()

    # A pass.

    async def _begin(self, now_ms: int, *, checks_entries: bool) -> _Pass:
        """Returns a pass from the beginning, or the one that another auditor did not end."""
        before, now_s = await read_audit(self._client.store), trio.current_time()
        fresh = AuditReport(
            auditor=self._auditor_id, begun_ms=now_ms, checks_entries=checks_entries
        )
        is_unended = before is not None and not before.ended_ms
        if before is None or not is_unended or before.checks_entries != checks_entries:
            return _Pass(fresh, now_s)
        if not checks_entries or self._view.emptying:
            return _Pass(fresh, now_s)  # metadata are read faster than it matters
        return _Pass(
            replace(fresh, begun_ms=before.begun_ms, after_ledger=before.after_ledger),
            now_s,
            checked_to=before.after_ledger,
        )

    async def _audit(self, audit: _Pass) -> None:
        audit.naming = {bookie: {} for bookie in self._view.emptying}
        audit.topology = await self._client.bookies.topology()
        ids = await self._client.list_ledgers()
        _log.info(
            "audit begins ledgers=%d checks_entries=%s", len(ids), audit.report.checks_entries
        )
        started_s = published_s = trio.current_time()
        for begin in range(0, len(ids), _STEP):
            step = ids[begin : begin + _STEP]
            await self._view.wait_enabled()

            async def examine(ledger_id: int) -> None:
                await self._examine(audit, ledger_id)

            await map_bounded(step, examine, concurrent_max=_STEP)
            audit.report = replace(audit.report, after_ledger=max(step[-1], audit.checked_to))
            if trio.current_time() >= published_s + _PUBLISH_S:
                published_s = trio.current_time()
                await self._publish(audit, ended_ms=0)
            operations = begin + len(step) + _MARK_OPERATIONS * audit.marked
            await self._keep_pace(started_s, operations, audit.asks)
        await self._publish(audit, ended_ms=self._client.now_ms())
        self.audits += 1
        self._naming = {bookie: found for bookie, found in audit.naming.items() if found}
        _log.info("audit ends ledgers=%d marked=%d", len(ids), audit.marked)
        for bookie, found in audit.naming.items():
            await self._count_down(bookie, found, audit)

    async def _keep_pace(self, started_s: float, reads: int, asks: int) -> None:
        rates = (
            (reads, self._options.metadata_reads_per_s),
            (asks, self._options.entry_checks_per_s),
        )
        until_s = started_s + max((n / rate for n, rate in rates if rate > 0), default=0.0)
        await trio.sleep_until(max(until_s, trio.current_time()))

    async def _examine(self, audit: _Pass, ledger_id: int) -> None:
        try:
            metadata, _ = await self._client.ledgers.read(ledger_id)
        except NoSuchLedger:
            return
        except MetadataCorrupt as error:
            audit.unreadable += 1
            _log.error("ledger not audited ledger=%d cause=%s", ledger_id, error)
            return
        bookies = self._view.bookies
        audit.counts.add(metadata, bookies)
        if audit.topology is not None:
            audit.grades[grade_ledger(metadata, audit.topology).grade] += 1
        for bookie, naming in audit.naming.items():
            if any(bookie in fragment.bookies for fragment in metadata.fragments):
                naming[ledger_id] = bytes_named(metadata, bookie)
        missing = [*to_be_copied(metadata, bookies)]
        if audit.report.checks_entries and ledger_id > audit.checked_to:
            missing += await self._lacking(audit, metadata)
        if missing:
            audit.marked += await self._mark(ledger_id, missing)

    async def _mark(self, ledger_id: int, missing: Sequence[str]) -> bool:
        """Marks a ledger unless it was deleted meanwhile; returns whether it did."""
        path = await self._client.ledgers.path(ledger_id)
        try:
            is_new = await self._marks.mark(ledger_id, missing, while_exists=path)
        except MetadataCorrupt as error:
            _log.error("ledger not marked ledger=%d cause=%s", ledger_id, error)
            return False
        except NoSuchNode:
            return False  # it was deleted in between
        if not is_new and not await self._client.ledgers.exists(ledger_id):
            mark = await self._marks.read(ledger_id)
            if mark is not None:
                await self._marks.unmark(mark)  # the ledger was deleted: it leaves no trace
        return True

    async def _lacking(self, audit: _Pass, metadata: LedgerMetadata) -> list[str]:
        """Returns the live bookies that lack entries, as far as they answer."""
        fixed, lacking = fixed_part(metadata), []
        for bookie in dict.fromkeys(one for f in fixed.fragments for one in f.bookies):
            if not self._view.bookies.is_live(bookie) or fixed.last_entry_id < 0:
                continue
            audit.asks += 1
            try:
                if await lacking_ranges(self._client, fixed, bookie):
                    lacking.append(bookie)
            except LedgerError as error:
                _log.info("bookie not checked ledger=%d cause=%s", metadata.ledger_id, error)
        return lacking

    async def _publish(self, audit: _Pass, *, ended_ms: int) -> None:
        counts = audit.counts
        audit.report = replace(
            audit.report,
            ended_ms=ended_ms,
            ledgers=counts.all.ledgers,
            bytes=counts.all.bytes,
            ledgers_below_write_quorum=counts.below_write_quorum.ledgers,
            bytes_below_write_quorum=counts.below_write_quorum.bytes,
            ledgers_below_ack_quorum=counts.below_ack_quorum.ledgers,
            bytes_below_ack_quorum=counts.below_ack_quorum.bytes,
            ledgers_without_copy=counts.without_copy.ledgers,
            bytes_without_copy=counts.without_copy.bytes,
            ledgers_marked=audit.marked,
            bookies_lost=tuple(self._view.lost),
            placement_strict=audit.grades[Grade.STRICT],
            placement_soft=audit.grades[Grade.SOFT],
            placement_fail=audit.grades[Grade.FAIL],
        )
        await publish_audit(self._client.store, audit.report)
        self.report = audit.report

    # Bookies that are to be emptied.

    async def _recount(self) -> None:
        """Looks which of the ledgers that named a bookie to be emptied still do. One without a mark
        is marked again: a worker that had not seen yet that the bookie is to be emptied took it for
        whole."""
        marked = dict.fromkeys(await self._marks.list())  # a worker changes metadata, then unmarks
        for bookie, naming in list(self._naming.items()):
            if bookie not in self._view.emptying:
                del self._naming[bookie]
                continue
            started_s, left = trio.current_time(), {}
            ids = list(naming)
            for begin in range(0, len(ids), _STEP):
                step = ids[begin : begin + _STEP]
                still_naming = partial(self._still_naming, bookie)
                for ledger_id in await map_bounded(step, still_naming, concurrent_max=_STEP):
                    if ledger_id is not None:
                        left[ledger_id] = naming[ledger_id]
                await self._keep_pace(started_s, begin + len(step), 0)
            unmarked = [ledger_id for ledger_id in left if ledger_id not in marked]
            for number, ledger_id in enumerate(unmarked, 1):
                await self._mark(ledger_id, [bookie])
                await self._keep_pace(started_s, len(ids) + _MARK_OPERATIONS * number, 0)
            self._naming[bookie] = left
            if not left:
                del self._naming[bookie]
            await self._count_down(bookie, left, None)

    async def _still_naming(self, bookie: str, ledger_id: int) -> int | None:
        try:
            metadata, _ = await self._client.ledgers.read(ledger_id)
        except NoSuchLedger:
            return None
        except MetadataCorrupt:
            return ledger_id
        is_named = any(bookie in fragment.bookies for fragment in metadata.fragments)
        return ledger_id if is_named else None

    async def _count_down(self, bookie: str, left: dict[int, int], audit: _Pass | None) -> None:
        """Publishes how far a decommission has come. `audit`: the full pass that found `left`;
        without any the bookie leaves the cluster."""
        found = await self._decommissions.read(bookie)
        if found is None or found.state != "draining":
            return
        counted = replace(
            found,
            ledgers_left=len(left),
            bytes_left=sum(left.values()),
            ledgers_total=max(found.ledgers_total or 0, len(left)),
            bytes_total=max(found.bytes_total or 0, sum(left.values())),
            updated_ms=self._client.now_ms(),
        )
        try:
            if not left and audit is not None and self._is_verified(bookie, audit):
                await self._leave(replace(counted, state="emptied", waits_for=()))
            else:
                await self._decommissions.update(counted)
        except (MetadataConflict, NoSuchNode):
            pass  # it was cancelled, or changed: the next count is published

    def _is_verified(self, bookie: str, audit: _Pass) -> bool:
        """Whether a pass that found no ledger of a bookie saw all that can name it."""
        since_s = self._emptying_since_s.get(bookie, audit.begun_s)
        return not audit.unreadable and audit.begun_s >= since_s + _SETTLED_S

    async def _leave(self, emptied: Decommission) -> None:
        """Removes a bookie that no metadata names from the cluster, in one step with the record
        that it is emptied: a decommission may be cancelled at any time before."""
        path, also = self._client.bookies.cookie_path(emptied.bookie), list[Delete]()
        try:
            also.append(Delete(path, (await self._client.store.get(path)).version))
        except NoSuchNode:
            pass
        await self._decommissions.update(emptied, also=also)
        _log.info("bookie is emptied bookie=%s", emptied.bookie)
