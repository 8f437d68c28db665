"""A bookie's server on a disk in memory that can be stopped and slowed, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from bookie.core.peers import PeerLimits
from bookie.server.authentication import Authenticator
from bookie.server.backpressure import BackpressureLimits
from bookie.server.read_scheduler import ReadLimits
from bookie.server.requests import Requests
from bookie.server.server import Server
from bookie.storage.options import StorageOptions
from bookie.testing.network import SimNetwork
from bookie.testing.scheduler import Simulation, run_simulated
from bookie.testing.transport import SimTransport
from ledger.connection.authentication import AuthSource
from ledger.connection.connection import BookieConnection
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import AddRequest, Buffer, Request, RequestBody, ResponseBody
from tests.bookie.server.test_server import KEY, entry_of
from tests.bookie.storage.memory_disk import MemoryDisk, MemoryFile
from tests.bookie.storage.simulated_storage import SimulatedStorage

ResultT = TypeVar("ResultT")
KIB = 1024
OPTIONS = StorageOptions(
    write_cache_bytes=16 * 1024 * KIB,
    read_cache_bytes=256 * KIB,
    read_ahead_bytes=4 * KIB,
    checkpoint_interval_s=1e9,
)


PEER_LIMITS = PeerLimits(connections_max=2000, per_peer_max=2000)


class SlowDisk(MemoryDisk):
    """A disk in memory. `read_s` is the time that each read of an entry log takes."""

    read_s = 0.0
    reads = 0

    async def open(
        self, path: str, *, is_new: bool = False, has_own_thread: bool = False
    ) -> MemoryFile:
        opened = await super().open(path, is_new=is_new, has_own_thread=has_own_thread)
        return _SlowFile(self, opened.inode) if path.endswith(".log") else opened


class _SlowFile(MemoryFile):
    disk: SlowDisk

    def read_nowait(
        self, offset: int, size: int, *, drops_cache: bool = False
    ) -> bytes | bytearray | None:
        if self.disk.read_s:
            return None
        return super().read_nowait(offset, size, drops_cache=drops_cache)

    async def read(self, offset: int, size: int, *, drops_cache: bool = False) -> bytes:
        self.disk.reads += 1
        await trio.sleep(self.disk.read_s)
        return await super().read(offset, size, drops_cache=drops_cache)


class SimulatedServer:
    """A server over a simulated storage; peers connect from nodes with names of their own."""

    def __init__(self, simulation: Simulation, simulated: SimulatedStorage, server: Server) -> None:
        self.simulation = simulation
        self.simulated = simulated
        self.server = server
        self.network = SimNetwork(simulation)
        self.disk = simulated.disk
        assert isinstance(self.disk, SlowDisk)

    @property
    def slow_disk(self) -> SlowDisk:
        assert isinstance(self.disk, SlowDisk)
        return self.disk

    @asynccontextmanager
    async def peer(
        self, name: str, version: int = 2, auth: AuthSource | None = None
    ) -> AsyncIterator[BookieConnection]:
        async def resolve(_: str) -> tuple[str, int]:
            return "bookie", 3181

        connection = BookieConnection("bookie", version, outbox_bytes_max=1 << 30, auth=auth)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run, self.network.of(name), resolve, 5.0)
            await connection.wait_connected()
            yield connection
            nursery.cancel_scope.cancel()

    async def flush(self) -> None:
        """Flushes all entries in memory to entry logs."""
        await self.simulated.storage.checkpoint()


class Flood:
    """A peer that sends adds of one ledger as fast as the bookie receives them, and reads the
    replies. It pauses after a refusal, as clients do."""

    WINDOW = 400
    PAUSE_S = 0.5

    def __init__(self, bookie: SimulatedServer, name: str, ledger_id: int, payload: int) -> None:
        self.ledger_id = ledger_id
        self.statuses: Counter[Status] = Counter()
        self.acked: dict[int, None] = {}
        self.refused: dict[int, None] = {}
        self.sent = 0
        self._scope = trio.CancelScope()
        self._bookie = bookie
        self._name = name
        self._payload = bytes(payload)

    def stop(self) -> None:
        """Disconnects without reading the remaining replies."""
        self._scope.cancel()

    async def run(self) -> None:
        with self._scope:
            await self._run()

    async def _run(self) -> None:
        transport = await self._bookie.network.of(self._name).connect("bookie", 3181)
        try:
            await self._send(transport)
        finally:
            transport.close()

    async def _send(self, transport: SimTransport) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, transport)
            refused = 0
            while True:
                while self.sent - len(self.acked) - len(self.refused) > self.WINDOW:  # noqa: ASYNC110
                    await trio.sleep(0.005)
                if len(self.refused) > refused:
                    refused = len(self.refused)
                    await trio.sleep(self.PAUSE_S)
                frames = b"".join(self._frame(self.sent + number) for number in range(16))
                self.sent += 16
                await send_all(transport, frames)

    def _frame(self, entry_id: int) -> bytes:
        entry = entry_of(self.ledger_id, entry_id, payload=self._payload)
        return v2.encode_request(Request(2, 0, AddRequest(self.ledger_id, entry_id, KEY, entry)))

    async def _receive(self, transport: SimTransport) -> None:
        received = bytearray()
        space = memoryview(bytearray(64 * KIB))
        while True:
            await transport.wait_readable()
            try:
                count = transport.recv_into(space)
            except BlockingIOError:
                continue
            if count == 0:
                return
            received += space[:count]
            while len(received) >= 28:
                answer = v2.decode_response(bytes(received[4:28]))
                del received[:28]
                body = answer.body
                self.statuses[body.status] += 1
                kind = self.acked if body.status is Status.OK else self.refused
                kind[body.entry_id] = None  # type: ignore[union-attr]


async def send_all(transport: SimTransport, data: Buffer) -> None:
    pending = memoryview(data)
    while pending:
        await transport.wait_writable()
        try:
            pending = pending[transport.send(pending) :]
        except BlockingIOError:
            continue


async def call(
    connection: BookieConnection, body: RequestBody, within_s: float = 1e6
) -> ResponseBody:
    """Returns the reply to a request; fails if it takes longer than `within_s` of virtual time."""
    started = trio.current_time()
    answer = await connection.call(body, 1e7)
    took_s = trio.current_time() - started
    assert took_s <= within_s, f"{type(body).__name__} took {took_s:.3f} s, at most {within_s:g}"
    return answer


def run_server(
    scenario: Callable[[SimulatedServer], Awaitable[ResultT]],
    *,
    options: StorageOptions = OPTIONS,
    directories: int = 1,
    journals: int = 1,
    queued_bytes_max: int = 256 * KIB,
    add_wait_s_max: float = 10.0,
    replies_bytes_max: int = 1 << 20,
    reply_wait_s_max: float = 60.0,
    read_limits: ReadLimits | None = None,
    receive_bytes_max: int = 1 << 20,
    peer_limits: PeerLimits = PEER_LIMITS,
    frame_bytes_max: int = 64 * KIB,
    authenticator: Authenticator | Callable[[Simulation], Authenticator] | None = None,
) -> ResultT:
    """Runs `scenario` with a bookie in virtual time, and returns its result."""

    async def main(simulation: Simulation) -> ResultT:
        simulated = SimulatedStorage(
            SlowDisk(), options=options, journals=journals, directories=directories
        )

        known = authenticator(simulation) if callable(authenticator) else authenticator

        async def space() -> tuple[int, int]:
            return await simulated.disk.space("")

        async with simulated.running(), trio.open_nursery() as nursery:
            requests = Requests(
                simulated.storage, long_polls_max=100, space=space, read_limits=read_limits
            )
            server = Server(
                simulated.storage,
                requests,
                limits=BackpressureLimits(
                    queued_bytes_max=queued_bytes_max,
                    add_wait_s_max=add_wait_s_max,
                    replies_bytes_max=replies_bytes_max,
                    reply_wait_s_max=reply_wait_s_max,
                    receive_bytes_max=receive_bytes_max,
                ),
                frame_bytes_max=frame_bytes_max,
                peer_limits=peer_limits,
                authenticator=known,
            )
            bookie = SimulatedServer(simulation, simulated, server)
            network = bookie.network.options
            network.spike_probability = network.split_probability = 0.0
            listener = await bookie.network.of("bookie").listen("bookie", 3181)
            nursery.start_soon(requests.run)
            nursery.start_soon(server.run, listener)
            result = await scenario(bookie)
            for gate in (simulated.disk.gate, simulated.disk.sync_gate):
                if gate is not None:
                    gate.set()
            nursery.cancel_scope.cancel()
        return result

    return run_simulated(main, 1, time_limit_s=2000)
