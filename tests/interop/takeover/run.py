"""Runs one takeover with real processes, and collects the observations of all clients.

The clients outlive a run, its ledger does not. A bookie that the run kills is started again, with
its data and port, at the end of the run at the latest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from ledger.metastore.base import MetadataStore
from tests.interop.java_client import payload
from tests.interop.mixed_bookies import MixedBookies
from tests.interop.replicas import read_replicas, replica_faults
from tests.interop.takeover.clients import (
    PacedWriter,
    PythonTakeoverClient,
    RecoveryFailed,
    TakeoverClient,
)
from tests.interop.takeover.judge import LedgerEnd, Observations, faults, misjudged_lengths
from tests.interop.takeover.plan import Kill, KillMoment, Language, Moment, Plan, Recovery
from tests.interop.timeouts import PATIENCE_S

_RETRY_PAUSE_S = 0.25

MakeClient = Callable[[Plan, tuple[str, ...]], AbstractAsyncContextManager[TakeoverClient]]
"""Makes the other language's client for a run: (plan, ids of its bookies)."""


class TakeoverFailed(AssertionError):
    """A rule was violated; the text identifies the plan."""


class TakeoverRun:
    """One interleaving on mixed bookies.

    Args:
        make_java: makes the Java client of a plan's version and wire version; a test of the run
            itself may use the Python client instead.
    """

    def __init__(
        self, plan: Plan, bookies: MixedBookies, store: MetadataStore, make_java: MakeClient
    ) -> None:
        self.plan = plan
        self._bookies = bookies
        self.store = store
        self._make_java = make_java
        self._clients: dict[Language, TakeoverClient] = {}
        self._stopped = trio.Event()

    async def run(self) -> Observations:
        """Runs the takeover. Raises TakeoverFailed with all faults."""
        plan, bookies = self.plan, self._bookies
        await bookies.wait_serving(plan.bookies)
        observed: Observations | None = None
        try:
            with trio.fail_after(PATIENCE_S):
                async with self._open_clients() as python:
                    observed = await self._run_steps(python)
        except Exception as error:
            seen = "" if observed is None else f"\n{observed}"
            raise TakeoverFailed(f"{plan.title()}: {error!r}{seen}") from error
        found = faults(observed, expected_payloads(plan, observed.writer.pushed))
        if found:
            names = dict(zip(plan.bookies, bookies.ids(plan.bookies), strict=True))
            raise TakeoverFailed(
                f"{plan.title()}, ledger {observed.ledger_id}, bookies {names}:\n  "
                + "\n  ".join(found)
            )
        return observed

    @asynccontextmanager
    async def _open_clients(self) -> AsyncIterator[PythonTakeoverClient]:
        plan = self.plan
        ids = self._bookies.ids(plan.bookies)
        async with trio.open_nursery() as nursery, self._make_java(plan, ids) as java:
            python = PythonTakeoverClient(self.store, nursery, ids, f"{plan.seed}/{plan.number}")
            self._clients = {Language.PYTHON: python, Language.JAVA: java}
            yield python
            nursery.cancel_scope.cancel()

    async def _run_steps(self, python: PythonTakeoverClient) -> Observations:
        plan = self.plan
        writer = await self._clients[plan.writer].begin(plan.shape, plan.password, plan.pace)
        observed = Observations(plan, writer.ledger_id)
        await self._wait_moment(writer)
        async with trio.open_nursery() as nursery:
            if plan.kill is not None and plan.kill.moment is KillMoment.DURING:
                nursery.start_soon(self._kill_during, plan.kill)
            for number, recovery in enumerate(plan.recoveries):
                nursery.start_soon(self._recover, number, recovery, observed)
        if plan.kill is not None and plan.kill.moment is KillMoment.AFTER:
            await self._kill(plan.kill)
        observed.writer = await writer.finish()
        if plan.shape.ack_quorum == 1:
            await self._bookies.wait_serving(plan.ensemble)  # one may hold the only replica
        await self._read(python, observed)
        self._restart_victim()
        return observed

    async def _wait_moment(self, writer: PacedWriter) -> None:
        """Returns when the takeover is to begin."""
        plan = self.plan
        if plan.moment is not Moment.IN_FLIGHT:
            await writer.wait_acked(plan.acks)
        if plan.kill is not None and plan.kill.moment is KillMoment.BEFORE:
            await self._kill(plan.kill)
        if plan.moment is Moment.CLOSING:
            await writer.begin_close()
        if plan.moment is not Moment.AFTER_ACKS:
            await trio.sleep(plan.delay_ms / 1000)

    async def _kill(self, kill: Kill) -> None:
        victim = self.plan.bookies[kill.index]
        await self._bookies.kill(victim)
        if kill.restarts_at_once:
            self._bookies.begin_start(victim)

    async def _kill_during(self, kill: Kill) -> None:
        await trio.sleep(self.plan.delay_ms / 2000)
        await self._kill(kill)

    def _restart_victim(self) -> None:
        kill = self.plan.kill
        if kill is not None and not kill.restarts_at_once:
            self._bookies.begin_start(self.plan.bookies[kill.index])

    async def _recover(self, number: int, recovery: Recovery, observed: Observations) -> None:
        plan = self.plan
        client = self._clients[recovery.language]
        what = (observed.ledger_id, plan.shape, plan.password)
        await trio.sleep(recovery.begins_ms / 1000)
        if recovery.gives_up_ms is not None:
            await self.recover_and_stop(client, observed.ledger_id, recovery.gives_up_ms)
            self._stopped.set()
            return
        if recovery.waits_for_stopped:
            await self._stopped.wait()
        while True:  # the run has a deadline
            try:
                end = await client.recover(*what)
            except RecoveryFailed as error:
                observed.retries.append(f"{client.name}: {error}")
                await trio.sleep(_RETRY_PAUSE_S)
                continue
            observed.recovered[f"{client.name} {number}"] = end
            return

    async def recover_and_stop(
        self, client: TakeoverClient, ledger_id: int, after_ms: float
    ) -> None:
        """Begins a recovery that is stopped after `after_ms`; a subclass may override this."""
        plan = self.plan
        await client.recover_and_stop(ledger_id, plan.shape, plan.password, after_ms)

    async def _read(self, python: PythonTakeoverClient, observed: Observations) -> None:
        """Reads the closed ledger with both clients, and its replicas from the bookies."""
        plan = self.plan
        metadata = await python.metadata(observed.ledger_id)
        if not metadata.is_closed:
            return
        observed.metadata = LedgerEnd(metadata.last_entry_id, metadata.length)
        for client in self._clients.values():
            end, payloads = await client.read_closed(observed.ledger_id, plan.shape, plan.password)
            observed.opened_ends[client.name] = end
            observed.read[client.name] = payloads
        down = {
            self._bookies.ids([name])[0]
            for name in plan.bookies
            if not self._bookies.is_serving(name)
        }
        async with python.client() as ledger_client:
            replicas = await read_replicas(ledger_client.pool, metadata, without=down)
        sizes = [len(data) for data in expected_payloads(plan, observed.writer.pushed)]
        observed.lengths = misjudged_lengths(plan, metadata, observed.writer, sizes)
        observed.replica_faults = replica_faults(
            metadata,
            replicas,
            recovered_from=0,
            is_length_doubtful=bool(observed.lengths),
            may_be_torn=self._bookies.apaches_of([plan.victim] if plan.victim else []),
        )


def expected_payloads(plan: Plan, count: int) -> list[bytes]:
    """Returns the payloads of the first `count` entries."""
    sizes = plan.pace.sizes
    return [payload(plan.pace.seed, i, sizes[i] if i < len(sizes) else 1) for i in range(count)]
