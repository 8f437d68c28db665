"""Ends connections whose peers hold what others need: places, memory of frames and of replies.

One task for all connections, which sleeps while no peer has to send anything in time and no memory
is short. The decisions are in `bookie.core.peers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from bookie.core.peers import Ending, Peers
from bookie.server.backpressure import Backpressure
from ledger.wire.connection import SEGMENT_BYTES_MIN

_log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
"""How often peers are looked at while one of them has to send something in time."""
_FREED_SHARE: Final = 8
"""One of this many parts of the limit of receive buffers is freed at once."""
_LINES_MAX: Final = 20
_LINES_S: Final = 10.0
"""No more lines than this are logged in this time: an attack must not fill the disk."""


class PeerLog:
    """Logs what happens to connections, and counts what would be too many lines."""

    def __init__(self) -> None:
        self._begun_at = -_LINES_S
        self._lines = 0
        self._unlogged = 0

    def warning(self, what: str, peer: str, cause: str) -> None:
        """Logs one line, with the number of those left out before it."""
        now = trio.current_time()
        if now - self._begun_at >= _LINES_S:
            self._begun_at, self._lines = now, 0
        self._lines += 1
        if self._lines > _LINES_MAX:
            self._unlogged += 1
            return
        left_out, self._unlogged = self._unlogged, 0
        more = f" ({left_out} such lines were left out)" if left_out else ""
        _log.warning("connection %s peer=%s cause=%s%s", what, peer, cause, more)


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
