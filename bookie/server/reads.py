"""What reading means to a bookie: one entry, fencing, batches, the LAC, lists of entries.

Stricter than Apache BookKeeper (facts 2.4, 4): a fencing read is answered only once the fence
is durable, also when there is nothing to read; an entry that is not known to be confirmed is
served only once it is durable here; and doubt is an I/O error or "unknown", never "no such
entry".
"""

from __future__ import annotations

from functools import partial

import trio

from bookie.core.ledger_state import LedgerState
from bookie.server.deferred_replies import DeferredReplies, ReplyTarget
from bookie.server.error_replies import status_of_absent, status_of_error
from bookie.server.long_polls import LongPolls
from bookie.server.read_scheduler import ReadLimits, ReadScheduler
from bookie.storage.bookie_storage import BookieStorage
from ledger.errors import BookieIoError, LedgerError, Status
from ledger.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    Buffer,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    ResponseBody,
)

MASTER_KEY_BYTES = 20
LAST_ENTRY = -1
"""As the id in a read: the last entry the bookie holds."""
BATCH_READ_BYTES_MAX = 5 * 1024 * 1024 - 64
BATCH_READ_ENTRIES_MAX = 10_000
"""More are not looked for at once: that would take the loop's time from everybody else."""
_LISTS_MAX = 2
"""Lists of entries made at once: each may hold the ids of a whole write cache."""


