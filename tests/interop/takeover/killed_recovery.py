"""Takeovers whose first recoverer is a separate process that is killed with -9 in the middle."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import trio

from ledger.core.metadata import LedgerState
from ledger.metastore.base import MetadataStore
from ledger.metastore.ledgers import LedgerStore
from tests.interop.java_client import JavaClient, JavaError, JavaGone
from tests.interop.mixed_bookies import MixedBookies
from tests.interop.takeover.clients import PythonTakeoverClient, TakeoverClient
from tests.interop.takeover.java_client import PLACEMENT, java_digest
from tests.interop.takeover.plan import Plan
from tests.interop.takeover.run import MakeClient, TakeoverRun
from tests.system.cluster import COMMAND, environment


class KilledRecoveryRun(TakeoverRun):
    """A run that kills the recoverer instead of stopping it.

    The delay of the plan begins when the ledger's metadata shows the recovery.

    Args:
        uri: of the cluster.
        directory: for logs.
    """

    def __init__(
        self,
        plan: Plan,
        bookies: MixedBookies,
        store: MetadataStore,
        make_java: MakeClient,
        *,
        uri: str,
        directory: Path,
    ) -> None:
        super().__init__(plan, bookies, store, make_java)
        self._uri = uri
        self._directory = directory
        self.state_after_kill = LedgerState.OPEN

    async def recover_and_stop(self, side: TakeoverClient, ledger_id: int, after_ms: float) -> None:
        ledgers = LedgerStore(self.store)
        recoverer = self._ours if isinstance(side, PythonTakeoverClient) else self._javas
        async with recoverer(ledger_id):
            async with aclosing(ledgers.watch(ledger_id)) as versions:
                async for version in versions:
                    if version is None or version.state is not LedgerState.OPEN:
                        break
            await trio.sleep(after_ms / 1000)
        metadata, _ = await ledgers.read(ledger_id)
        self.state_after_kill = metadata.state

    @asynccontextmanager
    async def _ours(self, ledger_id: int) -> AsyncIterator[None]:
        """Runs the command line of ledgerstream; kills it at the end of the block."""
        with (self._directory / "recoverer.log").open("ab") as log:
            process = await trio.lowlevel.open_process(
                [
                    *COMMAND,
                    *("ledger", "recover", str(ledger_id)),
                    *("--password", self.plan.password.decode()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(LEDGERSTREAM_CLUSTER=self._uri),
            )
        try:
            yield
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    @asynccontextmanager
    async def _javas(self, ledger_id: int) -> AsyncIterator[None]:
        """Runs a Java process; kills it at the end of the block."""
        plan = self.plan
        async with (
            JavaClient.start(
                plan.version,
                self._uri,
                self._directory / "recoverer.log",
                v2=plan.is_v2,
                **PLACEMENT,
            ) as client,
            trio.open_nursery() as nursery,
        ):

            async def recover() -> None:
                try:
                    await client.call(
                        "open",
                        ledger=ledger_id,
                        digest=java_digest(plan.shape.digest_type),
                        password=plan.password,
                        recovery=True,
                    )
                except (JavaError, JavaGone):
                    return

            nursery.start_soon(recover)
            yield
            client.vm.kill()
