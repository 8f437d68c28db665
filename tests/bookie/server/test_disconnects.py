"""Peers that disconnect while their requests are processed must leave no memory behind."""

from __future__ import annotations

import errno
import gc
from contextlib import AsyncExitStack

import trio

from bookie.storage.journal.journal import CommitGroup
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import AddRequest, ReadRequest, Request
from tests.bookie.server.simulated_server import SimulatedServer, call, run_server
from tests.bookie.server.test_server import KEY, add, entry_of


class LeavingPeer:
    """A peer that sends one chunk and disconnects, which the bookie notices only when it sends."""

    peer = "leaving"
    peer_certificate = None

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.is_closed = False

    def send(self, _: object) -> int:
        raise BrokenPipeError(errno.EPIPE, "the peer is gone")

    def recv_into(self, buffer: memoryview) -> int:
        assert not self.is_closed, "a closed connection is read"
        data, self._data = self._data[: len(buffer)], self._data[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_closed:
            raise trio.ClosedResourceError("closed")

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def end_sending(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the peer is gone")

    def close(self) -> None:
        self.is_closed = True


def frame(body: AddRequest | ReadRequest) -> bytes:
    return v2.encode_request(Request(2, 0, body))


def test_a_peer_that_leaves_between_its_requests_leaves_no_memory_behind() -> None:
    """The bookie sends replies before the chunk is finished, and so finds that the peer is gone."""

    async def scenario(bookie: SimulatedServer) -> None:
        storage = bookie.simulated.storage
        large = entry_of(7, 0, payload=bytes(60_000))
        async with bookie.peer("seeder") as peer:
            await call(peer, AddRequest(7, 0, KEY, large))
            await call(peer, add(7, 1))  # so entry 0 is known to be confirmed
        reads = frame(ReadRequest(7, 0)) * 6
        adds = b"".join(frame(add(ledger_id, 0)) for ledger_id in (8, 9))
        more = b"".join(frame(add(ledger_id, 1)) for ledger_id in (8, 9))
        await bookie.server.serve(LeavingPeer(adds + reads + more))
        for _ in range(3):  # each frees what the previous one may have needed
            async with bookie.peer("other") as peer:
                await call(peer, add(10, 0))
            await trio.sleep(1)  # until its connection is closed here, too
            await storage.checkpoint()
        for directory in storage.directories:
            assert not directory.cache.segments
        async with bookie.peer("reader") as peer:
            read = await call(peer, ReadRequest(8, 0))
            assert read.status is Status.OK

    run_server(scenario, directories=2)


def test_an_idle_connection_keeps_no_group_of_the_journal() -> None:
    """A group contains frames of all connections, each in the receive buffer of one of them."""

    async def scenario(bookie: SimulatedServer) -> None:
        async with AsyncExitStack() as stack:
            for number in range(5):
                peer = await stack.enter_async_context(bookie.peer(f"idle-{number}"))
                await call(peer, add(7 + number, 0))
            gc.collect()
            kept = [one for one in gc.get_objects() if isinstance(one, CommitGroup) and one.views]
            assert len(kept) <= 1, "the journal's last one"

    run_server(scenario)
