"""What reading means to a bookie: one entry, fencing, batches, long polls, the LAC.

Stricter than Apache BookKeeper (facts 2.4, 4): a fencing read is answered only once the fence
is durable, also when there is nothing to read; an entry that is not known to be confirmed is
served only once it is durable here; and doubt is an I/O error or "unknown", never "no such
entry".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import trio

from bookie.core.ledger_state import LedgerState
from bookie.core.long_polls import LongPoll, LongPolls
from bookie.storage.ledger_storage import LedgerStorage
from ledger.errors import (
    BookieIoError,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    Status,
    UnknownLedgerState,
)
from ledger.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    Buffer,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    ResponseBody,
)

_log = logging.getLogger(__name__)

Reply = Callable[[ResponseBody], None]
IsGone = Callable[[], bool]
"""Whether the peer that asked has left."""

MASTER_KEY_BYTES = 20
BATCH_READ_BYTES_MAX = 5 * 1024 * 1024 - 64
LONG_POLL_S_MAX = 3600.0
_STATUS_OF_ERROR: dict[type[LedgerError], Status] = {
    NoSuchEntry: Status.NO_SUCH_ENTRY,
    NoSuchLedger: Status.NO_SUCH_LEDGER,
    UnknownLedgerState: Status.UNKNOWN_LEDGER_STATE,
    BookieIoError: Status.IO_ERROR,
}


class Reads:
    """The reading half of `bookie.requests`. `run` answers long polls whose time is up."""

    def __init__(self, storage: LedgerStorage, *, long_polls_max: int) -> None:
        self._storage = storage
        self._journal = storage.journal
        self._polls = LongPolls(long_polls_max)
        self._polls_changed = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """The one timer of all long polls, and answers that outlive a chunk."""
        try:
            async with trio.open_nursery() as self._nursery:
                while True:
                    deadline = self._polls.next_deadline()
                    with trio.move_on_at(math.inf if deadline is None else deadline):
                        await self._polls_changed.wait()
                    self._polls_changed = trio.Event()
                    self._polls.expire(trio.current_time())
        finally:
            self._nursery = None  # the bookie is ending: late answers have nobody to make them

    def read(self, body: ReadRequest, reply: Reply, is_gone: IsGone) -> bool:
        """Answers, or arranges that `reply` is called later; False if a disk must be asked."""
        state = self._storage.state(body.ledger_id) if body.ledger_id >= 0 else None
        if body.is_fencing:
            return self._read_fencing(body, state, reply)
        if state is None or state.is_deleted:
            reply(ReadResponse(Status.NO_SUCH_LEDGER, body.ledger_id, body.entry_id))
            return True
        if body.previous_lac is not None:
            return self._long_poll(body, state, body.previous_lac, reply, is_gone)
        if body.entry_id > state.lac and not self._journal.is_idle:
            # Perhaps it is only in memory yet, and could be forgotten by a crash. What is
            # answered is what is there now: a later entry would not be durable with it.
            found: list[ResponseBody] = []
            if not self._answer_from_memory(body, state, body.entry_id, found.append):
                return False
            self._journal.when_durable(lambda: reply(found[0]))
            return True
        return self._answer_from_memory(body, state, body.entry_id, reply)

    def _answer_from_memory(
        self, body: ReadRequest, state: LedgerState, entry_id: int, reply: Reply
    ) -> bool:
        if entry_id < 0:
            entry_id = self._storage.last_entry_id(state.ledger_id)
        entry = self._storage.read_cached(state.ledger_id, entry_id)
        if entry is None:
            return False
        reply(ReadResponse(Status.OK, body.ledger_id, body.entry_id, entry, max_lac=state.lac))
        return True

    def _answer_in_memory_or_later(self, body: ReadRequest, reply: Reply) -> None:
        """Called by the journal: must not raise."""
        try:
            state = self._storage.state(body.ledger_id)
            if state is not None and self._answer_from_memory(body, state, body.entry_id, reply):
                return
        except BookieIoError as error:
            status = status_of(error, body.ledger_id, body.entry_id)
            reply(ReadResponse(status, body.ledger_id, body.entry_id))
            return
        self._later(self.read_entry, body, reply)

    def _read_fencing(self, body: ReadRequest, state: LedgerState | None, reply: Reply) -> bool:
        key = body.master_key
        if key is None or len(key) != MASTER_KEY_BYTES or body.ledger_id < 0:
            reply(ReadResponse(Status.UNAUTHORIZED, body.ledger_id, body.entry_id))
            return True
        if state is None:
            state = self._storage.create(body.ledger_id, key)
        status = state.check_fence(key)
        if status is not Status.OK:
            reply(ReadResponse(status, body.ledger_id, body.entry_id))
            return True
        self._storage.fence(state, lambda: self._answer_in_memory_or_later(body, reply))
        return True

    async def read_entry(self, body: ReadRequest, entry_id: int) -> ResponseBody:
        """Reads one entry wherever it is; entry id -1 is the last one."""
        storage, ledger_id = self._storage, body.ledger_id
        state: LedgerState | None = None
        try:
            state = storage.state(ledger_id)
            if state is None or state.is_deleted:
                return ReadResponse(Status.NO_SUCH_LEDGER, ledger_id, body.entry_id)
            if entry_id < 0:
                entry_id = storage.last_entry_id(ledger_id)
                if entry_id < 0:
                    raise _nothing_held(state)
            entry = await storage.read(ledger_id, entry_id)
        except LedgerError as error:
            return ReadResponse(
                status_of(error, ledger_id, entry_id),
                ledger_id,
                body.entry_id,
                max_lac=None if state is None else state.lac,
            )
        if entry_id > state.lac:
            await self.wait_durable()  # it may have come while this waited for a disk
        return ReadResponse(Status.OK, ledger_id, body.entry_id, entry, max_lac=state.lac)

    async def read_batch(self, body: BatchReadRequest) -> ResponseBody:
        """Entries in a row, up to the first that is not here or does not fit."""
        storage, ledger_id, first = self._storage, body.ledger_id, body.entry_id
        state = storage.state(ledger_id) if ledger_id >= 0 else None
        if state is None or state.is_deleted:
            return BatchReadResponse(Status.NO_SUCH_LEDGER, ledger_id, first)
        count_max = body.count_max if body.count_max > 0 else 1 << 31
        if body.is_fencing or first < 0:
            return BatchReadResponse(Status.BAD_REQUEST, ledger_id, first)
        if not self._journal.is_idle:
            if first > state.lac:
                await self.wait_durable()
            else:
                count_max = min(count_max, state.lac - first + 1)
        try:
            entries = await storage.read_batch(
                ledger_id, first, count_max, min(body.size_max, BATCH_READ_BYTES_MAX)
            )
        except LedgerError as error:
            return BatchReadResponse(status_of(error, ledger_id, first), ledger_id, first)
        if first + len(entries) - 1 > state.lac:
            await self.wait_durable()  # some may have come while we waited or read
        return BatchReadResponse(Status.OK, ledger_id, first, tuple(entries))

    async def read_lac(self, ledger_id: int) -> ResponseBody:
        """The explicit LAC and the last entry: whoever asks takes the greater of both."""
        state = self._storage.state(ledger_id) if ledger_id >= 0 else None
        if state is None or state.is_deleted:
            return ReadLacResponse(Status.NO_SUCH_LEDGER, ledger_id)
        last: Buffer | None = None
        last_id = self._storage.last_entry_id(ledger_id)
        if last_id >= 0:
            try:
                last = await self._storage.read(ledger_id, last_id)
            except LedgerError as error:
                return ReadLacResponse(status_of(error, ledger_id, last_id), ledger_id)
        if last is None and state.explicit_lac is None:
            return ReadLacResponse(status_of(_nothing_held(state), ledger_id, -1), ledger_id)
        return ReadLacResponse(Status.OK, ledger_id, state.explicit_lac, last)

    async def wait_durable(self) -> None:
        """Returns when all that is queued for the journal now is durable."""
        done = trio.Event()
        self._journal.when_durable(done.set)
        await done.wait()

    # ---- long poll

    def _long_poll(
        self,
        body: ReadRequest,
        state: LedgerState,
        known_lac: int,
        reply: Reply,
        is_gone: IsGone,
    ) -> bool:
        if body.is_piggyback and body.entry_id != -1:
            reply(ReadResponse(Status.BAD_REQUEST, body.ledger_id, body.entry_id))
            return True
        is_news = state.lac > known_lac or state.is_fenced
        if body.timeout_ms is None or is_news or body.timeout_ms <= 0 or self._polls.is_full:
            self._answer_poll(body, state, known_lac, reply)
            return True

        def on_change() -> None:
            if state.lac > known_lac or state.is_fenced:
                poll.answer()
            else:
                state.watchers.append(on_change)

        def answer() -> None:
            state.unwatch(on_change)
            self._answer_poll(body, state, known_lac, reply)

        poll = LongPoll(answer, is_gone)
        state.watchers.append(on_change)
        timeout_s = min(body.timeout_ms / 1000, LONG_POLL_S_MAX)
        if self._polls.park(poll, trio.current_time() + timeout_s):
            self._polls_changed.set()
        return True

    def _answer_poll(
        self, body: ReadRequest, state: LedgerState, known_lac: int, reply: Reply
    ) -> None:
        """Facts 4.5: with piggy-back the next entry comes along if the LAC has passed it.

        Called by whoever moves the LAC: must not raise.
        """
        try:
            self._answer_poll_now(body, state, known_lac, reply)
        except BookieIoError as error:
            status = status_of(error, body.ledger_id, known_lac + 1)
            reply(ReadResponse(status, body.ledger_id, body.entry_id))

    def _answer_poll_now(
        self, body: ReadRequest, state: LedgerState, known_lac: int, reply: Reply
    ) -> None:
        if not body.is_piggyback:
            if not self._answer_from_memory(body, state, body.entry_id, reply):
                self._later(self.read_entry, body, reply)
            return
        if state.lac <= known_lac:
            reply(ReadResponse(Status.OK, body.ledger_id, -1, max_lac=state.lac))
            return
        entry = self._storage.read_cached(body.ledger_id, known_lac + 1)
        if entry is not None:
            reply(ReadResponse(Status.OK, body.ledger_id, known_lac + 1, entry, max_lac=state.lac))
            return
        self._later(self._read_piggyback, body, reply)

    async def _read_piggyback(self, body: ReadRequest, _entry_id: int) -> ResponseBody:
        assert body.previous_lac is not None
        entry_id = body.previous_lac + 1
        found = await self.read_entry(body, entry_id)
        assert isinstance(found, ReadResponse)
        state = self._storage.state(body.ledger_id)
        lac = state.lac if state is not None else None
        if found.status is Status.OK:
            return ReadResponse(Status.OK, body.ledger_id, entry_id, found.body, max_lac=lac)
        if found.status is Status.NO_SUCH_ENTRY:  # another bookie of the ensemble has it
            return ReadResponse(Status.OK, body.ledger_id, -1, max_lac=lac)
        return found

    # ---- in the background

    def _later(
        self,
        read: Callable[[ReadRequest, int], Awaitable[ResponseBody]],
        body: ReadRequest,
        reply: Reply,
    ) -> None:
        """Answers by a task of its own: the receive loop that asked has moved on."""
        if self._nursery is not None:
            self._nursery.start_soon(self._answer_later, read, body, reply)

    async def _answer_later(
        self,
        read: Callable[[ReadRequest, int], Awaitable[ResponseBody]],
        body: ReadRequest,
        reply: Reply,
    ) -> None:
        reply(await read(body, body.entry_id))


def _nothing_held(state: LedgerState) -> LedgerError:
    if state.is_limbo:
        return UnknownLedgerState(f"ledger {state.ledger_id} may have lost entries here")
    return NoSuchEntry(f"ledger {state.ledger_id} has no entry here")


def status_of(error: LedgerError, ledger_id: int, entry_id: int) -> Status:
    status = _STATUS_OF_ERROR.get(type(error), Status.IO_ERROR)
    if status is Status.IO_ERROR:
        _log.error("read failed ledger=%d entry=%d cause=%s", ledger_id, entry_id, error)
    return status
