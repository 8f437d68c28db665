"""Peers that hold connections, frames or replies, in virtual time: they end, and others do not."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import trio

from bookie.server.request_metrics import Wait
from bookie.testing.transport import SimTransport
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.connection import SEGMENT_BYTES_FIRST
from ledger.wire.messages import (
    AddRequest,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    Request,
)
from tests.bookie.server.simulated_server import (
    KIB,
    PEER_LIMITS,
    SimulatedServer,
    call,
    run_server,
    send_all,
)
from tests.bookie.server.test_server import KEY, add, entry_of

SOON_S = 0.1
ADDRESS = "attacker"
LIMITS = replace(PEER_LIMITS, connections_max=40, per_peer_max=20)


async def connect(bookie: SimulatedServer, name: str, count: int) -> list[SimTransport]:
    network = bookie.network.of(name)
    return [await network.connect("bookie", 3181) for _ in range(count)]


async def one_add(bookie: SimulatedServer, name: str, ledger_id: int = 7) -> None:
    async with bookie.peer(name) as peer:
        added = await call(peer, add(ledger_id, 0), SOON_S)
        assert added.status is Status.OK


def is_ended(transport: SimTransport) -> bool:
    try:
        return transport.recv_into(memoryview(bytearray(1))) == 0
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# ---- connections that send nothing


@pytest.mark.parametrize("addresses", [1, 100])
def test_silent_connections_keep_nobody_out_and_end(addresses: int) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        silent = []
        networks = [bookie.network.of(f"{ADDRESS}-{number}") for number in range(addresses)]
        for network in networks * (100 // addresses):
            silent.append(await network.connect("bookie", 3181))
        await trio.sleep(SOON_S)
        assert bookie.server.statistics().connections <= 40
        await one_add(bookie, "writer")
        beside = await networks[0].connect("bookie", 3181)  # from an attacker's own address
        await send_all(beside, v2.encode_request(Request(2, 0, add(8, 0))))
        await trio.sleep(SOON_S)
        assert v2.decode_response(bytes(beside.incoming.arrived[4:])).body.status is Status.OK
        beside.close()
        await trio.sleep(31)
        statistics = bookie.server.statistics()
        assert statistics.connections == statistics.connections_unproven == 0
        assert all(map(is_ended, silent))
        assert statistics.connections_replaced + statistics.peers_dropped == 100

    run_server(scenario, peer_limits=LIMITS)


def test_a_peer_that_sent_one_valid_request_may_be_silent_for_hours() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("writer") as peer:
            await call(peer, add(7, 0), SOON_S)
            watch = bookie.server._watch
            await trio.sleep(2)
            sweeps = watch.sweeps
            await trio.sleep(250)
            assert watch.is_asleep
            assert watch.sweeps == sweeps, "nothing happens while all peers are idle"
            added = await call(peer, add(7, 1), SOON_S)
            assert added.status is Status.OK

    run_server(scenario, peer_limits=LIMITS)


# ---- frames that do not end


def test_an_announced_length_takes_no_memory_and_the_frame_must_go_on() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        held = await connect(bookie, ADDRESS, 15)
        for transport in held:
            valid = v2.encode_request(Request(2, 0, ReadRequest(1, 0)))
            await send_all(transport, valid + struct.pack(">i", 60 * KIB) + b"x")
        await trio.sleep(SOON_S)
        segments = [peer.segment_bytes for peer in bookie.server._connections]
        assert segments == [SEGMENT_BYTES_FIRST] * 15
        assert bookie.server.statistics().receive_bytes == 0
        await trio.sleep(58)
        assert bookie.server.statistics().connections == 15
        await one_add(bookie, "writer")
        await trio.sleep(4)
        assert bookie.server.statistics().connections == 0
        assert bookie.server.statistics().peers_dropped == 15

    run_server(scenario, peer_limits=LIMITS)


def test_unfinished_frames_take_bounded_memory_and_others_go_on() -> None:
    """Each peer sends most of a long frame and stops. A writer of as long frames is served."""
    most = 0

    async def scenario(bookie: SimulatedServer) -> None:
        nonlocal most
        held = await connect(bookie, ADDRESS, 20)
        body = struct.pack(">iI", 250 * KIB, v2.ADD_HEADER) + bytes(200 * KIB)

        async def send(transport: SimTransport) -> None:
            with trio.move_on_after(100):
                try:
                    await send_all(transport, body)
                except (OSError, trio.ClosedResourceError):
                    pass

        async with trio.open_nursery() as nursery:
            for transport in held:
                nursery.start_soon(send, transport)
            await trio.sleep(1)
            async with bookie.peer("writer") as peer:
                for entry_id in range(3):
                    entry = entry_of(7, entry_id, payload=bytes(200 * KIB))
                    request = AddRequest(7, entry_id, KEY, entry)
                    assert (await call(peer, request, 10.0)).status is Status.OK
                    statistics = bookie.server.statistics()
                    most = max(most, statistics.receive_bytes)
                assert (await call(peer, add(8, 0), SOON_S)).status is Status.OK
            await trio.sleep(40)
            nursery.cancel_scope.cancel()
        statistics = bookie.server.statistics()
        assert statistics.connections == statistics.receive_bytes == 0
        assert statistics.requests.waits[Wait.FRAMES] > 0

    limit = 1 << 20
    run_server(scenario, peer_limits=LIMITS, receive_bytes_max=limit, frame_bytes_max=300 * KIB)
    assert limit // 2 < most <= limit


def test_idle_buffers_are_given_back_while_memory_is_short() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with trio.open_nursery() as nursery:

            async def grow_and_stay(name: str, ledger_id: int) -> None:
                async with bookie.peer(name) as peer:
                    entry = entry_of(ledger_id, 0, payload=bytes(200 * KIB))
                    request = AddRequest(ledger_id, 0, KEY, entry)
                    assert (await call(peer, request, 5.0)).status is Status.OK
                    await trio.sleep(50)
                    assert (await call(peer, add(ledger_id, 1), 5.0)).status is Status.OK

            for number in range(12):
                nursery.start_soon(grow_and_stay, f"writer-{number}", 100 + number)
        assert bookie.server.statistics().peers_dropped == 0

    run_server(scenario, receive_bytes_max=600 * KIB, frame_bytes_max=300 * KIB)


def test_memory_that_is_short_costs_one_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("writer") as peer:
            await call(peer, add(7, 0), SOON_S)
            (victim,) = await connect(bookie, ADDRESS, 1)

            def no_memory(*_: object) -> None:
                raise MemoryError

            monkeypatch.setattr(v2, "decode_request", no_memory)
            await send_all(victim, v2.encode_request(Request(2, 0, ReadRequest(7, 0))))
            await trio.sleep(SOON_S)
            assert is_ended(victim)
            monkeypatch.undo()
            assert (await call(peer, add(7, 1), SOON_S)).status is Status.OK

    run_server(scenario)
    assert "no memory is left" in caplog.text


# ---- replies that are not taken


def test_replies_that_nobody_takes_stay_within_their_limit() -> None:
    """40 peers send batch reads and never read: the limit holds, a reader is served, and all of
    them are disconnected."""

    async def scenario(bookie: SimulatedServer) -> None:
        limit = bookie.server._pressure.limits.replies_bytes_max
        async with bookie.peer("seeder") as peer:
            for entry_id in range(20):
                entry = entry_of(7, entry_id, payload=bytes(15_000))
                await call(peer, AddRequest(7, entry_id, KEY, entry))
        await bookie.flush()
        bookie.slow_disk.read_s = 0.01
        request = v2.encode_request(Request(2, 0, BatchReadRequest(7, 0, 0, 290_000)))
        deaf = []
        for number in range(40):
            (transport,) = await connect(bookie, f"deaf-{number}", 1)
            transport.send(request * 20)
            deaf.append(transport)
        most = 0
        async with bookie.peer("reader") as reader:
            for _ in range(30):
                batch = await call(reader, BatchReadRequest(7, 0, 3, 290_000), 30.0)
                assert isinstance(batch, BatchReadResponse)
                assert batch.status is Status.OK
                assert (await call(reader, add(8, 0), SOON_S)).status is Status.OK
                most = max(most, bookie.server.statistics().reply_bytes)
                await trio.sleep(1)
            assert most <= limit + 300_000, "by one reply at most"
            for _ in range(30):
                await trio.sleep(1)
                most = max(most, bookie.server.statistics().reply_bytes)
            assert most <= limit + 300_000
            statistics = bookie.server.statistics()
            assert statistics.peers_dropped == 40
            assert (statistics.connections, statistics.reply_bytes) == (1, 0)
            assert bookie.server._requests.read_scheduler.reply_bytes == 0

    run_server(scenario, replies_bytes_max=2_000_000)


def test_a_peer_that_takes_a_byte_now_and_then_is_disconnected() -> None:
    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("seeder") as peer:
            entry = entry_of(7, 0, payload=bytes(60_000))
            await call(peer, AddRequest(7, 0, KEY, entry))
        (transport,) = await connect(bookie, ADDRESS, 1)
        transport.send(v2.encode_request(Request(2, 0, ReadRequest(7, 0))) * 100)
        begun = trio.current_time()
        while not bookie.server.statistics().peers_dropped:
            await trio.sleep(1)
            for _ in range(100):
                try:
                    transport.recv_into(memoryview(bytearray(1)))
                except BlockingIOError:
                    break
            assert trio.current_time() - begun < 70

    run_server(scenario, replies_bytes_max=20_000_000)
