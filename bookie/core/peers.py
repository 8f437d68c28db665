"""Which connections a bookie accepts, and which it ends, so that no peer takes what others need.

A peer is *proven* once it has sent a whole valid request; one that only authenticated is not, or a
tenant could fill a bookie with silent connections. Until then its connection may be closed for a
newer one, so that connections that only exist keep nobody out. An address may have a share of
all connections only, and one that never sent a valid request none of the last ones. The shells are
`bookie.server.peer_watch` and `bookie.monitoring.http`. Nothing here may take time per request, nor
memory per address that is gone, but for a bounded number of known ones.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

KNOWN_MAX: Final = 10_000
"""Addresses that are remembered because a valid request came from them."""
RESERVED_SHARE: Final = 4
"""One of this many connections is for known addresses."""
IDLE_S: Final = 60.0
"""A connection over which nothing came for this long may be closed for one of an address with
fewer."""
PROGRESS_BYTES: Final = 16 * 1024
"""A peer that sends this much of a frame, or its rest, in the time allowed has not stalled."""
STALLED_S: Final = 2.0
"""While memory is short, a peer that made no progress for this long may be disconnected."""
_LOOK_AGAIN_S: Final = 1.0
"""After a search that found no idle connection, the next one waits for this time."""


def address_of(peer: str) -> str:
    """Returns what limits count by, from `host:port`: the host, or the /64 network of an address of
    IPv6, of which every machine has all."""
    host = peer.rpartition(":")[0]
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """Limits of the connections of one port."""

    connections_max: int
    per_peer_max: int
    """Connections of one address."""
    first_request_s_max: float = 30.0
    """Longest time until the first whole request."""
    frame_s_max: float = 60.0
    """Longest time in which neither PROGRESS_BYTES of a frame arrive nor the rest of it."""


class Peer:
    """One connection, as far as the limits are concerned. Its owner keeps the numbers up to date,
    once per received chunk."""

    __slots__ = (
        "address",
        "consumed_bytes",
        "has_unfinished",
        "is_proven",
        "is_reading",
        "is_short",
        "mark",
        "received_at",
        "received_bytes",
        "replies_taken_at",
        "reply_bytes",
        "segment_bytes",
        "since",
    )

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.since = self.received_at = now
        self.is_proven = False
        self.is_reading = True
        """The connection waits for bytes of the peer, not for the bookie."""
        self.is_short = False
        """The connection waits for memory for its frame."""
        self.received_bytes = 0
        self.consumed_bytes = 0
        """Received bytes up to the end of the last whole frame."""
        self.has_unfinished = False
        """A frame has begun and not ended."""
        self.segment_bytes = 0
        """Size of the receive buffer."""
        self.reply_bytes = 0
        """Memory of the replies that wait for the peer."""
        self.replies_taken_at = now
        self.mark = (0, 0, now)
        """Consumed and received bytes when progress was last seen, and when that was."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The decision about a new connection."""

    peer: Peer | None
    """None: it is refused, because of `cause`."""
    leaves: Peer | None = None
    """The connection that must end instead."""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """A connection that must end."""

    peer: Peer
    cause: str


