"""The simulated network keeps what TCP keeps, and nothing more."""

from __future__ import annotations

import pytest
import trio

from bookie.testing.network import NetworkOptions, SimNetwork
from bookie.testing.scheduler import Simulation, run_simulated
from bookie.testing.transport import SimTransport
from ledger.errors import BookieUnavailable


async def _pair(network: SimNetwork, port: int = 1) -> tuple[SimTransport, SimTransport]:
    listener = await network.of("server").listen("server", port)
    here = await network.of("client").connect("server", port)
    return here, await listener.accept()


async def _send_all(transport: SimTransport, data: bytes) -> int:
    """Sends everything; the number of times the buffer was full."""
    waits = 0
    while data:
        try:
            data = data[transport.send(data) :]
        except BlockingIOError:
            waits += 1
            await transport.wait_writable()
    return waits


async def _read(transport: SimTransport, size: int | None = None) -> bytes:
    """`size` bytes, or all up to the end of the connection."""
    got, buffer = bytearray(), memoryview(bytearray(10_000))
    while size is None or len(got) < size:
        await transport.wait_readable()
        try:
            count = transport.recv_into(buffer)
        except BlockingIOError:
            continue
        if count == 0:
            break
        got += buffer[:count]
    return bytes(got)


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_order_whatever_the_segments_and_limits(seed: int) -> None:
    data = b"".join(b"%05d," % number for number in range(4_000))

    async def main(simulation: Simulation) -> tuple[bytes, int]:
        options = NetworkOptions(buffer_bytes=4096, split_probability=0.5, spike_probability=0.1)
        here, there = await _pair(SimNetwork(simulation, options))
        waits: list[int] = []

        async def send() -> None:
            waits.append(await _send_all(here, data))
            here.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            got = await _read(there)
        return got, waits[0]

    got, waits = run_simulated(main, seed)
    assert got == data
    assert waits > 5, "a buffer of 4 KiB must have filled up"


def test_latency_is_taken_and_traces_repeat() -> None:
    async def main(simulation: Simulation) -> tuple[float, str]:
        options = NetworkOptions(latency_min_s=0.5, latency_max_s=0.6, spike_probability=0)
        here, there = await _pair(SimNetwork(simulation, options))
        begun_s = trio.current_time()
        await _send_all(here, b"x" * 100)
        await _read(there, 100)
        return trio.current_time() - begun_s, simulation.trace_hash()

    first = run_simulated(main, 3)
    assert 0.5 <= first[0] <= 0.61
    assert run_simulated(main, 3) == first
    assert run_simulated(main, 4) != first


def test_a_partition_holds_bytes_back_and_healing_lets_them_through() -> None:
    async def main(simulation: Simulation) -> None:
        network = SimNetwork(simulation)
        here, there = await _pair(network)
        network.block("client", "server")
        await _send_all(here, b"held")
        await _send_all(there, b"other way")
        assert await _read(here, 9) == b"other way"
        with trio.move_on_after(60):
            await _read(there, 4)
            pytest.fail("bytes crossed a partition")
        await _send_all(here, b", more")
        here.close()
        network.heal()
        with trio.fail_after(1):
            assert await _read(there) == b"held, more"

    run_simulated(main, 1)


def test_a_clogged_link_delivers_late_but_delivers() -> None:
    async def main(simulation: Simulation) -> float:
        network = SimNetwork(simulation)
        here, there = await _pair(network)
        network.clog("client", "server", 10)
        await _send_all(here, b"slow")
        assert await _read(there, 4) == b"slow"
        return trio.current_time()

    assert 10 <= run_simulated(main, 1) < 11


def test_a_reset_breaks_both_ends() -> None:
    async def main(simulation: Simulation) -> None:
        network = SimNetwork(simulation)
        here, there = await _pair(network)
        assert network.reset("server") == 1
        await here.wait_readable()
        with pytest.raises(ConnectionResetError):
            here.recv_into(memoryview(bytearray(1)))
        with pytest.raises(ConnectionResetError):
            there.send(b"x")

    run_simulated(main, 1)


def test_connecting_to_nobody_is_refused_and_to_a_partitioned_node_hangs() -> None:
    async def main(simulation: Simulation) -> None:
        network = SimNetwork(simulation)
        client, server = network.of("client"), network.of("server")
        with pytest.raises(BookieUnavailable, match="refused"):
            await client.connect("server", 1)
        await server.listen("server", 1)
        network.block("server", "client")
        with trio.move_on_after(30) as scope:
            await client.connect("server", 1)
        assert scope.cancelled_caught
        with pytest.raises(BookieUnavailable, match="no answer"):
            await client.connect("server", 1)

    run_simulated(main, 1)


def test_a_connect_waits_out_a_short_partition() -> None:
    async def main(simulation: Simulation) -> None:
        network = SimNetwork(simulation)
        client, server = network.of("client"), network.of("server")
        await server.listen("server", 1)
        network.partition(["client"], ["server"])
        simulation.call_later(5, network.heal)
        (await client.connect("server", 1)).close()
        assert 5 <= trio.current_time() < 8

    run_simulated(main, 1)


def test_a_killed_node_can_do_nothing_and_its_peer_is_reported() -> None:
    async def main(simulation: Simulation) -> None:
        network = SimNetwork(simulation)
        here, there = await _pair(network)
        network.freeze("server")
        with pytest.raises(OSError, match="closed"):
            there.send(b"from the grave")
        await here.wait_readable()
        with pytest.raises(BookieUnavailable, match="refused"):
            await network.of("other").connect("server", 1)

    for seed in range(5):
        run_simulated(main, seed)


def test_a_silent_death_is_noticed_only_after_the_return() -> None:
    async def main(simulation: Simulation) -> None:
        network = SimNetwork(simulation, NetworkOptions(early_wake_probability=0))
        here, _there = await _pair(network)
        network.freeze("server", is_silent=True)
        await _send_all(here, b"anybody?")
        with trio.move_on_after(100) as scope:
            await here.wait_readable()
        assert scope.cancelled_caught
        network.of("server")
        with trio.fail_after(1):
            await here.wait_readable()
        with pytest.raises(ConnectionResetError):
            here.send(b"x")

    run_simulated(main, 1)


def test_closing_wakes_the_waiters_of_this_side() -> None:
    async def main(simulation: Simulation) -> None:
        options = NetworkOptions(early_wake_probability=0)
        here, _there = await _pair(SimNetwork(simulation, options))
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await here.wait_readable()

            nursery.start_soon(wait)
            await trio.sleep(0.01)
            here.close()

    run_simulated(main, 1)


def test_a_listener_frees_its_port_and_turns_its_waiter_away() -> None:
    async def main(simulation: Simulation) -> None:
        server = SimNetwork(simulation).of("server")
        listener = await server.listen("", 7)
        with pytest.raises(OSError, match="in use"):
            await server.listen("", 7)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await listener.accept()

            nursery.start_soon(wait)
            await trio.sleep(0.01)
            listener.close()
        assert (await server.listen("", 7)).address == ("server", 7)
        assert (await server.listen("", 0)).address[1] > 1024

    run_simulated(main, 1)
