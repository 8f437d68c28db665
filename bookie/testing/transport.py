"""Both ends of one simulated connection, and the two pipes between them.

A pipe keeps the order of its bytes, holds at most its buffer, and delivers by events. After
`die` an end never touches its pipes again.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import trio

from bookie.testing.scheduler import Simulation
from ledger.runtime.network import PeerCertificate

_ACK_OVERHEAD_S = 1e-6
"""Keeps segments of one pipe apart, so that two never arrive at the same instant by rounding."""


@dataclass(slots=True)
class NetworkOptions:
    """How the network behaves; may be changed while it runs.

    Latency is drawn per message, uniformly from its range, and now and then (with
    `spike_probability`) up to `spike_s` longer. A write is cut into segments with
    `split_probability`; `buffer_bytes` bounds what one direction holds in flight and unread.
    """

    latency_min_s: float = 0.0002
    latency_max_s: float = 0.002
    spike_probability: float = 0.01
    spike_s: float = 0.05
    bytes_per_second: float = 1e9
    split_probability: float = 0.1
    early_wake_probability: float = 0.02
    buffer_bytes: int = 256 * 1024


class Link(Protocol):
    """What pipes and transports ask of the network between their nodes."""

    simulation: Simulation
    chance: random.Random
    options: NetworkOptions
    """May be replaced while the network runs."""

    def delay_s(self, source: str, target: str, size: int) -> float:
        """Returns the seconds until `size` bytes sent now arrive, whatever was sent before."""
        ...

    def is_blocked(self, source: str, target: str) -> bool:
        """Returns whether nothing sent now from `source` arrives at `target`."""
        ...

    def notify_reset(self, source: str, transport: SimTransport) -> None:
        """Notifies `transport` that its other end, at `source`, is gone."""
        ...

    def forget(self, transport: SimTransport) -> None:
        """Drops an end that was closed."""
        ...


class _Pipe:
    """One direction: bytes in flight, bytes arrived and not yet read, and how it ended."""

    def __init__(self, link: Link, name: str, source: str, target: str) -> None:
        self.link = link
        self.name = name
        self.source = source
        self.target = target
        self.arrived = bytearray()
        self.in_flight: deque[bytes | None] = deque()  # None is the end of the stream
        self.in_flight_bytes = 0
        self.is_ended = False
        self.last_arrival_s = 0.0
        self.held = 0
        self.reader: SimTransport | None = None
        self.writer: SimTransport | None = None

    @property
    def room(self) -> int:
        return self.link.options.buffer_bytes - self.in_flight_bytes - len(self.arrived)

    @property
    def is_writable(self) -> bool:
        """As in Linux, a writer is woken only when a quarter of the buffer is free."""
        return self.room * 4 >= self.link.options.buffer_bytes

    def push(self, data: bytes | None) -> None:
        """Sends one segment (None: the end), after all earlier ones."""
        size = len(data) if data is not None else 0
        simulation = self.link.simulation
        arrival_s = simulation.now_s + self.link.delay_s(self.source, self.target, size)
        self.last_arrival_s = max(arrival_s, self.last_arrival_s + _ACK_OVERHEAD_S)
        self.in_flight.append(data)
        self.in_flight_bytes += size
        simulation.call_at(self.last_arrival_s, self._arrive)

    def _arrive(self) -> None:
        if self.held or self.link.is_blocked(self.source, self.target):
            self.held += 1
        elif self.in_flight:
            self._deliver()

    def resume(self) -> None:
        """Delivers what a partition held back."""
        held, self.held = self.held, 0
        simulation = self.link.simulation
        for _ in range(held):
            self.last_arrival_s = max(simulation.now_s, self.last_arrival_s) + _ACK_OVERHEAD_S
            simulation.call_at(self.last_arrival_s, self._arrive)

    def _deliver(self) -> None:
        data = self.in_flight.popleft()
        trace = self.link.simulation.trace
        trace("net", self.name, self.source, len(data or b""), zlib.crc32(data or b""))
        if data is None:
            self.is_ended = True
        else:
            self.in_flight_bytes -= len(data)
            self.arrived += data
        reader, writer = self.reader, self.writer
        if reader is None or reader.is_broken:
            # Nothing reads there any more: the peer's kernel answers with a reset.
            self.arrived.clear()
            if writer is not None and data is not None:
                self.link.notify_reset(self.target, writer)
        else:
            reader.wake_reader()

    def discard(self) -> None:
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.held = 0
        self.arrived.clear()


class SimTransport:
    """One end of a connection; implements `Transport`."""

    peer_certificate: PeerCertificate | None = None

    def __init__(self, link: Link, name: str, peer: str, incoming: _Pipe, outgoing: _Pipe):
        self.peer = peer
        self.node = outgoing.source
        self.peer_node = outgoing.target
        self.incoming = incoming
        self.outgoing = outgoing
        self.is_closed = False
        self._link = link
        self._name = name
        self._is_end_sent = False
        self._error: str | None = None
        self._readable: trio.Event | None = None
        self._writable: trio.Event | None = None
        incoming.reader = self
        outgoing.writer = self

    @property
    def is_broken(self) -> bool:
        """True once nothing can be read or sent here any more."""
        return self.is_closed or self._error is not None

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._check()
        size = min(len(data), self.outgoing.room)
        if size <= 0:
            raise BlockingIOError(11, "send buffer full")
        chance, options = self._link.chance, self._link.options
        taken = bytes(memoryview(data)[:size])
        if size > 1 and chance.random() < options.split_probability:
            cut = chance.randrange(1, size)
            self.outgoing.push(taken[:cut])
            if chance.random() < 0.5:
                return cut
            self.outgoing.push(taken[cut:])
        else:
            self.outgoing.push(taken)
        return size

    def recv_into(self, buffer: memoryview) -> int:
        arrived = self.incoming.arrived
        self._check()
        if not arrived:
            if self.incoming.is_ended:
                return 0
            raise BlockingIOError(11, "nothing to read")
        size = min(len(buffer), len(arrived))
        chance = self._link.chance
        if size > 1 and chance.random() < self._link.options.split_probability:
            size = chance.randrange(1, size)
        buffer[:size] = arrived[:size]
        del arrived[:size]
        writer = self.incoming.writer
        if writer is not None and self.incoming.is_writable:
            writer.wake_writer()
        return size

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._is_ready(bool(self.incoming.arrived) or self.incoming.is_ended):
            return
        if self._readable is None:
            self._readable = trio.Event()
        await self._readable.wait()
        if self.is_closed:
            raise trio.ClosedResourceError("connection was closed")

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._is_ready(self.outgoing.is_writable):
            return
        if self._writable is None:
            self._writable = trio.Event()
        await self._writable.wait()
        if self.is_closed:
            raise trio.ClosedResourceError("connection was closed")

    def end_sending(self) -> None:
        """The peer reads what was sent, then the end; this side still receives."""
        self._check()
        if not self._is_end_sent:
            self._is_end_sent = True
            self.outgoing.push(None)

    def close(self) -> None:
        """Ends this side: the peer reads what was sent, then the end."""
        if self.is_closed:
            return
        if self._error is None and not self._is_end_sent:
            self.outgoing.push(None)
        self._end()

    def reset(self) -> None:
        """Breaks the connection: this end now, the other one when it is notified."""
        peer = self.outgoing.reader
        self.be_reset()
        if peer is not None:
            self._link.notify_reset(self.node, peer)

    def be_reset(self) -> None:
        """Breaks this end, because it is notified that the connection broke."""
        if self.is_broken:
            return
        self._error = "connection reset by peer"
        self.incoming.discard()
        self.outgoing.discard()
        self.wake_reader()
        self.wake_writer()

    def die(self, *, is_silent: bool) -> None:
        """The process of this end is dead; see `SimNetwork.freeze`."""
        if self.is_closed:
            return
        if not is_silent and self._error is None:
            # What the process had sent may still arrive, or be lost to the reset.
            if self._is_end_sent:
                pass
            elif self._link.chance.random() < 0.5:
                self.outgoing.push(None)
            else:
                self.reset()
        self._end()

    def wake_reader(self) -> None:
        if self._readable is not None:
            self._readable.set()
            self._readable = None

    def wake_writer(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def _check(self) -> None:
        if self.is_closed:
            raise OSError(9, f"connection {self._name} is closed")
        if self._error is not None:
            raise ConnectionResetError(104, f"{self._name} to {self.peer}: {self._error}")

    def _is_ready(self, is_ready: bool) -> bool:
        if self.is_closed:
            raise trio.ClosedResourceError("connection was closed")
        if is_ready or self._error is not None:
            return True
        return self._link.chance.random() < self._link.options.early_wake_probability

    def _end(self) -> None:
        self.is_closed = True
        self.incoming.arrived.clear()
        self._link.forget(self)
        self.wake_reader()
        self.wake_writer()


def joined_pair(
    link: Link, name: str, node: str, peer: str, port: int
) -> tuple[SimTransport, SimTransport]:
    """Returns the two ends of a new connection from `node` to `port` of `peer`."""
    there = _Pipe(link, name, node, peer)
    back = _Pipe(link, name, peer, node)
    return (
        SimTransport(link, name, f"{peer}:{port}", back, there),
        SimTransport(link, name, f"{node}:{name}", there, back),
    )
