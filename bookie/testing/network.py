"""The simulated network: delays, segments, cuts, partitions, full buffers.

Bytes of one direction of a connection keep their order and are never invented; everything else
about them is up to chance. Like TCP, a partition holds bytes back until it heals, and a peer that
died silently is noticed only by timeouts. The ends are in `transport`.
"""

from __future__ import annotations

import math
from collections import deque

import trio

from bookie.testing.scheduler import Simulation
from bookie.testing.transport import NetworkOptions as NetworkOptions
from bookie.testing.transport import SimTransport, joined_pair
from ledger.errors import BookieUnavailable

_BACKLOG_MAX = 64
_FIRST_EPHEMERAL_PORT = 40_000
_CONNECT_RETRY_S = 1.0
_CONNECT_GIVE_UP_S = 127.0
"""As Linux does it: a first packet without an answer is repeated for about two minutes."""


class SimListener:
    """A listening port of one node. Connections wait here until they are accepted."""

    def __init__(self, node_network: NodeNetwork, port: int) -> None:
        self.address = (node_network.node, port)
        self.backlog: deque[SimTransport] = deque()
        self._node_network = node_network
        self._arrived = trio.Event()
        self.is_closed = False

    async def accept(self) -> SimTransport:
        """Returns the next connection. Raises trio.ClosedResourceError once closed."""
        await trio.lowlevel.checkpoint()
        while not self.backlog:
            if self.is_closed:
                raise trio.ClosedResourceError("listener closed")
            await self._arrived.wait()
        return self.backlog.popleft()

    def arrive(self, transport: SimTransport) -> None:
        self.backlog.append(transport)
        self._wake()

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._node_network.network.listeners.pop(self.address, None)
        while self.backlog:
            self.backlog.popleft().close()
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()


class NodeNetwork:
    """The network as one incarnation of one node sees it; implements `Network`."""

    def __init__(self, network: SimNetwork, node: str) -> None:
        self.network = network
        self.node = node
        self.is_frozen = False

    async def connect(self, host: str, port: int) -> SimTransport:
        """Connects to `port` of the node named `host`.

        Raises BookieUnavailable: at once if the node is up and refuses, after about two minutes if
        it does not answer at all. Callers use their own timeout.
        """
        return await self.network._connect(self, host, port)

    async def listen(self, host: str, port: int) -> SimListener:
        """Listens on `port` of this node, whatever `host` says; 0 picks a free one."""
        await trio.lowlevel.checkpoint()
        if self.is_frozen:
            raise OSError(f"{self.node} is dead")
        network = self.network
        port = port or network._free_port()
        if (self.node, port) in network.listeners:
            raise OSError(98, f"address in use: {self.node}:{port}")
        listener = SimListener(self, port)
        network.listeners[self.node, port] = listener
        return listener