class Peers:
    """The connections of one port."""

    def __init__(self, limits: PeerLimits) -> None:
        self.limits = limits
        self._all: dict[Peer, None] = {}
        self._unproven: dict[Peer, None] = {}
        """The oldest first."""
        self._by_address: dict[str, dict[Peer, None]] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def unproven(self) -> int:
        return len(self._unproven)

    def of(self, address: str) -> int:
        """Returns the number of connections of an address."""
        return len(self._by_address.get(address, ()))

    def is_known(self, address: str) -> bool:
        return address in self._known

    # ---- coming and going

    def admit(self, address: str, now: float) -> Admission:
        """Decides about a new connection, and counts it unless it is refused. The connection that
        it replaces is not counted any more."""
        limits = self.limits
        own = self._by_address.get(address, {})
        leaves: Peer | None = None
        if len(own) >= limits.per_peer_max:
            leaves = next((peer for peer in own if not peer.is_proven), None)
            if leaves is None:
                return Admission(
                    None,
                    cause=f"{len(own)} connections of {address} are open, the limit of one address"
                    " is connections_per_peer_max",
                )
        elif len(self._all) >= self._limit_of(address):
            leaves = next(iter(self._unproven), None) or self._idle(len(own), now)
            if leaves is None:
                limit = self._limit_of(address)
                kind = "known" if limit == limits.connections_max else "unknown"
                return Admission(
                    None,
                    cause=f"{len(self._all)} connections are open, the limit for {kind} addresses"
                    f" is {limit} by connections_max",
                )
        if leaves is not None:
            self.leave(leaves)
        peer = Peer(address, now)
        self._all[peer] = None
        self._unproven[peer] = None
        self._by_address.setdefault(address, {})[peer] = None
        return Admission(peer, leaves)

    def _limit_of(self, address: str) -> int:
        limit = self.limits.connections_max
        return limit if address in self._known else limit - limit // RESERVED_SHARE

    def _idle(self, own: int, now: float) -> Peer | None:
        """Returns the connection, idle for longest, of the address with most of them, if that has
        more than the new one would have."""
        if now < self._look_at:
            return None
        most = max(self._by_address.values(), key=len, default={})
        if len(most) > own + 1:
            idle = min(most, key=lambda peer: peer.received_at)
            if now - idle.received_at >= IDLE_S and not idle.reply_bytes:
                return idle
        self._look_at = now + _LOOK_AGAIN_S
        return None

    def prove(self, peer: Peer) -> None:
        """Records that a whole valid request came."""
        peer.is_proven = True
        if self._unproven.pop(peer, self) is self:
            return
        self._known[peer.address] = None
        self._known.move_to_end(peer.address)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def leave(self, peer: Peer) -> None:
        """Records that a connection has ended; more than once is no error."""
        if self._all.pop(peer, self) is self:
            return
        self._unproven.pop(peer, None)
        own = self._by_address[peer.address]
        del own[peer]
        if not own:
            del self._by_address[peer.address]

    # ---- time

    def has_watched(self) -> bool:
        """Whether any connection has to send something in time."""
        return bool(self._unproven) or any(peer.has_unfinished for peer in self._all)

    def overdue(self, now: float) -> Iterator[Ending]:
        """Yields the connections whose peers did not send in time what they have to send. Call it
        about once a second while `has_watched`. The time in which the bookie did not read does not
        count."""
        limits = self.limits
        for peer in self._all:
            if not peer.is_reading:
                peer.mark = (-1, 0, now)  # what comes next is progress
            elif not peer.is_proven:
                if now - peer.since >= limits.first_request_s_max:
                    what = "sent no whole request"
                    if peer.consumed_bytes:
                        what = "sent no request but those to encrypt and authenticate"
                    yield Ending(
                        peer,
                        f"it {what} within {limits.first_request_s_max:g} s,"
                        f" but {peer.received_bytes} bytes",
                    )
            elif peer.has_unfinished:
                consumed, received, at = peer.mark
                is_new = consumed != peer.consumed_bytes
                if is_new or peer.received_bytes - received >= PROGRESS_BYTES:
                    peer.mark = (peer.consumed_bytes, peer.received_bytes, now)
                elif now - at >= limits.frame_s_max:
                    unfinished = peer.received_bytes - peer.consumed_bytes
                    yield Ending(
                        peer,
                        f"its frame stalled for {limits.frame_s_max:g} s after {unfinished} bytes",
                    )

    # ---- memory

    def largest_unfinished(
        self, segment_bytes_min: int, free_bytes: int, now: float
    ) -> list[Ending]:
        """Returns connections with unfinished frames in buffers of more than `segment_bytes_min`,
        which free `free_bytes` together: those without progress for the longest time, and unproven
        ones first."""
        stalled = [
            peer
            for peer in self._all
            if peer.has_unfinished
            and (peer.is_reading or peer.is_short)
            and peer.segment_bytes > segment_bytes_min
            and now - peer.received_at >= STALLED_S
        ]
        stalled.sort(key=lambda peer: (peer.is_proven, peer.received_at))
        endings: list[Ending] = []
        for peer in stalled:
            if free_bytes <= 0:
                break
            free_bytes -= peer.segment_bytes
            endings.append(
                Ending(
                    peer,
                    "memory for unfinished frames is short, and its frame stalled for"
                    f" {now - peer.received_at:.0f} s, with a buffer of {peer.segment_bytes} bytes",
                )
            )
        return endings

    def slowest_takers(self, free_bytes: int, now: float) -> list[Ending]:
        """Returns connections with waiting replies that free `free_bytes` together: those that
        took nothing for a while, the largest first."""
        stalled = [
            peer
            for peer in self._all
            if peer.reply_bytes and now - peer.replies_taken_at >= STALLED_S
        ]
        stalled.sort(key=lambda peer: -peer.reply_bytes)
        endings: list[Ending] = []
        for peer in stalled:
            if free_bytes <= 0:
                break
            free_bytes -= peer.reply_bytes
            endings.append(
                Ending(
                    peer,
                    f"memory for replies is short, and it took none of {peer.reply_bytes} bytes for"
                    f" {now - peer.replies_taken_at:.0f} s",
                )
            )
        return endings
