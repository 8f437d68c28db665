"""Adds that a bookie refused because it has too much to do: sent again after a growing pause.

Only as long as nothing worse happens: a bookie that acknowledges nothing for the add timeout is
given up by the writer's progress check, as any other. Holds no more than the writer's window.
"""

from __future__ import annotations

from typing import Protocol

import trio

_PAUSE_S_MIN = 0.02
_PAUSE_S_MAX = 1.0


class Resender(Protocol):
    """The writer, as seen from here."""

    def send_again(self, index: int, bookie: str, frames: bytes) -> None: ...


class BusyBookies:
    """Those of one writer."""

    def __init__(self, writer: Resender) -> None:
        self._writer = writer
        self._frames: dict[tuple[int, str], dict[int, bytes]] = {}
        self._refused_at: dict[tuple[int, str], tuple[float, float]] = {}

    def refused(
        self, index: int, bookie: str, entry_id: int, frame: bytes, nursery: trio.Nursery
    ) -> None:
        """`frame` is sent again to `bookie` later, together with what it refuses until then."""
        key = (index, bookie)
        waiting = self._frames.get(key)
        if waiting is None:
            waiting = self._frames[key] = {}
            nursery.start_soon(self._send_later, key, self._pause_s(key))
        waiting[entry_id] = frame

    def _pause_s(self, key: tuple[int, str]) -> float:
        """Twice the last one, unless the bookie took everything for some time since."""
        now = trio.current_time()
        at, pause_s = self._refused_at.get(key, (0.0, 0.0))
        again = now - at < 4 * pause_s
        pause_s = min(2 * pause_s, _PAUSE_S_MAX) if again else _PAUSE_S_MIN
        self._refused_at[key] = now, pause_s
        return pause_s

    async def _send_later(self, key: tuple[int, str], pause_s: float) -> None:
        await trio.sleep(pause_s)
        frames = self._frames.pop(key)
        index, bookie = key
        self._writer.send_again(index, bookie, b"".join(frames[e] for e in sorted(frames)))
