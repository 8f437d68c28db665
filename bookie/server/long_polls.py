"""Long polls: reads that wait until the LAC passes the LAC that their reader knows.

A parked poll costs no task and no timer of its own. The pure part is `bookie.core.long_polls`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import trio

from bookie.core.ledger_state import LedgerState
from bookie.core.long_polls import LongPoll, ParkedPolls
from bookie.server.deferred_replies import DeferredReplies, ReplyTarget
from bookie.server.error_replies import read_refused, status_of_absent
from bookie.server.read_scheduler import Job
from bookie.storage.bookie_storage import BookieStorage
from ledger.errors import BookieIoError, Status
from ledger.wire.messages import ReadRequest, ReadResponse, ResponseBody

LONG_POLL_S_MAX = 3600.0
ReadAndReply = Callable[[ReadRequest, int, ReplyTarget], Awaitable[None]]
"""Reads one entry, from memory or disk, and replies."""


class LongPolls:
    """The long polls of one bookie. `run` answers those whose timeout has passed."""

    def __init__(
        self,
        storage: BookieStorage,
        deferred: DeferredReplies,
        *,
        polls_max: int,
        read_entry: ReadAndReply,
    ) -> None:
        self._storage = storage
        self._deferred = deferred
        self._read_entry = read_entry
        self._polls = ParkedPolls(polls_max)
        self._changed = trio.Event()

    @property
    def waiting(self) -> int:
        """The number of polls that are parked now. Looks at each of them."""
        return self._polls.waiting

    async def run(self) -> None:
        """Answers polls whose timeout has passed, with one timer for all; runs until cancelled."""
        while True:
            deadline = self._polls.next_deadline()
            with trio.move_on_at(math.inf if deadline is None else deadline):
                await self._changed.wait()
            self._changed = trio.Event()
            self._polls.expire(trio.current_time())

    def poll(
        self, body: ReadRequest, state: LedgerState, known_lac: int, target: ReplyTarget
    ) -> None:
        """Replies now, or parks the poll."""
        if body.is_piggyback and body.entry_id != -1:
            target.reply(ReadResponse(Status.BAD_REQUEST, body.ledger_id, body.entry_id))
            return
        has_advanced = state.lac > known_lac
        if body.timeout_ms is None or has_advanced or body.timeout_ms <= 0 or self._polls.is_full:
            self._answer(body, state, known_lac, None, target)
            return
        update_ms: int | None = None

        def on_change() -> None:
            nonlocal update_ms
            if state.lac > known_lac:
                update_ms = self._storage.now_ms()
            # Or it was fenced or deleted: the LAC has not moved, but the reader should look at the
            # metadata.
            poll.answer()

        def answer() -> None:
            state.unwatch(watch)
            if not target.is_gone():
                self._answer(body, state, known_lac, update_ms, target)

        poll = LongPoll(answer, target.is_gone)
        watch = state.watch(known_lac, on_change)
        timeout_s = min(body.timeout_ms / 1000, LONG_POLL_S_MAX)
        if self._polls.park(poll, trio.current_time() + timeout_s):
            self._changed.set()

    def _answer(
        self,
        body: ReadRequest,
        state: LedgerState,
        known_lac: int,
        update_ms: int | None,
        target: ReplyTarget,
    ) -> None:
        """Replies to a poll that ends. With piggy-back the reply holds the next entry if the LAC
        has passed it. Without, the poll is an ordinary read, whose entry may be beyond the LAC and
        not durable yet.

        `update_ms` is when the LAC advanced, if that ended the poll. The request that advances a
        LAC calls this, so it must not raise.
        """
        state.expect_reader(trio.current_time())
        ledger_id, entry_id, lac = body.ledger_id, body.entry_id, state.lac
        try:
            if body.is_piggyback and lac <= known_lac:
                target.reply(self._unchanged(body, state))
                return
            if body.is_piggyback:
                entry_id = known_lac + 1
            elif entry_id == -1:
                entry_id = self._storage.last_entry_id(ledger_id)
            entry = None
            if target.owner.takes_replies and not self._deferred.is_held:
                entry = self._storage.read_cached(ledger_id, entry_id)
        except BookieIoError as error:
            target.reply(read_refused(error, ledger_id, entry_id, body.entry_id))
            return
        if entry is None:
            read: Job
            if body.is_piggyback:
                read = partial(self._read_piggyback, body, state, entry_id, update_ms, target)
            else:
                read = partial(self._read_entry, body, body.entry_id, target)
            self._deferred.read(body, target, read)
        elif body.is_piggyback:
            target.reply(ReadResponse(Status.OK, ledger_id, entry_id, entry, lac, update_ms))
        else:
            found = ReadResponse(Status.OK, ledger_id, body.entry_id, entry, lac)
            self._deferred.send_after_open_group(body, target, found, is_durable=entry_id <= lac)

    def _unchanged(self, body: ReadRequest, state: LedgerState) -> ReadResponse:
        is_empty = (
            state.lac < 0
            and state.explicit_lac is None
            and self._storage.last_entry_id(body.ledger_id) < 0
        )
        if is_empty:
            return ReadResponse(status_of_absent(state), body.ledger_id, body.entry_id)
        return ReadResponse(Status.OK, body.ledger_id, body.entry_id, max_lac=state.lac)

    async def _read_piggyback(
        self,
        body: ReadRequest,
        state: LedgerState,
        entry_id: int,
        update_ms: int | None,
        target: ReplyTarget,
    ) -> None:
        def reply_with_lac(found: ResponseBody) -> None:
            assert isinstance(found, ReadResponse)
            lac = state.lac
            if found.status is Status.OK:
                found = replace(found, entry_id=entry_id, max_lac=lac, lac_update_ms=update_ms)
            elif found.status is Status.NO_SUCH_ENTRY:  # another bookie of the ensemble has it
                found = replace(found, status=Status.OK, max_lac=lac, lac_update_ms=update_ms)
            target.reply(found)

        await self._read_entry(body, entry_id, target._replace(reply=reply_with_lac))
