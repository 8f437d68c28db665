"""What must hold when the faults are over: the cluster has healed, and is at rest."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from bookie.testing.cluster import BOOKIE_PORT, SimCluster
from bookie.testing.scheduler import waiting_at
from ledger.autorecovery.missing_entries import lacking_ranges
from ledger.client import LedgerClient
from ledger.core.autorecovery.backlog import Held
from ledger.core.copies import CopyVerdict
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError, Status
from ledger.metastore.decommissions import Decommissions
from ledger.metastore.ledgers import CLIENT_TAG, client_path
from ledger.verify import verify_ledger
from ledger.wire.messages import ListEntriesRequest
from tests.sim.checks import settle, start_bookies
from tests.sim.healing.healers import Healers
from tests.sim.healing.oracle import Oracle
from tests.sim.healing.workload import ENSEMBLE_MAX, HealingModel
from tests.sim.model import Violation
from tests.sim.workload import PASSWORD, Workload

HEALED_S = 300.0
"""Virtual time after the last fault within which everything must be well."""
REST_S = 20.0
_RETRY_S = 0.5


class HealingChecks:
    """The checks of one run; `run` makes them all."""

    def __init__(
        self,
        cluster: SimCluster,
        workload: Workload,
        model: HealingModel,
        healers: Healers,
        oracle: Oracle,
        operator: LedgerClient,
    ) -> None:
        self.cluster = cluster
        self.workload = workload
        self.model = model
        self.healers = healers
        self.oracle = oracle
        self.client = operator
        self._step = ""
        self._left: list[str] = []
        self._writable_now: list[str] = []

    async def run(self) -> None:
        """Raises Violation if the cluster does not heal within HEALED_S, or not rightly."""
        async with self._in_time():
            await self._end_faults()
            self._step = "every ledger is closed and read"
            await self._settle()
            if self.workload.streams is not None:
                self._step = "the stream is sealed, read and written again"
                await self.workload.streams.check(self.client)
            self._step = "every ledger has its copies, and no mark is left"
            await self._until_healed()
            self._step = "what was promised is checked"
            while self.oracle.unchecked:  # noqa: ASYNC110
                await trio.sleep(_RETRY_S)
            self._step = "all copies are equal, and are what was written"
            await self._verify()
            await self._read_all()
            self._step = "deleted ledgers are gone"
            await self._until_deleted_are_gone()
        await self._rest()

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        stack: list[str] = []
        task, simulation = trio.lowlevel.current_task(), self.cluster.simulation
        deadline_s = simulation.now_s + HEALED_S
        simulation.call_at(deadline_s, lambda: stack.extend(waiting_at(task)))
        with trio.move_on_after(HEALED_S) as scope:
            yield
        if scope.cancelled_caught:
            raise Violation(
                f"not healed within {HEALED_S:g} virtual seconds: {self._step}: "
                + ("; ".join(self._left[:5]) or " > ".join(stack))
            )

    async def _end_faults(self) -> None:
        self._step = "bookies start"
        await start_bookies(self.cluster)
        await self.healers.start_again()
        self._step = "auto-recovery is enabled"
        while True:
            try:
                await self.client.underreplication.set_enabled(enabled=True)
                break
            except LedgerError:
                await trio.sleep(_RETRY_S)
        self._step = "actors finish"
        await self.workload.stop()
        await start_bookies(self.cluster)
        await self._cancel_impossible()
        self._step = "there are enough bookies"
        while len(await self._writable()) < ENSEMBLE_MAX + 1:
            await self.cluster.start_bookie(self.cluster.add_bookie())
            await trio.sleep(1)

    async def _cancel_impossible(self) -> None:
        """An operator sees that a bookie is to be replaced by one that is gone, and gives up."""
        decommissions, writable = Decommissions(self.client.store), await self._writable()
        for one in await decommissions.list():
            if one.state != "emptied" and one.replacement not in (None, *writable):
                await decommissions.cancel(one.bookie)

    async def _writable(self) -> list[str]:
        """Returns the bookies that will take copies, now or once they see that their disks have
        room."""
        leaving = await Decommissions(self.client.store).names()
        ids = [f"{name}:{BOOKIE_PORT}" for name in self.cluster.bookies]
        return [one for one in ids if one not in leaving]

    async def _settle(self) -> None:
        async with self.cluster.client("rival") as rival:
            for history in self.model.ledgers.values():
                if not history.is_being_deleted:
                    await settle(history, self.workload, self.client, rival)

    async def _read_all(self) -> None:
        for history in self.model.ledgers.values():
            while not history.is_being_deleted:
                if await self.workload.recover(self.client, history):
                    break
                await trio.sleep(_RETRY_S)

    # Copies.

    async def _until_healed(self) -> None:
        while True:
            if not await self.client.underreplication.is_enabled():  # a change that came late
                await self.client.underreplication.set_enabled(enabled=True)
            self._left = [
                *await self._marks_left(),
                *await self._ledgers_left(),
                *await self._bookies_left(),
            ]
            if not self._left:
                return
            await trio.sleep(1)

    async def _marks_left(self) -> list[str]:
        """Returns the marks that are left for no good reason."""
        left, self._writable_now = [], await self._writable()
        for ledger_id in await self.client.underreplication.list():
            held = self.healers.held(ledger_id)
            metadata = self.oracle.ledgers.get(ledger_id)
            if metadata is None or not held or not all(self._is_true(metadata, h) for h in held):
                reasons = [one.reason for one in held]
                left.append(f"ledger {ledger_id} is marked ({reasons}): {metadata}")
        return left

    def _is_true(self, metadata: LedgerMetadata, held: Held) -> bool:
        if "its writer, which is alive" in held.reason:
            tag = metadata.custom.get(CLIENT_TAG, b"").decode()
            is_alive = bool(tag) and self.cluster.metadata.tree.get(client_path(tag)) is not None
            return not metadata.is_closed and is_alive
        match = re.search(r"bookie (\S+), which replaces", held.reason)
        if match is not None:
            return match[1] not in self._writable_now
        return False  # there are bookies enough, and all that have disks are up

    async def _ledgers_left(self) -> list[str]:
        """Returns the closed ledgers that lack copies."""
        left = []
        for ledger_id, metadata in list(self.oracle.ledgers.items()):
            for bookie in dict.fromkeys(b for f in metadata.fragments for b in f.bookies):
                if metadata.is_closed:
                    why = await self._why_not_whole(metadata, bookie)
                    if why:
                        left.append(f"ledger {ledger_id} at {bookie}: {why}; {metadata}")
        return left

    async def _why_not_whole(self, metadata: LedgerMetadata, bookie: str) -> str:
        if bookie.partition(":")[0] in self.cluster.lost_bookies:
            return "its disk is lost, or it has left"
        try:
            lacking = await lacking_ranges(self.client, metadata, bookie)
        except LedgerError as error:
            return repr(error)
        return f"it lacks entries {list(lacking)[:5]}" if lacking else ""

    async def _bookies_left(self) -> list[str]:
        """Returns the bookies that are not emptied yet."""
        return [
            f"{one} is still being emptied"
            for one in await Decommissions(self.client.store).list()
            if one.state != "emptied"
        ]

    async def _verify(self) -> None:
        for ledger_id, metadata in list(self.oracle.ledgers.items()):
            if not metadata.is_closed:
                continue
            password = PASSWORD if ledger_id in self.model.ledgers else metadata.password
            report = await verify_ledger(self.client, ledger_id, password=password)
            if report.verdict is not CopyVerdict.WHOLE:
                self.model.violated(f"ledger {ledger_id} is not whole: {report}")
            self.model.count("ledgers whole in the end")

    async def _until_deleted_are_gone(self) -> None:
        """No bookie has an entry of a deleted ledger after some garbage collections."""
        while True:
            self._left = []
            for ledger_id in self.oracle.deleted:
                for name in self.cluster.bookies:
                    if await self._has(name, ledger_id):
                        self._left.append(f"{name} has entries of ledger {ledger_id}")
            if not self._left:
                return
            await trio.sleep(1)

    async def _has(self, name: str, ledger_id: int) -> bool:
        try:
            answer = await self.client.pool.call(
                f"{name}:{BOOKIE_PORT}", ListEntriesRequest(ledger_id), timeout_s=5
            )
        except LedgerError:
            return True
        return answer.status is not Status.NO_SUCH_LEDGER

    # Rest.

    async def _rest(self) -> None:
        """Nothing is asked while nothing happens, and there is one auditor."""
        if self.healers.options.entry_check_interval_s:
            await self.healers.kill_all()
            self.healers.options = replace(self.healers.options, entry_check_interval_s=0.0)
            self.healers.start_all()
        await self._until_no_news()
        auditors = self.healers.auditors()
        if len(auditors) != 1:
            raise Violation(f"there must be one auditor, and there are {auditors}")
        while True:
            calls, news = self.healers.calls, self.oracle.news
            await trio.sleep(REST_S)
            if self.healers.calls == calls:
                return
            if self.oracle.news == news:
                raise Violation(
                    f"auto-recovery made {self.healers.calls - calls} calls of the metadata store "
                    f"in {REST_S:g} s in which nothing happened"
                )
            await self._until_no_news()

    async def _until_no_news(self) -> None:
        """Clients record what they know to be missing up to a minute later."""
        news = -1
        while news != self.oracle.news:
            news = self.oracle.news
            await trio.sleep(REST_S)
