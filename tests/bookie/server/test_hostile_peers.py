"""Misbehaving peers and disks neither end a bookie nor make it acknowledge too much."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.server import backpressure
from bookie.server.connection import Connection
from bookie.server.deferred_replies import ReplyTarget
from bookie.server.read_scheduler import Unbounded
from bookie.server.reads import Reads
from ledger.connection.connection import BookieConnection
from ledger.errors import OperationTimeout, Status
from ledger.runtime.network import TcpNetwork, TcpTransport
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ReadRequest,
    ReadResponse,
    Request,
    ResponseBody,
    WriteLacRequest,
    WriteLacResponse,
)
from tests.bookie.server.test_server import DIGEST, KEY, SETTINGS, add, entry_of, peer_of
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.real_cluster import real_cluster


async def test_a_peer_that_resets_before_it_is_accepted_causes_no_error(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        for _ in range(20):
            connected = socket.socket()
            connected.connect(cluster.bookies[0].address)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connected.close()
        async with peer_of(cluster) as peer:
            assert (await peer.ask(AddResponse, add(7, 0), 2)).status is Status.OK


async def test_each_add_is_acknowledged_in_the_requested_form(tmp_path: Path) -> None:
    """A client recovers one ledger and writes another over the same connection."""
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(8, 0), 2)
        answers: list[AddResponse] = []

        async def recover() -> None:
            answers.append(await peer.ask(AddResponse, add(7, 0, is_recovery=True), 2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(recover)
            await trio.lowlevel.checkpoint()
            written = AddRequest(8, 1, KEY, entry_of(8, 1), takes_range_acks=True)
            peer.connections[2].send_adds(v2.encode_request(Request(2, 0, written)))
        assert answers[0].status is Status.OK


async def test_an_overlong_lac_packet_is_refused(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        request = WriteLacRequest(7, 0, KEY, struct.pack(">qq", 7, 0) + bytes(70_000))
        assert (await peer.ask(WriteLacResponse, request)).status is Status.BAD_REQUEST
        storage = cluster.bookies[0].storage
        assert storage is not None
        await storage.checkpoint()


@pytest.mark.parametrize(
    ("ids", "status"),
    [
        ((7, 2**63 - 1), Status.BAD_REQUEST),
        ((7, 2**63 - 2**32), Status.BAD_REQUEST),
        ((7, 2**63 - 2**32 - 1), Status.OK),
        ((2**63 - 1, 0), Status.OK),
    ],
)
async def test_the_highest_ids(tmp_path: Path, ids: tuple[int, int], status: Status) -> None:
    ledger_id, entry_id = ids
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        header, _ = DIGEST.encode_entry(ledger_id, entry_id, -1, 1, b"p")
        request = AddRequest(ledger_id, entry_id, KEY, header + b"p")
        assert (await peer.ask(AddResponse, request, 2)).status is status
        storage = cluster.bookies[0].storage
        assert storage is not None
        for _ in range(2):
            read = await peer.ask(
                BatchReadResponse, BatchReadRequest(ledger_id, entry_id, 0, 99), 2
            )
            assert (read.status is Status.OK) == (status is Status.OK)
            await peer.ask(BatchReadResponse, BatchReadRequest(ledger_id, 2**63 - 1, 0, 99), 2)
            await storage.checkpoint()


async def test_a_damaged_entry_is_an_io_error_and_affects_no_other(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for entry_id in range(5):
            await peer.ask(AddResponse, add(7, entry_id), 2)
        storage = cluster.bookies[0].storage
        assert storage is not None
        await storage.checkpoint()
        for log in (tmp_path / "0" / "ledgers").glob("*.log"):
            data = log.read_bytes()
            at = data.find(entry_of(7, 3))
            assert at >= 0
            log.write_bytes(data[:at] + b"\xff" * 16 + data[at + 16 :])
        # The read of its neighbour puts both into the read cache, where the damage is found.
        assert (await peer.ask(ReadResponse, ReadRequest(7, 0), 2)).status is Status.OK
        for version in (2, 3):
            read = await peer.ask(ReadResponse, ReadRequest(7, 3), version)
            assert read.status is Status.IO_ERROR
        assert (await peer.ask(ReadResponse, ReadRequest(7, 4), 2)).status is Status.OK


@pytest.mark.parametrize("kind", ["batch", "read"])
async def test_an_entry_added_during_a_wait_is_not_served_before_it_is_durable(kind: str) -> None:
    """A delayed frame of a dead writer arrives between the wait for the journal and the read."""
    simulated = SimulatedStorage()
    async with simulated.running():
        journal = simulated.storage.journals[0]
        write, written = journal._write, 0

        async def slow(group: object) -> None:
            nonlocal written
            written += 1
            await trio.sleep(0.05 if written == 1 else 0.3)
            await write(group)  # type: ignore[arg-type]

        journal._write = slow  # type: ignore[method-assign]
        reads = Reads(simulated.storage, long_polls_max=10)
        simulated.add(7, 0)
        answers: list[tuple[ResponseBody, list[tuple[int, int]]]] = []

        def reply(answer: ResponseBody) -> None:
            answers.append((answer, list(simulated.acked)))

        target = ReplyTarget(reply, lambda: False, Unbounded())

        async def ask() -> None:
            if kind == "batch":
                batch = BatchReadRequest(7, 0, 0, 1 << 20)
                if not reads.begin_batch(batch, target):
                    await reads.read_batch(batch, target)
            elif not reads.read(ReadRequest(7, 1), target):
                await reads.read_entry(ReadRequest(7, 1), 1, target)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads.run)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            simulated.add(7, 1)
            with trio.fail_after(5):
                while not answers:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    answer, acked = answers[0]
    if isinstance(answer, BatchReadResponse):
        assert len(answer.bodies) <= len(acked)
    else:
        assert isinstance(answer, ReadResponse)
        assert answer.status is not Status.OK or (7, 1) in acked


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: v2.encode_request(Request(2, 0, ReadRequest(7, 0))),
        lambda: v2.encode_request(Request(2, 1, BatchReadRequest(7, 0, 0, 1 << 20))),
    ],
    ids=["read", "batch"],
)
async def test_small_requests_do_not_make_a_bookie_hold_large_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[], bytes]
) -> None:
    connections: list[Connection] = []
    begin = Connection.__init__

    def noted(self: Connection, *arguments: object, **named: object) -> None:
        begin(self, *arguments, **named)  # type: ignore[arg-type]
        connections.append(self)

    monkeypatch.setattr(Connection, "__init__", noted)
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        header, body = DIGEST.encode_entry(7, 0, -1, 200_000, bytes(200_000))
        await peer.ask(AddResponse, AddRequest(7, 0, KEY, b"".join((header, body))), 2)
        stream = await trio.open_tcp_stream(*cluster.bookies[0].address)
        await stream.send_all(request_of() * 3000)
        held = 0
        for _ in range(50):
            await trio.sleep(0.01)
            held = max(held, *(c.send_queue_bytes for c in connections))
        await stream.aclose()
        assert 0 < held < 40 << 20


async def test_a_crash_in_the_first_cookie_write_leaves_a_bookie_that_starts(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "0" / "journal"
    (journal / "lost+found").mkdir(parents=True)
    (journal / "VERSION.tmp").write_bytes(b"")
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        assert cluster.bookies


async def test_reads_abandon_a_silent_bookie() -> None:
    """It accepts connections and requests but never replies: pending calls must not accumulate."""
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener[0].socket.getsockname()

    async def resolve(_: str) -> tuple[str, int]:
        return host, port

    connection = BookieConnection("silent", 2, outbox_bytes_max=1 << 20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, TcpNetwork(), resolve, 5.0)
        with pytest.raises(OperationTimeout):
            await connection.call(ReadRequest(7, 0), 0.05)
        assert connection.error is not None
        assert connection.statistics().calls_waiting == 0
    await listener[0].aclose()


async def test_refused_requests_are_logged_once_per_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad_version = struct.pack(">iIqq", 20, 1 << 24 | 2 << 16, 7, 0)  # a read of version 1: valid
    bad = bytearray(v2.encode_request(Request(2, 0, ReadRequest(7, 0))))
    bad[4] = 0
    bad[5:8] = (9).to_bytes(3, "big")  # operation 9 of version 0: undefined
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        for _ in range(3):
            stream = await trio.open_tcp_stream(*cluster.bookies[0].address)
            await stream.send_all(bad_version + bytes(bad) * 20)
            stream_ended = False
            with trio.move_on_after(1):
                while await stream.receive_some(4096):
                    pass
                stream_ended = True
            await stream.aclose()
            assert stream_ended, "an unknown operation ends the connection"
    reported = [
        r for r in caplog.records if "cause=" in r.getMessage() and "peer=" in r.getMessage()
    ]
    assert len(reported) == 3


async def test_requests_that_only_wait_for_the_journal_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk hangs while a peer keeps sending long polls."""
    monkeypatch.setattr(backpressure, "QUEUED_CALLBACKS_MAX", 1000)
    force = v3.encode_request(Request(3, 1, ForceLedgerRequest(7)))
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        assert cluster.bookies[0].storage is not None
        journal = cluster.bookies[0].storage.journals[0]
        write, hangs, unblocked = journal._write, trio.Event(), trio.Event()

        async def hanging(group: object) -> None:
            hangs.set()
            await unblocked.wait()
            await write(group)  # type: ignore[arg-type]

        journal._write = hanging  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.ask, AddResponse, add(7, 0), 2, 60)
            await hangs.wait()
            stream = await trio.open_tcp_stream(*cluster.bookies[0].address)
            nursery.start_soon(stream.send_all, force * 20_000)
            with trio.move_on_after(20):
                queued = -1
                while journal.queued_callbacks > queued or queued < 1000:
                    queued = journal.queued_callbacks
                    await trio.sleep(0.3)
            assert 1000 < journal.queued_callbacks < 3000
            unblocked.set()
            received = 0
            with trio.fail_after(30):
                while received < 20_000 * 20:
                    received += len(await stream.receive_some(1 << 20))
            await stream.aclose()


async def test_a_peer_that_is_gone_before_the_reply_causes_no_error(tmp_path: Path) -> None:
    """The bookie closes the connection while it processes a chunk, and then waits for the next
    one."""
    poll = WriteLacRequest(7, 0, KEY, struct.pack(">qq", 7, 0))
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        server = cluster.bookies[0].server
        assert server is not None
        ours, theirs = socket.socketpair()
        ours.sendall(v3.encode_request(Request(3, 1, poll)) * 3)
        ours.close()
        await server.serve(TcpTransport(theirs))
        assert (await peer.ask(AddResponse, add(7, 0), 2)).status is Status.OK
