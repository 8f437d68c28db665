"""What a cluster must heal: bookies that are away for long or for good, deaths of the healers
themselves, operators who empty bookies and switch auto-recovery off, and others who change the same
metadata. Besides all faults of `tests.sim.faults`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import trio

from bookie.testing.cluster import BOOKIE_PORT, SimCluster
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.metastore.decommissions import Decommission, Decommissions
from tests.sim.faults import Fault, Faults
from tests.sim.healing.healers import Healers
from tests.sim.healing.oracle import Oracle
from tests.sim.workload import Workload

WRITABLE_MIN = 5
"""As many bookies as the largest ensemble has are not being emptied."""


class HealingFaults(Faults):
    """Faults that auto-recovery repairs. `losses`: bookies that may lose their disks in all."""

    def __init__(
        self,
        cluster: SimCluster,
        workload: Workload,
        healers: Healers,
        oracle: Oracle,
        operator: LedgerClient,
        *,
        pause_mean_s: float,
        losses: int,
    ) -> None:
        super().__init__(cluster, workload, pause_mean_s=pause_mean_s)
        self.healers = healers
        self.oracle = oracle
        self.operator = operator
        self.losses_left = losses
        self.delay_s = healers.options.lost_bookie_recovery_delay_s
        own = self._own_faults()
        chosen = self.chance.sample(own, self.chance.randint(3, len(own)))
        self.kinds = [*self.kinds, *chosen, *chosen]

    def _own_faults(self) -> list[Fault]:
        return [
            self._lose_bookie,
            self._lose_bookie,
            self._bookie_away,
            self._bookie_away,
            self._two_away,
            self._add_bookie,
            self._decommission,
            self._switch_off,
            self._kill_healer,
            self._kill_auditor,
            self._pause_healer,
            self._healer_cut_off,
            self._healer_session_lost,
            self._others_change_metadata,
            self._others_mark,
            self._delete_marked,
        ]

    # Bookies.

    async def _lose_bookie(self) -> None:
        """Its disk is gone; later its operator adds a new one. If two may be lost, the second
        follows before the first one's time is over."""
        if self.losses_left <= 0:
            return
        while self.losses_left > 0:
            self.losses_left -= 1
            name = self._bookie()
            self._restore_disk(name)
            with trio.CancelScope(shield=True):  # calm would come between, and it stay half lost
                await self.cluster.lose_disk(name)
            self.oracle.count("bookies lost")
            await trio.sleep(self.chance.uniform(0, self.delay_s))
        await trio.sleep(self.chance.expovariate(0.3))
        await self._add_bookie()

    async def _bookie_away(self) -> None:
        """It is declared lost, and returns while its ledgers are copied, or afterwards."""
        name = self._bookie()
        await self.cluster.kill_bookie(name, self._crash_kind())
        await trio.sleep(self.delay_s)
        if self.chance.random() < 0.5:
            with trio.move_on_after(10):
                await self._until_copying()
            await self._restart_after(name, 0)
        else:
            await self._restart_after(name, self.chance.expovariate(0.5))

    async def _until_copying(self) -> None:
        while not any(one.worker.in_progress for one in self.healers.services.values()):  # noqa: ASYNC110
            await trio.sleep(0.02)

    async def _two_away(self) -> None:
        """Nobody waits for the second one; the first one returns early."""
        names = self.chance.sample(self.cluster.bookies, 2)
        for name in names:
            await self.cluster.kill_bookie(name, self._crash_kind())
            await trio.sleep(self.chance.uniform(0, self.delay_s))
        for name in names:
            await self._restart_after(name, self.chance.expovariate(0.5))

    async def _restart_after(self, name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        if name in self.cluster.bookies and not self.cluster.is_up(name):
            await self.cluster.start_bookie(name)

    async def _add_bookie(self) -> None:
        with trio.CancelScope(shield=True):
            name = self.cluster.add_bookie()
            self._disk_options[name] = replace(self.cluster.disk(name).options)
            await self.cluster.start_bookie(name)

    # Operators.

    async def _decommission(self) -> None:
        """A bookie is to be emptied; some decommissions are cancelled."""
        decommissions = Decommissions(self.operator.store)
        with suppress(LedgerError):
            while len(self.cluster.bookies) <= WRITABLE_MIN + len(await decommissions.names()):
                await self._add_bookie()
            bookie, other = (f"{self._bookie()}:{BOOKIE_PORT}" for _ in range(2))
            is_replaced = bookie != other and self.chance.random() < 0.3
            await decommissions.begin(
                Decommission(
                    bookie=bookie,
                    begun_ms=self.operator.now_ms(),
                    replacement=other if is_replaced else None,
                )
            )
            self.oracle.count("decommissions")
            if self.chance.random() < 0.4:
                await trio.sleep(self.chance.expovariate(0.2))
                if bookie not in self.oracle.emptied and await decommissions.cancel(bookie):
                    self.oracle.count("decommissions cancelled")

    async def _switch_off(self) -> None:
        marks = self.operator.underreplication
        with suppress(LedgerError):
            await marks.set_enabled(enabled=False)
            await trio.sleep(self.chance.expovariate(0.3))
            await marks.set_enabled(enabled=True)

    async def _others_change_metadata(self) -> None:
        """Versions move, as by another program."""
        for ledger_id in list(self.oracle.ledgers):
            if self.chance.random() < 0.5:
                with suppress(LedgerError):
                    metadata, version = await self.operator.ledgers.read(ledger_id)
                    await self.operator.ledgers.compare_and_put(metadata, version)

    async def _others_mark(self) -> None:
        """Another auditor finds more, or the same."""
        for ledger_id, metadata in list(self.oracle.ledgers.items()):
            if self.chance.random() < 0.3:
                bookie = self.chance.choice(self.chance.choice(metadata.fragments).bookies)
                with suppress(LedgerError):
                    await self.operator.underreplication.mark(ledger_id, [bookie])

    async def _delete_marked(self) -> None:
        """Ledgers are deleted while they wait for their copies, or get them."""
        histories = [h for h in self.workload.model.ledgers.values() if h.end is not None]
        for history in self.chance.sample(histories, min(3, len(histories))):
            if history.is_being_deleted:
                continue
            history.is_being_deleted = True
            with suppress(LedgerError):
                bookies = self.oracle.ledgers[history.ledger_id].fragments[0].bookies
                await self.operator.underreplication.mark(history.ledger_id, bookies)
                await trio.sleep(self.chance.choice((0, 0.1, 1)))
                await self.operator.delete_ledger(history.ledger_id)
                self.oracle.count("marked ledgers deleted")

    # Healers.

    def _nodes(self) -> list[str]:
        return [*super()._nodes(), *self.healers.names]

    async def _kill_healer(self, name: str | None = None) -> None:
        name = name or self.chance.choice(self.healers.names)
        await self.healers.kill(name)
        await trio.sleep(self.chance.expovariate(1))
        self.healers.start_all()

    async def _kill_auditor(self) -> None:
        for name in self.healers.auditors():
            await self._kill_healer(name)

    async def _pause_healer(self) -> None:
        name = self.chance.choice(self.healers.names)
        seconds = self.chance.expovariate(0.3)
        for bookie in self.cluster.bookies:
            self.cluster.network.clog(name, bookie, seconds)
            self.cluster.network.clog(bookie, name, seconds)

    async def _healer_cut_off(self) -> None:
        with self.oracle.disturbing():
            name = self.chance.choice(self.healers.names)
            await self._cut_off(name, self.chance.expovariate(0.5))

    async def _healer_session_lost(self) -> None:
        self.cluster.metadata.expire(self.chance.choice(self.healers.names))

    async def _metadata_errors(self) -> None:
        with self.oracle.disturbing():
            await super()._metadata_errors()

    async def _metadata_cut_off(self) -> None:
        with self.oracle.disturbing():
            await super()._metadata_cut_off()
