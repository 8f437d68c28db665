"""The reads of one copy: requests in flight to the bookies that have what the target lacks.

Batch reads, a few at a time, bounded by the bytes that they are estimated to return; single reads
where a bookie or the wire version has no batches, or where an entry needs to be examined. Answers
arrive as calls; each is noted in the plan, or kept until its bodies are sent. What an answer proves
is decided as in `ledger.copy_reader`. Bodies that are kept are not checked yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import trio

from ledger.connection.pool import BookiePool, Outcome
from ledger.copy_reader import SilentBookies, bad_copy
from ledger.core.autorecovery.copy_plan import CopyPlan, Read
from ledger.core.autorecovery.copy_rate import DelayWindow, TokenBucket
from ledger.core.copies import BadCopy, CopyState
from ledger.core.ledger_keys import LedgerKeys
from ledger.errors import LedgerError, OperationTimeout, RemoteProtocolError, Status
from ledger.options import ClientOptions
from ledger.wire.messages import (
    FRAME_BYTES_MAX,
    BatchReadRequest,
    BatchReadResponse,
    Buffer,
    ReadRequest,
    ReadResponse,
    ResponseBody,
)

_BATCH_BYTES_MIN = 64 * 1024
ASKS_MAX = 16
SINGLES_MAX = 32
"""Requests of one copy in flight: batch reads, and reads of one entry. An answer has one entry at
least, which may be as large as a frame, whatever was estimated."""
_FIRST_ENTRY_BYTES = 16 * 1024
"""The size of an entry, until it is known."""
_TRIES_MAX = 6
_TRIES_OF_TIMEOUT = 3


class Source:
    """What all copies of a process know of a bookie they read from."""

    __slots__ = ("failures", "window")

    def __init__(self, window: DelayWindow) -> None:
        self.window = window
        self.failures = 0
        """In a row, counting a timeout as several."""


class Limits(Protocol):
    """What the copies of one process share."""

    pool: BookiePool
    options: ClientOptions
    keys: LedgerKeys
    bucket: TokenBucket
    silent: SilentBookies
    held_bytes: int
    """Bytes that are being read or wait to be sent, of all copies."""
    held_bytes_max: int

    def source(self, bookie: str) -> Source:
        """Returns the state of a bookie that is read from."""
        ...

    def target(self, bookie: str) -> DelayWindow:
        """Returns the window of a bookie that is written to."""
        ...

    def wake_all(self) -> None:
        """Bytes in flight became free, for which other copies may wait."""
        ...

    def count(self, entries: int, payload_bytes: int) -> None:
        """Entries were acknowledged."""
        ...


class ReadBodies(NamedTuple):
    """Bodies of consecutive entries as a source returned them."""

    source: str
    first: int
    bodies: Sequence[Buffer]


@dataclass(slots=True, eq=False)
class _Ask:
    """Requests in flight for one read: a batch read, or one for each entry."""

    read: Read
    nbytes: int
    """As estimated."""
    sent_s: float
    waiting: set[int]
    """The first entry of each request without an answer."""
    nbytes_read: int = 0
    has_failed: bool = False
    give_up: Callable[[], LedgerError] | None = field(default=None)


class CopyReads:
    """The reads of one copy.

    Args:
        up: bookies that are registered; others are asked last.
        entry_bytes: the estimated size of an entry; None: not known yet.
        on_progress: called when something was answered.
    """

    def __init__(
        self,
        limits: Limits,
        ledger_id: int,
        plan: CopyPlan,
        *,
        up: frozenset[str],
        entry_bytes: float | None,
        on_progress: Callable[[], None],
    ) -> None:
        self.ready: deque[ReadBodies] = deque()
        """To be sent; the caller removes them, and calls `sent`."""
        self.is_blocked = False
        """Some entries could not be asked for: a limit that other copies share was reached."""
        self._limits = limits
        self._ledger_id = ledger_id
        self._plan = plan
        self._up = up
        self._on_progress = on_progress
        self._entry_bytes = entry_bytes or float(_FIRST_ENTRY_BYTES)
        self._largest = int(self._entry_bytes)
        self._asks: dict[_Ask, None] = {}
        self._singles = 0
        self._held = 0
        """Bytes that are being read or wait to be sent."""
        self._sources: dict[str, Source] = {}
        self._turn = ledger_id
        self._is_expiring = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight or ready."""
        return not self._asks and not self.ready

    @property
    def held_bytes(self) -> int:
        """Bytes that are being read, as estimated, or are ready."""
        return self._held

    def sent(self, nbytes: int) -> None:
        """Bytes that were ready are sent, or dropped."""
        self._hold(-nbytes)

    def _hold(self, nbytes: int) -> None:
        self._held += nbytes
        self._limits.held_bytes += nbytes

    def next_s(self, now_s: float) -> float:
        """Returns when `ask_more` or `expire` may have something to do although nothing was
        answered."""
        times = [one.window.paused_until_s for one in self._sources.values()]
        times.append(now_s + self._limits.bucket.wait_s(now_s))
        if self._asks:
            oldest = next(iter(self._asks))
            times.append(oldest.sent_s + self._limits.options.read_timeout_s)
        return min((one for one in times if one > now_s), default=float("inf"))

    def close(self) -> None:
        """Drops all; late answers are ignored."""
        for ask in self._asks:
            self._sources[ask.read.source].window.dropped(ask.nbytes)
        self._asks.clear()
        self.ready.clear()
        self._hold(-self._held)

    # ---- requests

    def ask_more(self, now_s: float, batch_bytes: int) -> Read | None:
        """Asks for as much as the limits allow, in batches of this size. Returns a read for
        `probe`, from a bookie of which it is not known if it has batch reads."""
        limits = self._limits
        singles: dict[str, list[_Ask]] = {}
        probe: Read | None = None
        self.is_blocked = False
        choose = partial(self._choose, now_s)
        while self._may_ask(now_s):
            count = int(max(_BATCH_BYTES_MIN, batch_bytes) / self._entry_bytes)
            read = self._plan.next_read(choose, max(1, count))
            if read is None:
                self.is_blocked = not self._plan.is_done
                break
            if not read.is_single and limits.pool.must_probe(read.source):
                probe = read
                break
            if read.is_single or not limits.pool.knows_batches(read.source):
                end = min(read.last, read.first + SINGLES_MAX - self._singles - 1)
                if end < read.last:
                    self._plan.again(end + 1, read.last)
                read = read._replace(last=end, is_single=True)
                singles.setdefault(read.source, []).append(self._new_ask(read, now_s))
            else:
                ask = self._new_ask(read, now_s)
                on_outcome = partial(self._answered, ask, read.first)
                body = self._batch_request(ask)
                ask.give_up = limits.pool.ask(read.source, body, on_outcome)
        for source, asks in singles.items():
            self._ask_singles(source, asks)
        return probe

    def _may_ask(self, now_s: float) -> bool:
        limits, options = self._limits, self._limits.options
        if self._held and limits.held_bytes >= limits.held_bytes_max:
            self.is_blocked = True
            return False
        return (
            self._held < options.read_ahead_bytes
            and len(self._asks) < ASKS_MAX + self._singles
            and self._singles * self._largest < options.read_ahead_bytes
            and self._singles < SINGLES_MAX
            and limits.bucket.wait_s(now_s) <= 0
        )

    def _choose(self, now_s: float, sources: Sequence[str]) -> str | None:
        """Returns the source with the most free capacity, bookies that are up first."""
        silent = self._limits.silent
        answering = [one for one in sources if not silent.reason(one)]
        if not answering:
            for one in sources:
                self._plan.gone(one, BadCopy(CopyState.UNREACHABLE, silent.reason(one)))
            return None
        best, best_free = None, 0
        self._turn += 1
        preferred = [one for one in answering if one in self._up] or answering
        for i in range(len(preferred)):
            name = preferred[(self._turn + i) % len(preferred)]
            source = self._sources.get(name)
            if source is None:
                source = self._sources[name] = self._limits.source(name)
            free = source.window.nbytes - source.window.in_flight
            if free > best_free and source.window.may_send(now_s):
                best, best_free = name, free
        return best

    def _new_ask(self, read: Read, now_s: float) -> _Ask:
        entries = read.last - read.first + 1
        nbytes = int(entries * self._entry_bytes)
        waiting = set(range(read.first, read.last + 1)) if read.is_single else {read.first}
        ask = _Ask(read, nbytes, now_s, waiting)
        self._asks[ask] = None
        self._singles += entries if read.is_single else 0
        self._hold(nbytes)
        self._sources[read.source].window.sent(nbytes)
        self._limits.bucket.take(nbytes, now_s)
        return ask

    def _batch_request(self, ask: _Ask) -> BatchReadRequest:
        read, count = ask.read, ask.read.last - ask.read.first + 1
        size_max = max(ask.nbytes, _BATCH_BYTES_MIN) + 4 * count + 36
        return BatchReadRequest(
            self._ledger_id, read.first, count, min(size_max, FRAME_BYTES_MAX - 1024)
        )

    def _ask_singles(self, source: str, asks: list[_Ask]) -> None:
        give_up = self._limits.pool.ask_many(
            source,
            [
                (ReadRequest(self._ledger_id, entry_id), partial(self._answered, ask, entry_id))
                for ask in asks
                for entry_id in range(ask.read.first, ask.read.last + 1)
            ],
        )
        for ask in asks:
            ask.give_up = give_up

    async def probe(self, read: Read) -> None:
        """Reads a first batch from a bookie, to see if it has batch reads."""
        limits = self._limits
        ask = self._new_ask(read, trio.current_time())
        outcome: Outcome | None
        try:
            outcome = await limits.pool.read_batch(
                read.source, self._batch_request(ask), timeout_s=limits.options.read_timeout_s
            )
        except LedgerError as error:
            outcome = error
        if outcome is None:
            self._plan.again(read.first, read.last)
            ask.has_failed = True  # nothing is learned of its delay
            self._end(ask)
        else:
            self._answered(ask, read.first, outcome)

    # ---- answers

    def _answered(self, ask: _Ask, entry_id: int, outcome: Outcome) -> None:
        if ask not in self._asks:
            return  # it was given up, or the copy has ended
        ask.waiting.discard(entry_id)
        last = entry_id if ask.read.is_single else ask.read.last
        if isinstance(outcome, LedgerError):
            self._unanswered(ask, entry_id, last, outcome)
        else:
            self._take(ask, entry_id, last, outcome)
        if not ask.waiting:
            self._end(ask)
        self._on_progress()

    def _end(self, ask: _Ask) -> None:
        now_s = trio.current_time()
        del self._asks[ask]
        read = ask.read
        if read.is_single:
            self._singles -= read.last - read.first + 1
        self._hold(-ask.nbytes)
        self._limits.bucket.take(ask.nbytes_read - ask.nbytes, now_s)
        window = self._sources[read.source].window
        if ask.has_failed:
            window.dropped(ask.nbytes)
        else:
            window.answered(ask.nbytes, now_s - ask.sent_s, now_s)
        self._limits.wake_all()

    def _unanswered(self, ask: _Ask, first: int, last: int, error: LedgerError) -> None:
        """Has entries read again. A source fails once for all that was in flight."""
        self._plan.again(first, last)
        ask.has_failed = True
        bookie, now_s = ask.read.source, trio.current_time()
        source = self._sources[bookie]
        if now_s < source.window.paused_until_s:
            return
        source.window.pause(now_s)
        is_timeout = self._is_expiring or isinstance(error, OperationTimeout)
        source.failures += _TRIES_OF_TIMEOUT if is_timeout else 1
        if source.failures >= _TRIES_MAX:
            source.failures = 0
            self._limits.silent.note(bookie, f"{type(error).__name__}: {error}")

    def _take(self, ask: _Ask, first: int, last: int, answer: ResponseBody) -> None:
        read, plan, status = ask.read, self._plan, answer.status
        source = self._sources[read.source]
        if status is Status.TOO_MANY_REQUESTS:
            source.window.refused(trio.current_time())
            ask.has_failed = True
            plan.again(first, last)
            return
        source.failures = 0
        bodies: Sequence[Buffer] = ()
        if isinstance(answer, BatchReadResponse) and not read.is_single:
            bodies = answer.bodies
        elif isinstance(answer, ReadResponse) and read.is_single and answer.body is not None:
            bodies = (answer.body,)
        if status is Status.OK and 0 < len(bodies) <= last - first + 1:
            self._keep(ask, first, bodies)
            if first + len(bodies) <= last:
                plan.again(first + len(bodies), last)
        elif status is Status.OK:
            what = f"{read.source} answered a read of entries {first}..{last} with {len(bodies)}"
            self._unanswered(ask, first, last, RemoteProtocolError(what))
        elif status is Status.NO_SUCH_LEDGER:
            plan.gone(read.source, bad_copy(status, read.source))
            plan.again(first, last)
        elif not read.is_single:
            plan.not_in_batch(read)
        elif status is Status.IO_ERROR and bodies:
            why = f"its stored checksum does not match the {len(bodies[0])} bytes stored"
            plan.bad(read.source, first, BadCopy(CopyState.CORRUPT, why))
        else:
            plan.bad(read.source, first, bad_copy(status, read.source))

    def _keep(self, ask: _Ask, first: int, bodies: Sequence[Buffer]) -> None:
        nbytes = sum(map(len, bodies))
        ask.nbytes_read += nbytes
        self._hold(nbytes)
        self._entry_bytes = (self._entry_bytes + nbytes / len(bodies)) / 2
        self._largest = max(self._largest, nbytes // len(bodies))
        self.ready.append(ReadBodies(ask.read.source, first, bodies))

    def expire(self, now_s: float) -> None:
        """Gives up requests without an answer for the read timeout."""
        for ask in list(self._asks):
            if now_s - ask.sent_s < self._limits.options.read_timeout_s:
                return
            if ask not in self._asks or ask.give_up is None:
                continue
            self._is_expiring = True
            error = ask.give_up()  # may end the connection, and with it these requests
            for entry_id in list(ask.waiting):
                self._answered(ask, entry_id, error)
            self._is_expiring = False