class SimNetwork:
    """All links of one simulated world. `of(node)` is the network that a node gets."""

    def __init__(self, simulation: Simulation, options: NetworkOptions | None = None) -> None:
        self.simulation = simulation
        self.options = options or NetworkOptions()
        self.chance = simulation.chance("network")
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self._nodes: dict[str, NodeNetwork] = {}
        self._transports: list[SimTransport] = []
        self._blocked: dict[tuple[str, str], bool] = {}
        self._clogged_until_s: dict[tuple[str, str], float] = {}
        self._silent: dict[str, bool] = {}
        self._last_port = _FIRST_EPHEMERAL_PORT
        self._connections = 0

    def of(self, node: str) -> NodeNetwork:
        """Returns a new network for a new incarnation of `node`; the old one, if any, is frozen."""
        if node in self._nodes:
            self.freeze(node)
        self._nodes[node] = NodeNetwork(self, node)
        if self._silent.pop(node, False):
            self._resume()
        return self._nodes[node]

    # Faults.

    def block(self, source: str, target: str) -> None:
        """Stops everything from `source` to `target` (the other direction still works)."""
        self._blocked[source, target] = True
        self.simulation.trace("net block", source, target)

    def partition(self, group: list[str], rest: list[str]) -> None:
        """Cuts both directions between each of `group` and each of `rest`."""
        for one in group:
            for other in rest:
                self.block(one, other)
                self.block(other, one)

    def heal(self) -> None:
        """Ends all blocks and clogs; what was held back arrives, in order."""
        self._blocked.clear()
        self._clogged_until_s.clear()
        self.simulation.trace("net heal")
        self._resume()

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Bytes sent from `source` to `target` from now on arrive `seconds` from now, or later."""
        self._clogged_until_s[source, target] = self.simulation.now_s + seconds
        self.simulation.trace("net clog", source, target, f"{seconds:.3f}")

    def reset(self, node: str, peer: str | None = None) -> int:
        """Breaks all connections of `node` (with `peer`), both ends; returns how many ends."""
        hit = [t for t in self._transports if t.node == node and peer in (None, t.peer_node)]
        for transport in hit:
            transport.reset()
        self.simulation.trace("net reset", node, peer, len(hit))
        return len(hit)

    def freeze(self, node: str, *, is_silent: bool = False) -> None:
        """The death of a node: its network and connections do nothing any more, at once.

        Peers are notified by a reset, as the kernel does for a killed process; with `is_silent`
        (the machine lost power) they receive nothing until the node is back.
        """
        door = self._nodes.pop(node, None)
        if door is None:
            return
        door.is_frozen = True
        if is_silent:
            self._silent[node] = True
        for transport in [t for t in self._transports if t.node == node]:
            transport.die(is_silent=is_silent)
        for address in [address for address in self.listeners if address[0] == node]:
            self.listeners[address].close()

    # The methods of `Link`, for transports.

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked or target in self._silent

    def is_up(self, node: str) -> bool:
        return node in self._nodes

    def delay_s(self, source: str, target: str, size: int) -> float:
        """Returns the seconds until `size` bytes sent now arrive, without regard to earlier
        ones."""
        options, chance = self.options, self.chance
        delay_s = chance.uniform(options.latency_min_s, options.latency_max_s)
        delay_s += size / options.bytes_per_second
        if chance.random() < options.spike_probability:
            delay_s += chance.uniform(0, options.spike_s)
        if self._clogged_until_s:
            clogged_s = self._clogged_until_s.get((source, target), -math.inf)
            delay_s = max(delay_s, clogged_s - self.simulation.now_s)
        return delay_s

    def notify_reset(self, source: str, transport: SimTransport) -> None:
        """Notifies `transport` that its other end, at `source`, is gone; repeated until it
        arrives."""

        def arrive() -> None:
            if transport.is_broken:
                return
            if self.is_blocked(source, transport.node):
                self.simulation.call_later(_CONNECT_RETRY_S, arrive)
            else:
                transport.be_reset()

        self.simulation.call_later(self.delay_s(source, transport.node, 0), arrive)

    def forget(self, transport: SimTransport) -> None:
        if transport in self._transports:
            self._transports.remove(transport)

    def _resume(self) -> None:
        # Both pipes: the other end may have been closed and forgotten by now.
        for transport in list(self._transports):
            transport.outgoing.resume()
            transport.incoming.resume()

    def _free_port(self) -> int:
        self._last_port += 1
        return self._last_port

    async def _connect(self, door: NodeNetwork, host: str, port: int) -> SimTransport:
        """Performs the handshake. A lost packet is repeated every second, as long as the caller
        waits."""
        source, give_up_s = door.node, self.simulation.now_s + _CONNECT_GIVE_UP_S
        while self.simulation.now_s < give_up_s:
            await trio.sleep(self.delay_s(source, host, 0))
            listener = self.listeners.get((host, port))
            is_lost = self.is_blocked(source, host) or self.is_blocked(host, source)
            if is_lost or (listener is not None and len(listener.backlog) >= _BACKLOG_MAX):
                await trio.sleep(_CONNECT_RETRY_S)
                continue
            here = None
            if listener is not None and not door.is_frozen:
                self._connections += 1
                name = f"c{self._connections}"
                here, there = joined_pair(self, name, source, host, port)
                self._transports += [here, there]
                listener.arrive(there)
            try:
                await trio.sleep(self.delay_s(host, source, 0))
            except trio.Cancelled:
                if here is not None:
                    here.close()
                raise
            if here is None or here.is_closed:
                raise BookieUnavailable(f"{source} cannot connect to {host}:{port}: refused")
            return here
        raise BookieUnavailable(f"{source} cannot connect to {host}:{port}: no answer")
