"""One bookie on a real socket: both wire versions, acks, fences, long polls, bad peers."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from ledger.connection.connection import BookieConnection
from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import Status
from ledger.runtime.network import TcpNetwork
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    WriteLacRequest,
    WriteLacResponse,
)
from tests.real_cluster import SMALL, RealCluster, real_cluster
from tests.task_count import TaskCount

# The ledgers of these tests are not in the metadata, so a collector would remove them.
SETTINGS = SMALL | {"garbage_interval_ms": 3_600_000}
KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C)
ResponseT = TypeVar("ResponseT")


def entry_of(ledger_id: int, entry_id: int, lac: int | None = None, payload: bytes = b"p") -> bytes:
    known = entry_id - 1 if lac is None else lac
    header, body = DIGEST.encode_entry(ledger_id, entry_id, known, (entry_id + 1), payload)
    return header + body


def add(ledger_id: int, entry_id: int, **rest: bool) -> AddRequest:
    return AddRequest(ledger_id, entry_id, KEY, entry_of(ledger_id, entry_id), **rest)


class Peer:
    """Two connections to one bookie, as our client uses them."""

    def __init__(self, connections: dict[int, BookieConnection]) -> None:
        self.connections = connections

    async def ask(
        self, kind: type[ResponseT], body: RequestBody, version: int = 3, timeout_s: float = 5
    ) -> ResponseT:
        answer = await self.connections[version].call(body, timeout_s)
        assert isinstance(answer, kind)
        return answer


@asynccontextmanager
async def peer_of(cluster: RealCluster, outbox_bytes_max: int = 1 << 20) -> AsyncIterator[Peer]:
    async def resolve(_: str) -> tuple[str, int]:
        return cluster.bookies[0].address

    connections = {v: BookieConnection("b", v, outbox_bytes_max=outbox_bytes_max) for v in (2, 3)}
    async with trio.open_nursery() as nursery:
        for connection in connections.values():
            nursery.start_soon(connection.run, TcpNetwork(), resolve, 5.0)
        yield Peer(connections)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("writes", [2, 3])
@pytest.mark.parametrize("reads", [2, 3])
async def test_either_version_reads_entries_that_the_other_wrote(
    tmp_path: Path, writes: int, reads: int
) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for entry_id in range(5):
            added = await peer.ask(AddResponse, add(7, entry_id), writes)
            assert (added.status, added.entry_id) == (Status.OK, entry_id)
        for entry_id in range(5):
            read = await peer.ask(ReadResponse, ReadRequest(7, entry_id), reads)
            assert read.status is Status.OK
            assert read.body is not None
            assert bytes(read.body) == entry_of(7, entry_id)
        last = await peer.ask(ReadResponse, ReadRequest(7, -1), reads)
        assert last.body is not None
        assert bytes(last.body) == entry_of(7, 4)


@pytest.mark.parametrize("version", [2, 3])
async def test_absent_ledgers_and_entries_are_reported_as_absent(
    tmp_path: Path, version: int
) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        answer = await peer.ask(ReadResponse, ReadRequest(7, 0), version)
        assert answer.status is Status.NO_SUCH_LEDGER
        await peer.ask(AddResponse, add(7, 0), version)
        answer = await peer.ask(ReadResponse, ReadRequest(7, 1), version)
        assert answer.status is Status.NO_SUCH_ENTRY


async def test_a_fence_refuses_the_writer_and_admits_recovery(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        async with peer_of(cluster) as peer:
            await peer.ask(AddResponse, add(7, 0), 2)
            fence = ReadRequest(7, -1, KEY, is_fencing=True)
            assert (await peer.ask(ReadResponse, fence, 2)).status is Status.OK
            for version in (2, 3):
                refused = await peer.ask(AddResponse, add(7, 1), version)
                assert refused.status is Status.FENCED
                taken = await peer.ask(AddResponse, add(7, 1, is_recovery=True), version)
                assert taken.status is Status.OK
        await cluster.stop(0)
        await cluster.start(0)
        async with peer_of(cluster) as peer:
            assert (await peer.ask(AddResponse, add(7, 2), 2)).status is Status.FENCED


async def test_a_fence_of_an_unknown_ledger_is_kept(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        async with peer_of(cluster) as peer:
            fence = ReadRequest(9, -1, KEY, is_fencing=True)
            answer = await peer.ask(ReadResponse, fence, 2)
            assert answer.status is Status.NO_SUCH_ENTRY
        await cluster.stop(0)
        await cluster.start(0)
        async with peer_of(cluster) as peer:
            assert (await peer.ask(AddResponse, add(9, 0), 2)).status is Status.FENCED


async def test_with_another_key_no_add_no_fence_and_no_lac_is_accepted(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        other = master_key(b"other")
        for version in (2, 3):
            request = AddRequest(7, 1, other, entry_of(7, 1))
            assert (await peer.ask(AddResponse, request, version)).status is Status.UNAUTHORIZED
            fence = ReadRequest(7, -1, other, is_fencing=True)
            assert (await peer.ask(ReadResponse, fence, version)).status is Status.UNAUTHORIZED
        lac = WriteLacRequest(7, 0, other, DIGEST.encode_lac(7, 0))
        assert (await peer.ask(WriteLacResponse, lac)).status is Status.UNAUTHORIZED
        assert (await peer.ask(AddResponse, add(7, 1), 2)).status is Status.OK


async def test_batches_end_at_count_size_and_gap(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for entry_id in (0, 1, 2, 3, 5):
            await peer.ask(AddResponse, add(7, entry_id), 2)

        async def batch(first: int, count: int, size: int) -> list[bytes]:
            answer = await peer.ask(BatchReadResponse, BatchReadRequest(7, first, count, size), 2)
            return [bytes(b) for b in answer.bodies]

        assert await batch(0, 0, 1 << 20) == [entry_of(7, i) for i in range(4)]
        assert await batch(1, 2, 1 << 20) == [entry_of(7, 1), entry_of(7, 2)]
        assert await batch(2, 0, 1) == [entry_of(7, 2)]
        assert await batch(4, 0, 1 << 20) == []


async def test_a_long_poll_is_answered_by_the_next_add_with_the_entry(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        answers: list[ReadResponse] = []

        async def poll() -> None:
            request = ReadRequest(7, -1, previous_lac=-1, timeout_ms=60_000, is_piggyback=True)
            answers.append(await peer.ask(ReadResponse, request, 3, timeout_s=60))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(poll)
                await trio.testing.wait_all_tasks_blocked()
                await peer.ask(AddResponse, add(7, 1), 2)
        assert answers[0].max_lac == 0
        assert answers[0].entry_id == 0
        assert answers[0].body is not None
        assert bytes(answers[0].body) == entry_of(7, 0)


async def test_a_long_poll_ends_empty_after_its_timeout(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        request = ReadRequest(7, -1, previous_lac=5, timeout_ms=20, is_piggyback=True)
        answer = await peer.ask(ReadResponse, request, 3)
        assert (answer.status, answer.entry_id, answer.body) == (Status.OK, -1, None)


async def test_a_long_poll_is_answered_by_an_explicit_lac_and_by_a_fence(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        wakers: list[RequestBody] = [
            WriteLacRequest(7, 0, KEY, DIGEST.encode_lac(7, 0)),
            ReadRequest(7, -1, KEY, is_fencing=True),
        ]
        for known, waker in enumerate(wakers, -1):
            answers: list[ReadResponse] = []

            async def poll(known: int = known, answers: list[ReadResponse] = answers) -> None:
                request = ReadRequest(
                    7, -1, previous_lac=known, timeout_ms=60_000, is_piggyback=True
                )
                answers.append(await peer.ask(ReadResponse, request, 3, timeout_s=60))

            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(poll)
                    await trio.testing.wait_all_tasks_blocked()
                    await peer.connections[3 if known < 0 else 2].call(waker, 5)
            assert answers[0].max_lac == 0


async def test_lac_force_and_info_are_answered(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for entry_id in range(3):
            await peer.ask(AddResponse, add(7, entry_id), 2)
        packet = DIGEST.encode_lac(7, 2)
        reported = await peer.ask(WriteLacResponse, WriteLacRequest(7, 2, KEY, packet))
        assert reported.status is Status.OK
        lac = await peer.ask(ReadLacResponse, ReadLacRequest(7))
        assert lac.lac_body == packet
        assert lac.last_entry_body is not None
        assert bytes(lac.last_entry_body) == entry_of(7, 2)
        forced = await peer.ask(ForceLedgerResponse, ForceLedgerRequest(7))
        assert forced.status is Status.OK
        info = await peer.ask(GetBookieInfoResponse, GetBookieInfoRequest(3))
        assert info.total_bytes is not None
        assert info.free_bytes is not None
        assert info.total_bytes >= info.free_bytes > 0


def raw_socket(cluster: RealCluster) -> socket.socket:
    connected = socket.create_connection(cluster.bookies[0].address, timeout=10)
    connected.settimeout(10)
    return connected


def read_frames(connected: socket.socket, count: int) -> list[bytes]:
    data = b""
    frames: list[bytes] = []
    while len(frames) < count:
        got = connected.recv(65536)
        assert got, f"the bookie closed the connection after {len(frames)} frames"
        data += got
        while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
            length = int.from_bytes(data[:4], "big")
            frames.append(data[4 : 4 + length])
            data = data[4 + length :]
    return frames


@pytest.mark.parametrize("takes_range_acks", [False, True])
async def test_range_acks_are_sent_only_on_request(tmp_path: Path, takes_range_acks: bool) -> None:
    frames = b"".join(
        v2.encode_request(Request(2, 0, add(7, e, takes_range_acks=takes_range_acks)))
        for e in range(100)
    )

    def talk(connected: socket.socket) -> set[int]:
        connected.sendall(frames)
        acked: set[int] = set()
        while len(acked) < 100:
            for frame in read_frames(connected, 1):
                _, rc, ledger_id, first = struct.unpack_from(">Iiqq", frame)
                assert (rc, ledger_id) == (0, 7)
                assert (len(frame) == 32) == takes_range_acks
                last = struct.unpack_from(">q", frame, 24)[0] if takes_range_acks else first
                acked |= set(range(first, last + 1))
        return acked

    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        with raw_socket(cluster) as connected:
            acked = await trio.to_thread.run_sync(talk, connected)
        assert acked == set(range(100))


@pytest.mark.parametrize("pieces", [1, 7, 61, 4096])
async def test_any_split_of_the_bytes_is_understood(tmp_path: Path, pieces: int) -> None:
    requests = [
        v2.encode_request(Request(2, 0, add(ledger_id, entry_id)))
        for entry_id in range(20)
        for ledger_id in (1, 2, 1 << 40)
    ]
    data = b"".join(requests)

    def talk(connected: socket.socket) -> None:
        for at in range(0, len(data), pieces):
            connected.sendall(data[at : at + pieces])
        read = 0
        while read < len(requests) * 28:
            got = connected.recv(65536)
            assert got
            read += len(got)

    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        with raw_socket(cluster) as connected:
            await trio.to_thread.run_sync(talk, connected)
        async with peer_of(cluster) as peer:
            for ledger_id in (1, 2, 1 << 40):
                answer = await peer.ask(ReadResponse, ReadRequest(ledger_id, 19), 3)
                assert answer.body is not None
                assert bytes(answer.body) == entry_of(ledger_id, 19)


async def test_bad_frames_end_only_their_own_connection(tmp_path: Path) -> None:
    rng = random.Random(1)
    valid = [
        v2.encode_request(Request(2, 0, add(7, 0))),
        v3.encode_request(Request(3, 5, add(7, 0))),
    ]

    def attack(address: tuple[str, int], data: bytes) -> None:
        with socket.create_connection(address, timeout=10) as connected:
            connected.settimeout(10)
            try:
                connected.sendall(data)
                connected.shutdown(socket.SHUT_WR)
                while connected.recv(65536):
                    pass
            except OSError:
                pass

    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(1, 0), 2)
        address = cluster.bookies[0].address
        for round_no in range(300):
            if round_no % 2:
                data = rng.randbytes(rng.randrange(1, 200))
            else:
                mutated = bytearray(rng.choice(valid))
                mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
                data = bytes(mutated)
            await trio.to_thread.run_sync(attack, address, data)
        answer = await peer.ask(ReadResponse, ReadRequest(1, 0), 2)
        assert answer.status is Status.OK


async def test_an_overlong_frame_is_refused_before_it_arrives(tmp_path: Path) -> None:
    def attack(connected: socket.socket) -> bytes:
        connected.sendall(struct.pack(">iI", 1 << 30, v2.ADD_HEADER))
        return connected.recv(10)

    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        with raw_socket(cluster) as connected:
            assert await trio.to_thread.run_sync(attack, connected) == b""
        server = cluster.bookies[0].server
        assert server is not None
        with trio.fail_after(10):
            while server.statistics().connections:
                await trio.lowlevel.checkpoint()  # it is counted after it is closed
        assert server.statistics().protocol_errors == 1


async def test_one_sync_serves_all_adds_that_gathered(tmp_path: Path) -> None:
    """The cost of 1,000 adds: few syncs, few chunks and sends, and no tasks."""
    async with (
        real_cluster(tmp_path, 1) as cluster,
        cluster.client() as client,
        client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        await writer.append(b"first")
        storage = cluster.bookies[0].storage
        server = cluster.bookies[0].server
        assert storage is not None
        assert server is not None
        syncs = storage.journals[0].statistics().syncs
        chunks = server.statistics().chunks
        sends = client.pool.statistics()[cluster.bookies[0].bookie_id, 2].sends
        spawned = TaskCount()
        trio.lowlevel.add_instrument(spawned)
        for _ in range(1000):
            writer.append_nowait(bytes(100))
        await writer.flush()
        trio.lowlevel.remove_instrument(spawned)
        assert spawned.count <= 4  # none per entry; only the tasks of timers that expired meanwhile
        assert storage.journals[0].statistics().syncs - syncs <= 4
        assert server.statistics().chunks - chunks <= 8
        assert client.pool.statistics()[cluster.bookies[0].bookie_id, 2].sends - sends <= 4
