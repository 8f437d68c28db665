"""Sends the last add confirmed of one ledger by itself (explicit LAC), where no add carries it.

`ledger.core.lac_hints` decides which bookies get it at once and which when the writer has been idle
for a while. Nothing waits for the answers; a bookie that gave none gets it again.
"""

from __future__ import annotations

from typing import Protocol

import trio

from ledger.core.append import AppendCore
from ledger.core.entry import Digest
from ledger.core.lac_hints import LacHints
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError
from ledger.wire.messages import ResponseBody, WriteLacRequest
from ledger.writing.send_loop import SendLoop

_ENTRIES_PENDING = 4
"""With more entries in flight the next add follows soon, and carries the last add confirmed. With
fewer it may take long to follow, and the entries in flight carry an older one."""

_FOLLOWS_S = 0.0003
"""An add that follows a confirmation within this time could have carried its LAC."""


class ConfirmingWriter(Protocol):
    """The writer, as seen by its explicit LAC."""

    metadata: LedgerMetadata
    ledger_id: int
    error: LedgerError | None
    core: AppendCore
    digest: Digest
    is_dirty: bool


class ExplicitLac:
    """The explicit LAC of one writer. `key` is the ledger's master key."""

    __slots__ = (
        "_idle_at", "_is_followed", "_is_scheduled", "_is_watched", "_key", "_loop", "_sent_at",
        "_writer", "hints",
    )  # fmt: skip

    def __init__(self, writer: ConfirmingWriter, loop: SendLoop, key: bytes) -> None:
        self.hints = LacHints(writer.core.ensemble_size)
        self._writer = writer
        self._loop = loop
        self._key = key
        self._is_scheduled = self._is_watched = False
        self._idle_at = -1
        self._is_followed = True
        """Whether the caller whose entry was confirmed appended another one at once, the last time.
        If so, it gets the time for it; if not, the LAC is sent without a turn of the loop."""
        self._sent_at = 0.0

    def confirmed_moved(self) -> None:
        """Arranges that the bookies hear of the last add confirmed, which has advanced."""
        confirmed = self._writer.core.last_add_confirmed
        if confirmed <= self.hints.carried or not self._is_due:
            return
        owed = self.hints.owed(confirmed, self._working())
        due = self.hints.due(owed)
        if due and not (self._is_followed or self._loop.options.lac_linger_ms):
            if not self._follows:
                self._sent_at = trio.current_time()
                self._send(confirmed, due)
        elif due:
            self._schedule()
        if len(due) < len(owed):
            self._watch(confirmed)

    def _watch(self, confirmed: int) -> None:
        """Arranges that bookies that do not get `confirmed` now hear of it later."""
        if not self._is_watched:
            self._is_watched, self._idle_at = True, confirmed
            self._loop.watch_idle(self)

    def carried(self, lac: int) -> None:
        """Records that an add is sent, which carries `lac`."""
        self.hints.carried = max(self.hints.carried, lac)
        if self._sent_at:
            # The caller did not wait: from now on it has the time of the linger to append.
            self._is_followed = trio.current_time() - self._sent_at < _FOLLOWS_S
            self._sent_at = 0.0

    def said(self, index: int, *, is_unpolled: bool) -> None:
        """Records that a bookie says another thing than before of readers that wait there."""
        self.hints.said(index, is_unpolled=is_unpolled)
        confirmed = self._writer.core.last_add_confirmed
        if not is_unpolled and self.hints.owed(confirmed, (index,)) and self._is_due:
            self._schedule()

    @property
    def _is_due(self) -> bool:
        """Whether the last add confirmed must be sent by itself unless an add follows at once."""
        core = self._writer.core
        pending = core.last_add_pushed - core.last_add_confirmed
        return pending <= _ENTRIES_PENDING or core.is_sync_deferred

    @property
    def _follows(self) -> bool:
        """Whether an add follows at once, which carries the last add confirmed or makes it grow."""
        return self._writer.is_dirty and not self._writer.core.is_sync_deferred

    def _working(self) -> list[int]:
        core = self._writer.core
        return [index for index in range(core.ensemble_size) if index not in core.failed]

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.schedule_explicit_lac(self)

    def send_due(self) -> None:
        """Notifies the bookies where readers may wait. Called by the loop after the linger."""
        self._is_scheduled = False
        writer = self._writer
        if not self._is_due or self._follows:
            return
        confirmed = writer.core.last_add_confirmed
        owed = self.hints.owed(confirmed, self._working())
        due = self.hints.due(owed)
        self._is_followed = self._is_followed and not due
        self._send(confirmed, due)
        if len(due) < len(owed):  # an ack may have said since that nobody waits there any more
            self._watch(confirmed)

    def send_if_idle(self) -> None:
        """Notifies all bookies that do not know it, if nothing was confirmed since the last call;
        otherwise the loop calls this again later."""
        confirmed = self._writer.core.last_add_confirmed
        if confirmed > self._idle_at and self._writer.error is None:
            self._idle_at = confirmed
            self._loop.watch_idle(self)
            return
        self._is_watched = False
        self.send_all()

    def send_again(self) -> None:
        """Notifies the bookies that a request did not reach. Called by the loop after a pause."""
        self._is_scheduled = False
        if self._is_due:
            self.send_all()

    def send_all(self) -> None:
        """Notifies all bookies that do not know it, now."""
        confirmed = self._writer.core.last_add_confirmed
        self._send(confirmed, self.hints.owed(confirmed, self._working()))

    def _send(self, confirmed: int, indices: list[int]) -> None:
        writer = self._writer
        if writer.error is not None or not indices:
            return
        body = writer.digest.encode_lac(writer.ledger_id, confirmed)
        request = WriteLacRequest(writer.ledger_id, confirmed, self._key, body)
        bookies = writer.metadata.last_fragment.bookies
        for index in indices:
            self.hints.sent(index, confirmed)

            def answered(answer: ResponseBody | None, index: int = index) -> None:
                if answer is None:
                    self._lost(index, confirmed)

            self._loop.pool.post(bookies[index], request, answered)

    def _lost(self, index: int, confirmed: int) -> None:
        """Sends it again later: a bookie did not receive it, nor would the tails that poll it."""
        core = self._writer.core
        if confirmed == core.last_add_confirmed and self._writer.error is None:
            self.hints.lost(index, confirmed)
            if not self._is_scheduled:
                self._is_scheduled = True
                self._loop.schedule_explicit_lac_again(self)
