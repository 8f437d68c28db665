"""Settings of the connections of a bookie's port: a section of its settings."""

from __future__ import annotations

from dataclasses import dataclass

from bookie.config_sections import MIB, check_minimums
from bookie.core.peers import PeerLimits
from ledger.errors import InvalidArgument
from ledger.runtime.config import setting


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """Settings of connections, and of what they may hold."""

    frame_bytes_max: int = setting(
        5 * MIB,
        unit="bytes",
        apache="nettyMaxFrameSizeBytes",
        reason="Largest request and reply; a longer one closes its connection.",
    )
    connections_max: int = setting(
        2000,
        unit="connections",
        apache="",
        reason="At this number a new connection takes the place of the oldest one that has sent no"
        " valid request, or of one that was idle for a minute, of the address with most; else it is"
        " refused. A quarter is for addresses from which valid requests came before; it is lower if"
        " the process may not open enough files, see operations.md.",
    )
    connections_per_peer_max: int = setting(
        0,
        unit="connections",
        apache="",
        reason="Connections of one address, or of one /64 network of IPv6; 0 is half of"
        " `connections_max`. Raise it if all clients come through one proxy.",
    )
    first_request_wait_ms_max: int = setting(
        30_000,
        unit="ms",
        apache="",
        reason="A peer that has sent no whole valid request by then is disconnected. After one it"
        " may be silent for as long as it likes.",
    )
    frame_wait_ms_max: int = setting(
        60_000,
        unit="ms",
        apache="",
        reason="A peer that began a frame and sends neither 16 KiB of it nor its rest for this time"
        " is disconnected.",
    )
    receive_bytes_max: int = setting(
        256 * MIB,
        unit="bytes",
        apache="",
        reason="Receive buffers of all connections, beyond 64 KiB of each, which grow with what has"
        " come. At the limit, connections whose frame needs more are not read, and those whose"
        " frame stalls for two seconds are closed.",
    )
    long_polls_max: int = setting(
        10_000,
        unit="requests",
        apache="",
        reason="Tailing reads that wait at the same time; further ones are answered at once.",
    )

    def check(self) -> None:
        """Raises InvalidArgument if these settings are out of range or contradict each other."""
        zero = ("connections_per_peer_max", "long_polls_max")
        check_minimums(ConnectionSettings, self, may_be_zero=zero)
        if self.connections_per_peer_max > self.connections_max:
            raise InvalidArgument(
                f"connections_per_peer_max is {self.connections_per_peer_max}, must be at most"
                f" connections_max, which is {self.connections_max}"
            )

    def peer_limits(self) -> PeerLimits:
        """Returns the limits of the connections of the port."""
        return PeerLimits(
            connections_max=self.connections_max,
            per_peer_max=self.connections_per_peer_max or max(1, self.connections_max // 2),
            first_request_s_max=self.first_request_wait_ms_max / 1000,
            frame_s_max=self.frame_wait_ms_max / 1000,
        )
