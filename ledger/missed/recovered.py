"""RecoveredLedgers: asks the bookies of a recovered ledger which entries they hold.

The writer of such a ledger died, or lost it, and recorded nothing. A recovery is satisfied with the
ack quorum. So each bookie that should hold entries is asked once, in the background: which ones.
One that lacks entries is asked again after a pause, as the recovery's own adds may still be in
flight; then it is recorded. So is one that says nothing for `idle_replacement_delay_s`. A bookie
that does not answer the request (some of Apache's) is left to the periodic checks.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque

import trio

from ledger.connection.pool import BookiePool
from ledger.core.availability import expected_ranges, lacks_entries
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError, ProtocolError, Status
from ledger.missed.copies import MissedCopies
from ledger.options import ClientOptions
from ledger.wire.messages import ListEntriesResponse, ResponseBody

LEDGERS_AT_ONCE = 64
_PAUSE_S = 1.0
_PAUSE_S_MAX = 10.0
_UNPROVED = (Status.UNKNOWN_LEDGER_STATE, Status.TOO_MANY_REQUESTS, Status.IO_ERROR)
"""Answers after which a bookie is asked again."""


class _Check:
    """One ledger, and the bookies that did not prove yet to hold all of their entries. A Doubt."""

    def __init__(self, metadata: LedgerMetadata, missed: MissedCopies, now_s: float) -> None:
        self.metadata = metadata
        self.since_s = now_s
        self.pause_s = _PAUSE_S
        bookies = dict.fromkeys(b for fragment in metadata.fragments for b in fragment.bookies)
        self.left: dict[str, bool] = {
            bookie: False
            for bookie in bookies
            if next(expected_ranges(metadata, bookie), None) is not None
        }
        """By bookie: whether it said that it lacks entries."""
        self._missed = missed

    def lacks(self, bookie: str) -> None:
        """Notes that it said so; the second time it is believed."""
        if self.left.get(bookie):
            del self.left[bookie]
            self._missed.record(self.metadata.ledger_id, (bookie,))
        elif bookie in self.left:
            self.left[bookie] = True

    def give_up(self) -> None:
        left, self.left = self.left, {}
        self._missed.record(self.metadata.ledger_id, left)
        self._missed.end(self)


class RecoveredLedgers:
    """The recovered ledgers of one client whose copies are being checked.

    Args:
        options: `read_timeout_s` bounds each request, `idle_replacement_delay_s` the time in which
            a bookie has to answer.
        rng: spreads the requests of many ledgers that wait for the same bookie.
    """

    def __init__(
        self, pool: BookiePool, missed: MissedCopies, options: ClientOptions, rng: random.Random
    ) -> None:
        self._pool = pool
        self._missed = missed
        self._options = options
        self._rng = rng
        self._now: deque[_Check] = deque()
        self._later: list[tuple[float, int, _Check]] = []
        self._is_waiting = False
        self._asking = 0
        self._count = 0

    def check(self, metadata: LedgerMetadata) -> None:
        """Checks the copies of a ledger that a recovery closed, in the background."""
        check = _Check(metadata, self._missed, trio.current_time())
        if check.left:
            self._missed.begin(check)
            self._ask_soon(check)

    def _ask_soon(self, check: _Check) -> None:
        self._now.append(check)
        if self._asking < LEDGERS_AT_ONCE and self._missed.start_soon(self._ask_some):
            self._asking += 1

    async def _ask_some(self) -> None:
        try:
            while self._now:
                await self._ask(self._now.popleft())
        finally:
            self._asking -= 1

    async def _ask(self, check: _Check) -> None:
        """Asks all bookies of one ledger that are left."""
        async with trio.open_nursery() as nursery:
            for bookie in list(check.left):
                nursery.start_soon(self._ask_bookie, check, bookie)
        if not check.left:
            self._missed.end(check)
        elif trio.current_time() - check.since_s >= self._options.idle_replacement_delay_s:
            check.give_up()
        else:
            self._ask_later(check)

    async def _ask_bookie(self, check: _Check, bookie: str) -> None:
        try:
            answer = await self._pool.list_entries(
                bookie, check.metadata.ledger_id, timeout_s=self._options.read_timeout_s
            )
            is_lacking = _is_lacking(check.metadata, bookie, answer)
        except ProtocolError:
            is_lacking = False  # it is no bookie of a kind that can be asked
        except LedgerError:
            return
        if is_lacking:
            check.lacks(bookie)
        elif is_lacking is not None:
            check.left.pop(bookie, None)

    def _ask_later(self, check: _Check) -> None:
        pause_s = check.pause_s * (1 + self._rng.random() / 4)
        check.pause_s = min(2 * check.pause_s, _PAUSE_S_MAX)
        end_at = check.since_s + self._options.idle_replacement_delay_s
        due_at = min(trio.current_time() + pause_s, max(end_at, trio.current_time()))
        self._count += 1
        heapq.heappush(self._later, (due_at, self._count, check))
        if not self._is_waiting:
            self._is_waiting = self._missed.start_soon(self._wait)

    async def _wait(self) -> None:
        """Asks again about the ledgers whose time has come, until there are none."""
        try:
            while self._later:
                now_s = trio.current_time()
                while self._later and self._later[0][0] <= now_s:
                    self._ask_soon(heapq.heappop(self._later)[2])
                due_at = self._later[0][0] if self._later else math.inf
                await trio.sleep_until(min(due_at, now_s + _PAUSE_S))
        finally:
            self._is_waiting = False


def _is_lacking(metadata: LedgerMetadata, bookie: str, answer: ResponseBody | None) -> bool | None:
    """Whether the bookie lacks entries, by its answer; None if it has to be asked again, False also
    if it does not understand the question. Raises ProtocolError."""
    if answer is None:
        return False
    if answer.status in _UNPROVED:
        return None
    if isinstance(answer, ListEntriesResponse) and answer.status is Status.OK:
        return lacks_entries(metadata, bookie, answer.availability or b"")
    return answer.status is Status.NO_SUCH_LEDGER
