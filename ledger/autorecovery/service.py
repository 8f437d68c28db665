"""Auto-recovery in one process: a replication worker that is also a candidate for the auditor."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace

import trio

from ledger.autorecovery.auditor import Auditor
from ledger.autorecovery.cluster_view import ClusterView
from ledger.autorecovery.copier import Copier
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.published import (
    HELD_MAX,
    REASON_CHARS_MAX,
    HealingNow,
    WorkerReport,
    publish_worker,
)
from ledger.autorecovery.worker import IN_OTHER_HANDS, CopiesEntries, ReplicationWorker
from ledger.autorecovery.worker_share import WorkerShare
from ledger.client import LedgerClient
from ledger.errors import LedgerError, MetadataUnavailable
from ledger.metastore.election import AuditorElection
from ledger.runtime.background import open_background

_log = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0
_RETRY_S = 30.0


class AutoRecovery:
    """Finds and heals ledgers that lack copies, together with all others in the cluster.

    Args:
        client: open; it recovers open ledgers whose writers are gone.
        copier: makes the copies.
        bookie_id: names this process as the auditor, as Apache's tools show it.
        rng: chooses among bookies; its numbers make this process different from all others.
    """

    def __init__(
        self,
        client: LedgerClient,
        options: AutoRecoveryOptions,
        *,
        copier: CopiesEntries,
        bookie_id: str,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._bookie_id = bookie_id
        self.worker_id = f"{bookie_id}/{rng.getrandbits(32):08x}".replace("/", "-")
        self.view = ClusterView(client.store, client.bookies, client.underreplication, options)
        self._election = AuditorElection(client.store, client.ledgers.root, rng)
        self._share = WorkerShare(
            client.underreplication, self._election, options, bookie_id=bookie_id, rng=rng
        )
        self.worker = ReplicationWorker(
            client, self.view, copier, self._share, worker_id=self.worker_id, rng=rng
        )
        self.auditor = Auditor(client, self.view, options, auditor_id=bookie_id)
        self.is_auditor = False
        """Whether this process believes that it is the auditor."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Works until cancelled; started once the bookies are known."""
        async with open_background() as nursery:
            await nursery.start(self.view.run)
            nursery.start_soon(self.worker.run)
            nursery.start_soon(self._audit)
            nursery.start_soon(self._report)
            task_status.started()
            await trio.sleep_forever()

    def now(self) -> HealingNow:
        """Returns what is done at this moment, from plain numbers."""
        worker, held = self.worker, self.worker.backlog.held
        return HealingNow(
            is_auditor=self.is_auditor,
            audits=self.auditor.audits,
            audit=self.auditor.report if self.is_auditor else None,
            ledgers_healed=worker.statistics.ledgers_healed,
            entries_copied=worker.statistics.entries_copied,
            bytes_copied=worker.statistics.bytes_copied,
            in_progress=len(worker.in_progress),
            backlog=len(worker.backlog),
            held=len(held),
            held_with_loss=sum(one.is_loss for one in held),
        )

    async def _audit(self) -> None:
        while True:
            async with (
                self._election.elected(self._bookie_id) as term,
                trio.open_nursery() as nursery,
            ):
                self.is_auditor = True
                nursery.start_soon(self.auditor.run)
                await term.wait_over()
                self.is_auditor = False
                nursery.cancel_scope.cancel()

    async def _report(self) -> None:
        """Publishes what the worker does, while it does something."""
        before = WorkerReport(worker=self.worker_id, updated_ms=0)
        at_s = trio.current_time()
        while True:
            await self.worker.wait_news()
            await trio.sleep(self._share.interval_s(REPORT_INTERVAL_S))
            now_s = trio.current_time()
            report = self._report_of(before, now_s - at_s)
            if replace(report, updated_ms=0, bytes_per_s=0) == replace(
                before, updated_ms=0, bytes_per_s=0
            ):
                continue
            try:
                await publish_worker(self._client.store, report)
            except MetadataUnavailable:
                continue
            before, at_s = report, now_s

    def _report_of(self, before: WorkerReport, seconds: float) -> WorkerReport:
        worker, now_s = self.worker, trio.current_time()
        statistics, now_ms = worker.statistics, self._client.now_ms()
        held = sorted(
            (one for one in worker.backlog.held if one.reason != IN_OTHER_HANDS),
            key=lambda one: (not one.is_loss, one.since_s, one.ledger_id),
        )
        copied = statistics.bytes_copied - before.bytes_copied
        return WorkerReport(
            worker=self.worker_id,
            updated_ms=now_ms,
            ledgers_healed=statistics.ledgers_healed,
            entries_copied=statistics.entries_copied,
            bytes_copied=statistics.bytes_copied,
            bytes_per_s=round(copied / seconds, 1) if seconds > 0 else 0.0,
            backlog=len(worker.backlog),
            in_progress=tuple(worker.in_progress),
            held_total=len(held),
            held=tuple(
                (
                    one.ledger_id,
                    one.reason[:REASON_CHARS_MAX],
                    now_ms - int((now_s - one.since_s) * 1000),
                    one.is_loss,
                )
                for one in held[:HELD_MAX]
            ),
        )


async def heal_for_ever(
    client: LedgerClient,
    options: AutoRecoveryOptions,
    *,
    bookie_id: str,
    rng: random.Random,
    on_begin: Callable[[AutoRecovery], None] = lambda _service: None,
) -> None:
    """Heals ledgers in a process of its own or beside a bookie, until cancelled. After an error it
    logs it and begins again. `on_begin` gets the service each time."""
    while True:
        try:
            async with Copier(client, options.copier_options()) as copier:
                service = AutoRecovery(client, options, copier=copier, bookie_id=bookie_id, rng=rng)
                on_begin(service)
                await service.run()
        except* LedgerError as group:
            _log.error("auto-recovery begins again name=%s cause=%r", bookie_id, group)
        await trio.sleep(_RETRY_S)
