"""Sends adds again that an overloaded bookie refused, a few at a time.

The batch size and the pause adapt: smaller batches and longer pauses after another refusal, larger
batches after none. The writer's progress check still replaces a bookie that acknowledges nothing
for the add timeout. Never holds more than the writer's window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import trio

from ledger.wire.messages import Buffer

_PAUSE_S_MIN = 0.02
_PAUSE_S_MAX = 1.0
_BATCH_BEGIN = 16
_BATCH_MAX = 1024


class Resender(Protocol):
    """The writer, as seen from here."""

    def send_again(self, index: int, bookie: str, frames: Buffer) -> bool:
        """Returns False if the bookie is no longer used."""
        ...


@dataclass(slots=True)
class _Overloaded:
    """One overloaded bookie. `sent` are the entries of the last round."""

    frames: dict[int, Buffer] = field(default_factory=dict)
    sent: dict[int, None] = field(default_factory=dict)
    is_refused_again: bool = False
    batch: int = _BATCH_BEGIN
    pause_s: float = _PAUSE_S_MIN

    def next_round(self) -> bytes:
        """Returns the frames to send now, beginning with the first entries; empty when done."""
        if self.is_refused_again:
            self.batch = max(1, self.batch // 2)
            self.pause_s = min(2 * self.pause_s, _PAUSE_S_MAX)
        elif self.sent:
            self.batch = min(2 * self.batch, _BATCH_MAX)
            self.pause_s = _PAUSE_S_MIN
        self.is_refused_again = False
        self.sent = dict.fromkeys(sorted(self.frames)[: self.batch])
        return b"".join(self.frames.pop(entry_id) for entry_id in self.sent)


class OverloadRetry:
    """The retries of one writer."""

    def __init__(self, writer: Resender) -> None:
        self._writer = writer
        self._overloaded: dict[tuple[int, str], _Overloaded] = {}

    def refused(
        self, index: int, bookie: str, entry_id: int, frame: Buffer, nursery: trio.Nursery
    ) -> None:
        """Schedules `frame` to be sent to `bookie` again."""
        key = (index, bookie)
        busy = self._overloaded.get(key)
        if busy is None:
            busy = self._overloaded[key] = _Overloaded()
            nursery.start_soon(self._send_rounds, key, busy)
        busy.is_refused_again |= entry_id in busy.sent
        busy.frames[entry_id] = frame

    async def _send_rounds(self, key: tuple[int, str], busy: _Overloaded) -> None:
        index, bookie = key
        try:
            while True:
                await trio.sleep(busy.pause_s)
                frames = busy.next_round()
                if not frames or not self._writer.send_again(index, bookie, frames):
                    return
        finally:
            del self._overloaded[key]
