"""Ends connections whose peers hold what others need: places, memory of frames and of replies.

One task for all connections, which sleeps while no peer has to send anything in time and no memory
is short. The decisions are in `bookie.core.peers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from bookie.core.peers import Ending, Peers
from bookie.server.backpressure import Backpressure
from ledger.wire.connection import SEGMENT_BYTES_MIN

SWEEP_S: Final = 1.0
"""How often peers are looked at while one of them has to send something in time."""
_FREED_SHARE: Final = 8
"""One of this many parts of the limit of receive buffers is freed at once."""


class PeerWatch:
    """The watch over the connections of one server. `run` runs as long as the server."""

    def __init__(
        self,
        peers: Peers,
        pressure: Backpressure,
        *,
        end: Callable[[Ending], None],
        give_back: Callable[[], None],
    ) -> None:
        """`end` ends a connection at once. `give_back` frees the receive buffers in which there is
        nothing."""
        self._peers = peers
        self._pressure = pressure
        self._end = end
        self._give_back = give_back
        self._wanted = trio.Event()
        self.is_asleep = False
        """`wake` must be called when a peer has to send something in time."""
        self.sweeps = 0
        pressure.on_shortage = self.wake

    def wake(self) -> None:
        """Has the peers looked at, about once a second from now on. Cheap to call often."""
        self._wanted.set()

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            self.is_asleep = True
            await self._wanted.wait()
            self._wanted = trio.Event()
            self.is_asleep = False
            while self._is_needed():
                self.sweep(trio.current_time())
                await trio.sleep(SWEEP_S)

    def _is_needed(self) -> bool:
        pressure = self._pressure
        is_short = pressure.is_receive_short or pressure.are_replies_full
        return is_short or self._peers.has_watched()

    def sweep(self, now: float) -> None:
        """Looks at all peers once."""
        self.sweeps += 1
        pressure, peers = self._pressure, self._peers
        self._end_all(list(peers.overdue(now)))
        if pressure.is_receive_short:
            self._give_back()
            wanted = pressure.limits.receive_bytes_max // _FREED_SHARE
            if pressure.is_receive_short:
                self._end_all(peers.largest_unfinished(SEGMENT_BYTES_MIN, wanted, now))
        if pressure.are_replies_full:
            wanted = pressure.replies_bytes - pressure.limits.replies_bytes_max // 2
            self._end_all(peers.slowest_takers(wanted, now))

    def _end_all(self, endings: Sequence[Ending]) -> None:
        for ending in endings:
            self._end(ending)
