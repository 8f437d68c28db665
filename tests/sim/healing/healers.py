"""The processes of auto-recovery in a simulated cluster."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from bookie.testing.cluster import SimCluster
from bookie.testing.metastore import SimMetadataStore
from bookie.testing.process import SimProcess
from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.autorecovery.service import AutoRecovery
from ledger.client import LedgerClient
from ledger.core.autorecovery.backlog import Held
from ledger.options import ClientOptions
from tests.sim.healing.copiers import open_copier


class Healers:
    """Any number of processes, each of which may be killed and started again."""

    def __init__(
        self, cluster: SimCluster, number: int, options: AutoRecoveryOptions, client: ClientOptions
    ) -> None:
        self.cluster = cluster
        self.options = options
        self.names = [f"healer-{index}" for index in range(number)]
        self.processes: dict[str, SimProcess] = {}
        self.services: dict[str, AutoRecovery] = {}
        self.calls = 0
        """Calls of the metadata store by all of them."""
        self.on_service: Callable[[AutoRecovery, str], None] = lambda *_: None
        """Called with each new service and the name of the auditor that it would be."""
        self.counts: dict[str, int] = {}
        self._client_options = client

    async def start_again(self) -> None:
        """Starts all that do not run, once those that are dying are gone."""
        for process in self.processes.values():
            if not process.is_running:
                await process.finished.wait()
        self.start_all()

    def start_all(self) -> None:
        """Starts all that do not run, except those that are still dying."""
        for name in self.names:
            if name not in self.processes or self.processes[name].finished.is_set():
                self.start(name)

    def start(self, name: str) -> None:
        """Starts a process as a new client of the same node."""

        async def body(client: LedgerClient) -> None:
            self._count_calls(client)
            async with open_copier(client, self.options) as copier:
                service = AutoRecovery(
                    client,
                    self.options,
                    copier=copier,
                    bookie_id=f"{name}:3181",
                    rng=random.Random(client.rng.random()),
                )
                self.services[name] = service
                self.on_service(service, f"{name}:3181")
                try:
                    await service.run()
                finally:
                    self._add_up(service)
                    if self.services.get(name) is service:
                        del self.services[name]

        self.processes[name] = self.cluster.start_client(
            body, name=name, options=self._client_options
        )

    async def kill(self, name: str) -> None:
        """Kills a process, and returns when it is gone."""
        process = self.processes[name]
        if process.is_running:
            self.cluster.simulation.trace("kill", name)
            process.kill()
        await process.finished.wait()

    async def kill_all(self) -> None:
        """Kills all of them."""
        for name in self.names:
            await self.kill(name)

    def auditors(self) -> list[str]:
        """Returns the processes that believe that they are the auditor."""
        return [name for name, service in self.services.items() if service.is_auditor]

    def held(self, ledger_id: int) -> list[Held]:
        """Returns why the healers do not heal a ledger now."""
        return [
            held
            for service in self.services.values()
            for held in service.worker.backlog.held
            if held.ledger_id == ledger_id
        ]

    def _count_calls(self, client: LedgerClient) -> None:
        store = client.store
        assert isinstance(store, SimMetadataStore)
        call = store._call

        def counted(*args: Any) -> Awaitable[Any]:
            self.calls += 1
            return call(*args)

        store._call = counted  # type: ignore[method-assign, assignment]

    def _add_up(self, service: AutoRecovery) -> None:
        statistics = service.worker.statistics
        for what in statistics.__slots__:
            name = f"healers: {what.replace('_', ' ')}"
            self.counts[name] = self.counts.get(name, 0) + getattr(statistics, what)
        audits = service.auditor.audits
        self.counts["healers: audits"] = self.counts.get("healers: audits", 0) + audits


def random_options(chance: random.Random, *, is_checking: bool) -> AutoRecoveryOptions:
    """Returns legal settings. `is_checking`: bookies are asked for their entries now and then;
    otherwise an audit is made only when something has happened."""
    choice = chance.choice
    return AutoRecoveryOptions(
        lost_bookie_recovery_delay_s=choice((1.0, 4.0, 10.0)),
        open_ledger_grace_s=choice((0.5, 3.0, 8.0)),
        ledgers_at_once=choice((1, 4, 32)),
        copy_bytes_per_s=choice((20_000, 64 << 20)),
        metadata_reads_per_s=choice((100.0, 2000.0)),
        entry_checks_per_s=choice((50.0, 1000.0)),
        ledger_check_interval_s=86_400.0,
        entry_check_interval_s=choice((4.0, 10.0)) if is_checking else 0.0,
        scan_interval_s=choice((0.5, 2.0)),
    )
