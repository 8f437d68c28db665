"""The audit log of a bookie: who authenticated, who used which ledger, who was refused, who
changed its state over HTTP.

Lines are made where something happens and written in batches in a thread, by one task that sleeps
while there are none. The log must never make a request wait or end the bookie: while its file
cannot be written, lines are lost, and that is counted, logged and, later, in the file. Nothing is
recorded per entry, and a ledger once per connection and kind of use.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from bookie.core.audit_rate import AuditRate
from bookie.core.failed_attempts import address_of_peer
from bookie.core.operations import (
    FENCING_BATCH_READ,
    FENCING_READ,
    WireOperation,
    operation_of,
)
from ledger.core.audit import Field, audit_line
from ledger.core.permissions import Role
from ledger.wire.messages import RequestBody

_log = logging.getLogger(__name__)

QUEUE_BYTES_MAX: Final = 1 << 20
"""Lines that wait for the file; more are lost."""
USES_MAX: Final = 20_000
"""Uses of ledgers that one connection remembers; after more, they are recorded again."""
REPORT_S: Final = 60.0
"""How often lines that were left out or lost are reported."""
_WRITE_S_MAX: Final = 5.0
"""A batch that is not written by then counts as lost."""

Write = Callable[[Sequence[bytes]], Awaitable[int]]
"""Appends lines to the file; returns how many are in it. Raises OSError if none is."""


@dataclass(slots=True)
class AuditCounts:
    """What became of the lines, since the start."""

    written: int = 0
    lost: int = 0
    """Lines that could not be written."""
    left_out: int = 0
    """Refusals of peers that had too many before: they are counted in a later line."""


class AuditLog:
    """The audit log of one bookie. `run` writes what `record` and `refused` are given."""

    def __init__(self, write: Write, *, now_ms: Callable[[], int]) -> None:
        """`write` is called by one task. `now_ms` returns milliseconds since 1970."""
        self.bookie_id = ""
        """The bookie in the lines; set once it is known."""
        self.counts = AuditCounts()
        self._write = write
        self._now_ms = now_ms
        self._rate: AuditRate | None = None
        self._lines: list[bytes] = []
        self._queued_bytes = 0
        self._wanted = trio.Event()
        self._lost = 0
        self._logged_at = float("-inf")

    def record(self, action: str, outcome: str, /, **fields: Field) -> None:
        """Records one event; returns at once, and never fails."""
        source = ("bookie", self.bookie_id)
        line = audit_line(self._now_ms(), source, action, outcome, **fields)
        if self._queued_bytes + len(line) > QUEUE_BYTES_MAX:
            self._lose(1)
        else:
            self._lines.append(line)
            self._queued_bytes += len(line)
        self._wanted.set()

    def refused(
        self, action: str, outcome: str, /, *, peer: str, address: str = "", **fields: Field
    ) -> None:
        """Records a refusal, unless this peer, or all together, had too many. `address` is that
        of `peer` (`address_of_peer`), if the caller has it."""
        rate = self._rate
        now = trio.current_time()
        if rate is None:
            rate = self._rate = AuditRate(now)
        if rate.admits(now, address or address_of_peer(peer)):
            self.record(action, outcome, peer=peer, **fields)
        else:
            self.counts.left_out += 1
            self._wanted.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                await self._write_lines()
                if self._rate is not None and self._rate.has_left_out:
                    await self._write_for(REPORT_S)
                    self._report()
        finally:
            self._report()
            with trio.CancelScope(shield=True):
                await self._write_lines()

    async def _write_for(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                await self._write_lines()

    def _report(self) -> None:
        """Records how many refusals are not in the log."""
        if self._rate is not None:
            for address, count in self._rate.take_left_out().items():
                self.record("audit", "left out", peer=address, refusals=count)

    async def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        self._queued_bytes = 0
        if not lines:
            return
        lost = self._lost
        if lost:
            source = ("bookie", self.bookie_id)
            lines.insert(0, audit_line(self._now_ms(), source, "audit", "lost", lines=lost))
        try:
            # A disk that hangs must not keep the bookie from its end.
            with trio.fail_after(_WRITE_S_MAX) as scope:
                scope.shield = True
                written = await self._write(lines)
        except (OSError, trio.TooSlowError) as error:
            written = 0
            self._lose(len(lines) - bool(lost))
            self._log_failure(error)
        else:
            self._lost -= lost
            self._lose(len(lines) - written)
        self.counts.written += written

    def _lose(self, count: int) -> None:
        self._lost += count
        self.counts.lost += count

    def _log_failure(self, error: Exception) -> None:
        now = trio.current_time()
        if now - self._logged_at >= REPORT_S:
            self._logged_at = now
            _log.error(
                "audit log not written, so lines are lost lost=%d cause=%s",
                self.counts.lost,
                error if str(error) else f"the disk did not answer for {_WRITE_S_MAX:g} s",
            )


class ConnectionAudit:
    """What the peer of one connection does, for the audit log."""

    def __init__(self, log: AuditLog, peer: str) -> None:
        self._log = log
        self._peer = peer
        self._address = address_of_peer(peer)
        self._user = ""
        self._uses: set[tuple[str, int]] = set()

    def authenticated(self, user: str, mechanism: str) -> None:
        """Records that the peer has proved who it is."""
        self._log.record("authenticate", "ok", user=user, peer=self._peer, mechanism=mechanism)

    def unauthenticated(self, mechanism: str, cause: str) -> None:
        """Records that the peer has not proved who it is. `mechanism` may be ""."""
        fields = {"mechanism": mechanism} if mechanism else {}
        self._log.refused(
            "authenticate",
            "refused",
            peer=self._peer,
            address=self._address,
            cause=cause,
            **fields,
        )

    def used(self, user: str, operation: WireOperation, ledger_id: int | None) -> None:
        """Records that an operation was permitted, if it is the first of its kind."""
        action = action_of(operation)
        key = (action, -1 if ledger_id is None else ledger_id)
        if user == self._user and key in self._uses:
            return
        if user != self._user or len(self._uses) >= USES_MAX:
            self._user = user
            self._uses.clear()
        self._uses.add(key)
        self._log.record(action, "allowed", user=user, peer=self._peer, ledger=ledger_id)

    def refused(self, user: str, body: RequestBody, cause: str | None = None) -> None:
        """Records that a request was refused."""
        operation = operation_of(body)
        ledger_id: int | None = getattr(body, "ledger_id", None)
        self._log.refused(
            action_of(operation),
            "refused",
            user=user,
            peer=self._peer,
            address=self._address,
            ledger=ledger_id,
            request=operation.name,
            cause=cause,
        )


def action_of(operation: WireOperation) -> str:
    """Returns what an operation is in the audit log: read, write, fence, or its own name."""
    if operation in (FENCING_READ, FENCING_BATCH_READ):
        return "fence"
    if operation.needs is Role.READ:
        return "read"
    return "write" if operation.needs is Role.WRITE else operation.name
