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
from dataclasses import replace
from functools import partial

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
    ListEntriesResponse,
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
LAST_ENTRY = -1
"""As the id in a read: the last entry the bookie holds."""
BATCH_READ_BYTES_MAX = 5 * 1024 * 1024 - 64
LONG_POLL_S_MAX = 3600.0
_LISTS_MAX = 2
"""Lists of entries made at once: each may hold the ids of a whole write cache."""
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
        self._lists = trio.Semaphore(_LISTS_MAX)
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
        if body.entry_id < LAST_ENTRY:
            reply(ReadResponse(_status_of_absent(state), body.ledger_id, body.entry_id))
            return True
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
        if entry_id == LAST_ENTRY:
            entry_id = self._storage.last_entry_id(state.ledger_id)
        entry = self._storage.read_cached(state.ledger_id, entry_id)
        if entry is None:
            return False
        reply(_found(body, state, entry))
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
        self._later(partial(self.read_entry, body, body.entry_id), reply)

    def _read_fencing(self, body: ReadRequest, state: LedgerState | None, reply: Reply) -> bool:
        fenced = self._fenceable(body, state)
        if isinstance(fenced, Status):
            reply(ReadResponse(fenced, body.ledger_id, body.entry_id))
        else:
            self._storage.fence(fenced, lambda: self._answer_in_memory_or_later(body, reply))
        return True

    def _fenceable(
        self, body: ReadRequest | BatchReadRequest, state: LedgerState | None
    ) -> LedgerState | Status:
        """The ledger that may be fenced now, made known if it is new; or why it may not."""
        key = body.master_key
        if body.ledger_id < 0:
            return Status.BAD_REQUEST
        if key is None or (state is None and len(key) != MASTER_KEY_BYTES):
            return Status.UNAUTHORIZED
        if state is None:
            state = self._storage.create(body.ledger_id, key)
        status = state.check_fence(key)
        return state if status is Status.OK else status

    async def read_entry(self, body: ReadRequest, entry_id: int) -> ResponseBody:
        """Reads one entry wherever it is; entry id -1 is the last one."""
        storage, ledger_id = self._storage, body.ledger_id
        try:
            state = storage.state(ledger_id)
            if state is None or state.is_deleted:
                return ReadResponse(Status.NO_SUCH_LEDGER, ledger_id, body.entry_id)
            if entry_id == LAST_ENTRY:
                entry_id = storage.last_entry_id(ledger_id)
            if entry_id < 0:
                return ReadResponse(_status_of_absent(state), ledger_id, body.entry_id)
            entry = await storage.read(ledger_id, entry_id)
        except LedgerError as error:
            status = status_of(error, ledger_id, entry_id)
            return ReadResponse(status, ledger_id, body.entry_id)
        if entry_id > state.lac:
            await self.wait_durable()  # it may have come while this waited for a disk
        return _found(body, state, entry)

    async def read_batch(self, body: BatchReadRequest) -> ResponseBody:
        """Entries in a row, up to the first that is not here or does not fit."""
        storage, ledger_id, first = self._storage, body.ledger_id, body.entry_id
        state = storage.state(ledger_id) if ledger_id >= 0 else None
        if body.is_fencing:
            fenced = self._fenceable(body, state)
            if isinstance(fenced, Status):
                return BatchReadResponse(fenced, ledger_id, first)
            state = fenced
            durable = trio.Event()
            storage.fence(state, durable.set)
            await durable.wait()
        if state is None or state.is_deleted:
            return BatchReadResponse(Status.NO_SUCH_LEDGER, ledger_id, first)
        count_max = body.count_max if body.count_max > 0 else 1 << 31
        if first < 0:
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
        """The explicit LAC and the last entry: whoever asks takes the greater of both. An
        unknown ledger has neither: Apache tells the two cases apart no more than that."""
        state = self._storage.state(ledger_id) if ledger_id >= 0 else None
        if state is None or state.is_deleted:
            return ReadLacResponse(Status.NO_SUCH_ENTRY, ledger_id)
        last: Buffer | None = None
        last_id = self._storage.last_entry_id(ledger_id)
        if last_id >= 0:
            try:
                last = await self._storage.read(ledger_id, last_id)
            except LedgerError as error:
                return ReadLacResponse(status_of(error, ledger_id, last_id), ledger_id)
        if last is None and state.explicit_lac is None:
            return ReadLacResponse(_status_of_absent(state), ledger_id)
        return ReadLacResponse(Status.OK, ledger_id, state.explicit_lac, last)

    async def list_entries(self, ledger_id: int) -> ResponseBody:
        """Which entries of the ledger are here, all of them durable; asked by auditors."""
        state = self._storage.state(ledger_id) if ledger_id >= 0 else None
        if state is None or state.is_deleted:
            return ListEntriesResponse(Status.NO_SUCH_LEDGER, ledger_id)
        try:
            async with self._lists:
                held = await self._storage.entries_held(ledger_id)
        except LedgerError as error:
            return ListEntriesResponse(status_of(error, ledger_id, LAST_ENTRY), ledger_id)
        if state.is_limbo:  # what is not in the list would be said to be absent
            return ListEntriesResponse(Status.UNKNOWN_LEDGER_STATE, ledger_id)
        if not self._journal.is_idle:
            await self.wait_durable()
        return ListEntriesResponse(Status.OK, ledger_id, held.encode())

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
        is_news = state.lac > known_lac
        if body.timeout_ms is None or is_news or body.timeout_ms <= 0 or self._polls.is_full:
            self._answer_poll(body, state, known_lac, None, reply)
            return True
        was_fenced = state.is_fenced
        update_ms: int | None = None

        def on_change() -> None:
            nonlocal update_ms
            if state.lac > known_lac:
                update_ms = self._storage.now_ms()
                poll.answer()
            elif state.is_deleted or (state.is_fenced and not was_fenced):
                poll.answer()  # no news, but the reader has something to look up
            else:
                state.watchers.append(on_change)

        def answer() -> None:
            state.unwatch(on_change)
            self._answer_poll(body, state, known_lac, update_ms, reply)

        poll = LongPoll(answer, is_gone)
        state.watchers.append(on_change)
        timeout_s = min(body.timeout_ms / 1000, LONG_POLL_S_MAX)
        if self._polls.park(poll, trio.current_time() + timeout_s):
            self._polls_changed.set()
        return True

    def _answer_poll(
        self,
        body: ReadRequest,
        state: LedgerState,
        known_lac: int,
        update_ms: int | None,
        reply: Reply,
    ) -> None:
        """Facts 4.5: with piggy-back the next entry comes along if the LAC has passed it.

        `update_ms` is when it did, if that woke the poll. Called by whoever moves the LAC:
        must not raise.
        """
        try:
            if body.is_piggyback:
                self._answer_piggyback(body, state, known_lac, update_ms, reply)
            elif not self._answer_from_memory(body, state, body.entry_id, reply):
                self._later(partial(self.read_entry, body, body.entry_id), reply)
        except BookieIoError as error:
            status = status_of(error, body.ledger_id, known_lac + 1)
            reply(ReadResponse(status, body.ledger_id, body.entry_id))

    def _answer_piggyback(
        self,
        body: ReadRequest,
        state: LedgerState,
        known_lac: int,
        update_ms: int | None,
        reply: Reply,
    ) -> None:
        ledger_id, lac = body.ledger_id, state.lac
        if lac <= known_lac:
            if lac < 0 and state.explicit_lac is None and self._holds_nothing(ledger_id):
                reply(ReadResponse(_status_of_absent(state), ledger_id, body.entry_id))
            else:
                reply(ReadResponse(Status.OK, ledger_id, body.entry_id, max_lac=lac))
            return
        entry = self._storage.read_cached(ledger_id, known_lac + 1)
        if entry is None:
            self._later(partial(self._read_piggyback, body, known_lac + 1, update_ms), reply)
            return
        reply(ReadResponse(Status.OK, ledger_id, known_lac + 1, entry, lac, update_ms))

    def _holds_nothing(self, ledger_id: int) -> bool:
        return self._storage.last_entry_id(ledger_id) < 0

    async def _read_piggyback(
        self, body: ReadRequest, entry_id: int, update_ms: int | None
    ) -> ResponseBody:
        found = await self.read_entry(body, entry_id)
        assert isinstance(found, ReadResponse)
        state = self._storage.state(body.ledger_id)
        lac = state.lac if state is not None else None
        if found.status is Status.OK:
            return replace(found, entry_id=entry_id, max_lac=lac, lac_update_ms=update_ms)
        if found.status is Status.NO_SUCH_ENTRY:  # another bookie of the ensemble has it
            return replace(found, status=Status.OK, max_lac=lac, lac_update_ms=update_ms)
        return found

    # ---- in the background

    def _later(self, answer: Callable[[], Awaitable[ResponseBody]], reply: Reply) -> None:
        """Answers by a task of its own: the receive loop that asked has moved on."""
        if self._nursery is not None:
            self._nursery.start_soon(self._answer_later, answer, reply)

    async def _answer_later(
        self, answer: Callable[[], Awaitable[ResponseBody]], reply: Reply
    ) -> None:
        reply(await answer())


def _found(body: ReadRequest, state: LedgerState, entry: Buffer) -> ReadResponse:
    """The LAC comes with every entry that is found, but not with a fence, as from Apache."""
    lac = None if body.is_fencing else state.lac
    return ReadResponse(Status.OK, body.ledger_id, body.entry_id, entry, lac)


def _status_of_absent(state: LedgerState) -> Status:
    """Of an entry that is surely not here."""
    return Status.UNKNOWN_LEDGER_STATE if state.is_limbo else Status.NO_SUCH_ENTRY


def status_of(error: LedgerError, ledger_id: int, entry_id: int) -> Status:
    status = _STATUS_OF_ERROR.get(type(error), Status.IO_ERROR)
    if status is Status.IO_ERROR:
        _log.error("read failed ledger=%d entry=%d cause=%s", ledger_id, entry_id, error)
    return status