class Reads:
    """The reading half of `bookie.server.requests`. `run` answers long polls whose time is up.

    `sure_to`, wherever it stands: entries up to this one are durable, as are those up to the LAC.
    """

    def __init__(
        self, storage: BookieStorage, *, long_polls_max: int, limits: ReadLimits | None = None
    ) -> None:
        """`limits`: of requests that wait for disks."""
        self._storage = storage
        self.read_scheduler = ReadScheduler(len(storage.directories), limits or ReadLimits())
        self._deferred = DeferredReplies(storage, self.read_scheduler)
        self._polls = LongPolls(
            storage, self._deferred, polls_max=long_polls_max, read_entry=self.read_entry
        )
        self._lists = trio.Semaphore(_LISTS_MAX)

    @property
    def long_polls(self) -> int:
        """How many wait. Costs a look at all."""
        return self._polls.waiting

    async def run(self) -> None:
        """Long polls, and what waits for disks; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read_scheduler.run)
            nursery.start_soon(self._polls.run)

    def read(self, body: ReadRequest, target: ReplyTarget) -> bool:
        """Answers, or arranges that it is answered later; False if a disk must be asked."""
        state = self._storage.state(body.ledger_id) if body.ledger_id >= 0 else None
        if body.is_fencing:
            return self._read_fencing(body, state, target)
        if state is None or state.is_deleted:
            target.reply(ReadResponse(Status.NO_SUCH_LEDGER, body.ledger_id, body.entry_id))
            return True
        if body.previous_lac is not None:
            self._polls.poll(body, state, body.previous_lac, target)
            return True
        if body.entry_id < LAST_ENTRY:
            target.reply(ReadResponse(status_of_absent(state), body.ledger_id, body.entry_id))
            return True
        return self._answer_from_memory(body, state, target, LAST_ENTRY)

    def _answer_from_memory(
        self, body: ReadRequest, state: LedgerState, target: ReplyTarget, sure_to: int
    ) -> bool:
        """Perhaps it is only in memory yet, and could be forgotten by a crash. What is answered
        is what is there now: a later entry would not be durable with it."""
        entry_id = body.entry_id
        if entry_id == LAST_ENTRY:
            entry_id = self._storage.last_entry_id(state.ledger_id)
        entry = self._storage.read_cached(state.ledger_id, entry_id)
        if entry is None:
            return False
        found = _found(body, state, entry)
        if entry_id <= state.lac or entry_id <= sure_to:
            target.reply(found)
        else:
            self._deferred.give_durable(body, target, found, is_sure=False)
        return True

    # ---- fencing

    def _read_fencing(
        self, body: ReadRequest, state: LedgerState | None, target: ReplyTarget
    ) -> bool:
        fenced = self._fenceable(body, state)
        if isinstance(fenced, Status):
            target.reply(ReadResponse(fenced, body.ledger_id, body.entry_id))
        else:
            sure_to = self._durable_with_fence(fenced)
            self._storage.fence(fenced, partial(self._after_fence, body, target, sure_to))
        return True

    def _durable_with_fence(self, state: LedgerState) -> int:
        """The last entry that is durable when the fence is: what came later need not be."""
        if state.is_fence_durable:
            return LAST_ENTRY
        return self._storage.last_entry_id(state.ledger_id)

    def _after_fence(self, body: ReadRequest, target: ReplyTarget, sure_to: int) -> None:
        """Called by the journal: must not raise."""
        if target.is_gone():
            return
        try:
            if target.owner.takes_replies:
                state = self._storage.state(body.ledger_id)
                if state is not None and self._answer_from_memory(body, state, target, sure_to):
                    return
        except BookieIoError as error:
            status = status_of_error(error, body.ledger_id, body.entry_id)
            target.reply(ReadResponse(status, body.ledger_id, body.entry_id))
            return
        read = partial(self.read_entry, body, body.entry_id, target, sure_to)
        self._deferred.read(body, target, read)

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

    # ---- what may need a disk

    async def read_entry(
        self, body: ReadRequest, entry_id: int, target: ReplyTarget, sure_to: int = LAST_ENTRY
    ) -> None:
        """Reads one entry wherever it is, entry id -1 is the last one, and replies: at once, or
        when the entry is durable."""
        storage, ledger_id = self._storage, body.ledger_id
        try:
            state = storage.state(ledger_id)
            if state is None or state.is_deleted:
                target.reply(ReadResponse(Status.NO_SUCH_LEDGER, ledger_id, body.entry_id))
                return
            if entry_id == LAST_ENTRY:
                entry_id = storage.last_entry_id(ledger_id)
            if entry_id < 0:
                target.reply(ReadResponse(status_of_absent(state), ledger_id, body.entry_id))
                return
            entry = await storage.read(ledger_id, entry_id)
        except LedgerError as error:
            status = status_of_error(error, ledger_id, entry_id)
            target.reply(ReadResponse(status, ledger_id, body.entry_id))
            return
        # It may have come while this waited for a disk.
        is_sure = entry_id <= state.lac or entry_id <= sure_to
        self._deferred.give_durable(body, target, _found(body, state, entry), is_sure=is_sure)

    def begin_batch(self, body: BatchReadRequest, target: ReplyTarget) -> bool:
        """Refuses, or arranges that entries are read when the journal has got so far; False if
        they can be read now."""
        storage, ledger_id, first = self._storage, body.ledger_id, body.entry_id
        state = storage.state(ledger_id) if ledger_id >= 0 else None
        if body.is_fencing:
            fenced = self._fenceable(body, state)
            if isinstance(fenced, Status):
                target.reply(BatchReadResponse(fenced, ledger_id, first))
            else:
                sure_to = self._durable_with_fence(fenced)
                storage.fence(fenced, partial(self._read_batch_later, body, target, sure_to))
            return True
        if state is None or state.is_deleted:
            target.reply(BatchReadResponse(Status.NO_SUCH_LEDGER, ledger_id, first))
            return True
        journal = storage.journal_of(ledger_id)
        if first > state.lac and not journal.is_idle:
            sure_to = storage.last_entry_id(ledger_id)
            journal.when_durable(partial(self._read_batch_later, body, target, sure_to))
            return True
        return False

    def _read_batch_later(self, body: BatchReadRequest, target: ReplyTarget, sure_to: int) -> None:
        self._deferred.read(body, target, partial(self.read_batch, body, target, sure_to))

    async def read_batch(
        self, body: BatchReadRequest, target: ReplyTarget, sure_to: int = LAST_ENTRY
    ) -> None:
        """Entries in a row, up to the first that is not here, does not fit or is not durable;
        then replies. A long answer never waits for a journal: many would fill the memory."""
        storage, ledger_id, first = self._storage, body.ledger_id, body.entry_id
        if first < 0:
            target.reply(BatchReadResponse(Status.BAD_REQUEST, ledger_id, first))
            return
        count_max = min(body.count_max, BATCH_READ_ENTRIES_MAX)
        if count_max <= 0:
            count_max = BATCH_READ_ENTRIES_MAX
        try:
            state = storage.state(ledger_id)
            if state is None or state.is_deleted:
                target.reply(BatchReadResponse(Status.NO_SUCH_LEDGER, ledger_id, first))
                return
            sure_to = max(sure_to, state.lac)
            if first + count_max - 1 > sure_to:
                if storage.journal_of(ledger_id).is_idle:
                    sure_to = max(sure_to, storage.last_entry_id(ledger_id))
                count_max = min(count_max, max(1, sure_to - first + 1))
            entries = await storage.read_batch(
                ledger_id, first, count_max, min(body.size_max, BATCH_READ_BYTES_MAX)
            )
        except LedgerError as error:
            status = status_of_error(error, ledger_id, first)
            target.reply(BatchReadResponse(status, ledger_id, first))
            return
        answer = BatchReadResponse(Status.OK, ledger_id, first, tuple(entries))
        self._deferred.give_durable(body, target, answer, is_sure=first <= sure_to)

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
                return ReadLacResponse(status_of_error(error, ledger_id, last_id), ledger_id)
        if last is None and state.explicit_lac is None:
            return ReadLacResponse(status_of_absent(state), ledger_id)
        return ReadLacResponse(Status.OK, ledger_id, state.explicit_lac, last)

    async def list_entries(self, body: ListEntriesRequest, target: ReplyTarget) -> None:
        """Which entries of the ledger are here, all of them durable; asked by auditors."""
        ledger_id = body.ledger_id
        state = self._storage.state(ledger_id) if ledger_id >= 0 else None
        if state is None or state.is_deleted:
            target.reply(ListEntriesResponse(Status.NO_SUCH_LEDGER, ledger_id))
            return
        async with self._lists:
            try:
                held = await self._storage.entries_held(ledger_id)
            except LedgerError as error:
                status = status_of_error(error, ledger_id, LAST_ENTRY)
                target.reply(ListEntriesResponse(status, ledger_id))
                return
            if state.is_limbo:  # what is not in the list would be said to be absent
                target.reply(ListEntriesResponse(Status.UNKNOWN_LEDGER_STATE, ledger_id))
                return
            answer = ListEntriesResponse(Status.OK, ledger_id, held.encode())
            # Among the few that are made: else a journal that hangs would fill the memory.
            durable = trio.Event()
            self._storage.journal_of(ledger_id).when_durable(durable.set)
            await durable.wait()
        self._deferred.give(body, target, answer)


def _found(body: ReadRequest, state: LedgerState, entry: Buffer) -> ReadResponse:
    """The LAC comes with every entry that is found, but not with a fence, as from Apache."""
    lac = None if body.is_fencing else state.lac
    return ReadResponse(Status.OK, body.ledger_id, body.entry_id, entry, lac)
