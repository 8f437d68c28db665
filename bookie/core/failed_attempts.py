"""How long a peer waits that has failed to authenticate: longer with each failure, in fixed memory.

Failures are counted for an address with a user name, and for an address as a whole, which may guess
names. They are never counted for a user name alone: anybody could keep a user out by failing in its
name.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

PEERS_MAX: Final = 10_000
"""Addresses, and addresses with a user, that are remembered; the one that was quiet the longest is
forgotten first."""
FORGET_S: Final = 600.0
"""Failures are forgotten after this time without another one."""
DELAY_S: Final = 0.5
DELAY_S_MAX: Final = 30.0
WAIT_S_MAX: Final = 10.0
"""An attempt that would have to wait longer is refused at once."""
FREE_FAILURES: Final = 2
"""A typing error costs nothing."""
FREE_FAILURES_OF_ADDRESS: Final = 20
"""Many clients may share one address."""

_Key = tuple[str, str]
"""An address with a user, or with "" the address as a whole."""


@dataclass(slots=True)
class _Failures:
    count: int
    last_at: float
    next_at: float
    """When the next attempt may be looked at."""


class FailedAttempts:
    """The peers that have failed lately. Times are seconds of any steady clock."""

    def __init__(self, peers_max: int = PEERS_MAX) -> None:
        self._peers_max = peers_max
        self._failures: OrderedDict[_Key, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, now: float, address: str, user: str = "") -> float | None:
        """Returns how long an attempt must wait before it is looked at, and makes the next one wait
        behind it: those of a user at this address, or with "" all of this address. None: it is
        refused unseen."""
        key = (address, user)
        found = self._failures.get(key)
        if found is None:
            return 0.0
        if now - found.last_at > FORGET_S:
            del self._failures[key]
            return 0.0
        start = max(now, found.next_at)
        if start - now > WAIT_S_MAX:
            return None
        found.next_at = start + _delay_s(key, found.count)
        return start - now

    def failed(self, now: float, address: str, user: str = "") -> None:
        """Records a failure; `user` is "" if the peer has named none."""
        for key in dict.fromkeys(((address, user), (address, ""))):
            found = self._failures.get(key)
            if found is None or now - found.last_at > FORGET_S:
                found = self._failures[key] = _Failures(0, now, now)
            found.count += 1
            found.last_at = now
            found.next_at = max(found.next_at, now + _delay_s(key, found.count))
            self._failures.move_to_end(key)
        while len(self._failures) > self._peers_max:
            self._failures.popitem(last=False)

    def succeeded(self, address: str, user: str) -> None:
        """Records that this user has proved its identity; the address keeps its other failures."""
        self._failures.pop((address, user), None)


def _delay_s(key: _Key, failures: int) -> float:
    beyond = failures - (FREE_FAILURES if key[1] else FREE_FAILURES_OF_ADDRESS)
    return 0.0 if beyond <= 0 else min(DELAY_S_MAX, DELAY_S * 2.0 ** min(beyond - 1, 20))


def address_of_peer(peer: str) -> str:
    """Returns what counts as one address: `peer` without its port, and of IPv6 the network of 64
    bits, which is the smallest that one customer gets."""
    host = peer.rpartition(":")[0].strip("[]") or peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))
