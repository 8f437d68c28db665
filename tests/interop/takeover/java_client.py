"""The Java client of a takeover (`TakeoverClient`), in a process that outlives the takeover."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import trio

from ledger.core.entry import DigestType
from tests.interop.java_client import Answer, JavaClient, JavaError, JavaVm, client_settings_of
from tests.interop.takeover.clients import PLACEMENT_KEY, RecoveryFailed
from tests.interop.takeover.judge import LedgerEnd, WriterResult
from tests.interop.takeover.plan import Pace, Shape

PLACEMENT = {"ensemblePlacementPolicy": "ledgerstream.interop.ChosenBookies"}
_READ_BATCH = 100


def java_digest(digest_type: DigestType) -> str:
    """Returns Apache's name of a digest type."""
    return "MAC" if digest_type is DigestType.HMAC else digest_type.name


@dataclass(slots=True)
class _Opened:
    handle: int
    end: LedgerEnd
    is_closed: bool


class JavaTakeoverClient:
    """The Java client: writer and recoverer are separate clients in one process.

    Args:
        writer: client with the settings of PLACEMENT.
        recoverer: another one.
        bookies: ids that may be used, beginning with the ensemble.
    """

    def __init__(
        self,
        writer: JavaClient,
        recoverer: JavaClient,
        zookeeper_uri: str,
        bookies: Sequence[str],
    ) -> None:
        self._writer = writer
        self._recoverer = recoverer
        self._uri = zookeeper_uri
        self._bookies = tuple(bookies)
        self.name = f"java {writer.version} {'v2' if writer.v2 else 'v3'}"

    async def begin(self, shape: Shape, password: bytes, pace: Pace) -> JavaPacedWriter:
        created = await self._writer.call(
            "create",
            ensemble=shape.ensemble_size,
            write_quorum=shape.write_quorum,
            ack_quorum=shape.ack_quorum,
            digest=java_digest(shape.digest_type),
            password=password,
            custom={PLACEMENT_KEY: ",".join(self._bookies).encode()},
        )
        writer = JavaPacedWriter(self._writer.vm, created["handle"], created["ledger"])
        await writer.begin(pace)
        return writer

    async def _open(
        self, client: JavaClient, ledger_id: int, shape: Shape, password: bytes, *, recovery: bool
    ) -> _Opened:
        answer = await client.call(
            "open",
            ledger=ledger_id,
            digest=java_digest(shape.digest_type),
            password=password,
            recovery=recovery,
        )
        return _Opened(
            answer["handle"], LedgerEnd(answer["lac"], answer["length"]), answer["closed"]
        )

    async def recover(self, ledger_id: int, shape: Shape, password: bytes) -> LedgerEnd:
        try:
            opened = await self._open(self._recoverer, ledger_id, shape, password, recovery=True)
        except JavaError as error:
            raise RecoveryFailed(str(error)) from error
        assert opened.is_closed, f"ledger {ledger_id} is open after its recovery"
        await self._recoverer.call("close", handle=opened.handle)
        return opened.end

    async def recover_and_stop(
        self, ledger_id: int, shape: Shape, password: bytes, after_ms: float
    ) -> None:
        vm = self._recoverer.vm
        settings = client_settings_of(self._uri, v2=self._recoverer.v2, **PLACEMENT)
        number = (await vm.call("client", settings=settings))["client"]
        client = JavaClient(vm, number, v2=self._recoverer.v2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._open_ignoring_errors, client, ledger_id, shape, password)
            await trio.sleep(after_ms / 1000)
            nursery.cancel_scope.cancel()
        client.forget()  # closed in the middle of its operation

    async def _open_ignoring_errors(
        self, client: JavaClient, ledger_id: int, shape: Shape, password: bytes
    ) -> None:
        try:
            await self._open(client, ledger_id, shape, password, recovery=True)
        except JavaError:
            return

    async def read_closed(
        self, ledger_id: int, shape: Shape, password: bytes
    ) -> tuple[LedgerEnd, list[bytes]]:
        client = self._recoverer
        opened = await self._open(client, ledger_id, shape, password, recovery=False)
        assert opened.is_closed, f"ledger {ledger_id} is not closed"
        payloads: list[bytes] = []
        last = opened.end.last_entry_id
        while len(payloads) <= last:
            until = min(last, len(payloads) + _READ_BATCH - 1)
            payloads += await client.read(opened.handle, len(payloads), until)
        await client.call("close", handle=opened.handle)
        return opened.end, payloads

    async def metadata(self, ledger_id: int) -> Answer:
        """Returns the metadata as the client decodes it; Administration.java names the fields."""
        return await self._recoverer.call("metadata", ledger=ledger_id)


class JavaPacedWriter:
    """A writer in the Java process (Pacing.java), which records its results there."""

    def __init__(self, vm: JavaVm, handle: int, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self._vm = vm
        self._handle = handle

    async def begin(self, pace: Pace) -> None:
        await self._vm.call(
            "pace_begin",
            handle=self._handle,
            seed=pace.seed,
            sizes=list(pace.sizes),
            pauses_us=[round(1000 * pause_ms) for pause_ms in pace.pauses_ms],
            window=pace.window,
        )

    async def wait_acked(self, count: int) -> None:
        await self._vm.call("pace_wait", handle=self._handle, acked=count)

    async def begin_close(self) -> None:
        await self._vm.call("pace_close", handle=self._handle)

    async def finish(self) -> WriterResult:
        answer = await self._vm.call("pace_finish", handle=self._handle)
        return WriterResult(
            acked=answer["acked"],
            wrong_ids=answer["wrong"],
            pushed=answer["pushed"],
            error=answer.get("error"),
            closed_at=answer.get("closed_at"),
        )


class JavaClients:
    """The Java processes of a run, one per version, each with a client per wire version and role.

    Made by `open_java_clients`.
    """

    def __init__(self, zookeeper_uri: str) -> None:
        self._uri = zookeeper_uri
        self._clients: dict[tuple[str, bool], tuple[JavaClient, JavaClient]] = {}

    def add(self, version: str, is_v2: bool, writer: JavaClient, recoverer: JavaClient) -> None:
        self._clients[version, is_v2] = (writer, recoverer)

    def client_of(self, version: str, is_v2: bool, bookies: Sequence[str]) -> JavaTakeoverClient:
        writer, recoverer = self._clients[version, is_v2]
        return JavaTakeoverClient(writer, recoverer, self._uri, bookies)


@asynccontextmanager
async def open_java_clients(
    vms: Sequence[JavaVm], zookeeper_uri: str
) -> AsyncIterator[JavaClients]:
    """Opens clients in the given processes."""
    async with AsyncExitStack() as stack:
        opened = JavaClients(zookeeper_uri)
        for vm in vms:
            for is_v2 in (True, False):
                clients = [
                    await stack.enter_async_context(
                        JavaClient.open(
                            vm, zookeeper_uri, v2=is_v2, waits_closed=False, **PLACEMENT
                        )
                    )
                    for _ in range(2)
                ]
                opened.add(vm.version, is_v2, clients[0], clients[1])
        yield opened
