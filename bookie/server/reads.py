"""The read requests of a bookie: one entry, fencing, batches, the LAC, lists of entries.

Stricter than Apache BookKeeper: a fencing read is answered only once the fence is durable, even if
there is nothing to read; an entry that is not known to be confirmed is served only once it is
durable here; and an entry whose absence is not certain is an I/O error or "unknown", never "no
such entry".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from bookie.core.ledger_state import LedgerState
from bookie.server.deferred_replies import DeferredReplies, ReplyTarget
from bookie.server.error_replies import read_refused, status_of_absent, status_of_error
from bookie.server.long_polls import LongPolls
from bookie.server.read_scheduler import BATCH_READ_BYTES_MAX, ReadLimits, ReadScheduler
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
"""The entry id in a read that means the last entry that the bookie stores."""
BATCH_READ_ENTRIES_MAX = 10_000
"""The largest batch: a longer one would block the event loop for all other connections."""
_LISTS_MAX = 2
"""Lists of entries that are made at the same time: each may hold the ids of a whole write cache."""
_SHORT_LIST_BYTES_MAX = 256
"""A list up to this size, which is that of a few gaps, waits for a journal as any reply does."""


class Reads:
    """The reading half of `bookie.server.requests`. `run` answers long polls whose timeout has
    passed.

    The parameter `durable_to` of its methods says that entries up to this id are durable, as are
    those up to the LAC.
    """

    def __init__(
        self,
        storage: BookieStorage,
        *,
        long_polls_max: int,
        limits: ReadLimits | None = None,
        may_begin: Callable[[int, bytes], Status] = lambda _ledger_id, _key: Status.OK,
    ) -> None:
        """`limits` holds for requests that wait for disks. `may_begin`: `KeyCheck.may_begin`."""
        self._storage = storage
        self._may_begin = may_begin
        self.read_scheduler = ReadScheduler(len(storage.directories), limits or ReadLimits())
        self._deferred = DeferredReplies(storage, self.read_scheduler)
        self._polls = LongPolls(
            storage, self._deferred, polls_max=long_polls_max, read_entry=self.read_entry
        )
        self._lists = trio.Semaphore(_LISTS_MAX)

    @property
    def long_polls(self) -> int:
        """The number of long polls that wait. Looks at each of them."""
        return self._polls.waiting

    async def run(self) -> None:
        """Serves long polls and requests that wait for disks; runs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read_scheduler.run)
            nursery.start_soon(self._polls.run)

    def read(self, body: ReadRequest, target: ReplyTarget) -> bool:
        """Replies now or arranges a later reply; returns False if a disk must be read."""
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
        if body.entry_id == LAST_ENTRY:  # how clients of Apache ask for the LAC
            state.expect_reader(trio.current_time())
        return self._answer_from_memory(body, state, target, LAST_ENTRY)

    def _answer_from_memory(
        self, body: ReadRequest, state: LedgerState, target: ReplyTarget, durable_to: int
    ) -> bool:
        """Replies with an entry that is in memory; returns False if it is not. It may be in memory
        only, so that a crash would lose it: then the reply waits until it is durable. The entry is
        taken now, because a later one would not be durable together with it."""
        entry_id = body.entry_id
        if entry_id == LAST_ENTRY:
            entry_id = self._storage.last_entry_id(state.ledger_id)
        if not body.is_fencing and self.read_scheduler.is_held():
            return False
        entry = self._storage.read_cached(state.ledger_id, entry_id)
        if entry is None:
            return False
        found = _found(body, state, entry)
        if entry_id <= state.lac or entry_id <= durable_to:
            target.reply(found)
        else:
            self._deferred.send_when_durable(body, target, found, is_durable=False)
        return True

    # ---- fencing

    def _read_fencing(
        self, body: ReadRequest, state: LedgerState | None, target: ReplyTarget
    ) -> bool:
        fenced = self._fenceable(body, state)
        if isinstance(fenced, Status):
            target.reply(ReadResponse(fenced, body.ledger_id, body.entry_id))
        else:
            durable_to = self._durable_with_fence(fenced)
            self._storage.fence(fenced, partial(self._after_fence, body, target, durable_to))
        return True

    def _durable_with_fence(self, state: LedgerState) -> int:
        """Returns the last entry that is durable once the fence is; later ones need not be."""
        if state.is_fence_durable:
            return LAST_ENTRY
        return self._storage.last_entry_id(state.ledger_id)

    def _after_fence(self, body: ReadRequest, target: ReplyTarget, durable_to: int) -> None:
        """Replies to a fencing read. The journal calls this, so it must not raise."""
        if target.is_gone():
            return
        try:
            if target.owner.takes_replies:
                state = self._storage.state(body.ledger_id)
                if state is not None and self._answer_from_memory(body, state, target, durable_to):
                    return
        except BookieIoError as error:
            target.reply(read_refused(error, body.ledger_id, body.entry_id, body.entry_id))
            return
        read = partial(self.read_entry, body, body.entry_id, target, durable_to)
        self._deferred.read(body, target, read)

    def _fenceable(
        self, body: ReadRequest | BatchReadRequest, state: LedgerState | None
    ) -> LedgerState | Status:
        """Returns the ledger, which is created if it is new, or the status that says why it may
        not be fenced."""
        key = body.master_key
        if body.ledger_id < 0:
            return Status.BAD_REQUEST
        if key is None or (state is None and len(key) != MASTER_KEY_BYTES):
            return Status.UNAUTHORIZED
        if state is None:
            status = self._may_begin(body.ledger_id, key)
            if status is not Status.OK:
                return status
            state = self._storage.create(body.ledger_id, key)
        status = state.check_fence(key)
        return state if status is Status.OK else status

    # ---- requests that may need a disk

    async def read_entry(
        self, body: ReadRequest, entry_id: int, target: ReplyTarget, durable_to: int = LAST_ENTRY
    ) -> None:
        """Reads one entry from memory or disk (entry id -1 is the last one), and replies: at once
        or when the entry is durable."""
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
            target.reply(read_refused(error, ledger_id, entry_id, body.entry_id))
            return
        # The entry may have been added while this request waited for a disk.
        is_durable = entry_id <= state.lac or entry_id <= durable_to
        self._deferred.send_when_durable(
            body,
            target,
            _found(body, state, entry),
            is_durable=is_durable,
            again=partial(self.read_entry, body, entry_id, target, durable_to),
        )

    def begin_batch(self, body: BatchReadRequest, target: ReplyTarget) -> bool:
        """Refuses the request, or arranges that it is read when the journal has synced what is
        queued now; returns False if it can be read now."""
        storage, ledger_id, first = self._storage, body.ledger_id, body.entry_id
        state = storage.state(ledger_id) if ledger_id >= 0 else None
        if body.is_fencing:
            fenced = self._fenceable(body, state)
            if isinstance(fenced, Status):
                target.reply(BatchReadResponse(fenced, ledger_id, first))
            else:
                durable_to = self._durable_with_fence(fenced)
                storage.fence(fenced, partial(self._read_batch_deferred, body, target, durable_to))
            return True
        if state is None or state.is_deleted:
            target.reply(BatchReadResponse(Status.NO_SUCH_LEDGER, ledger_id, first))
            return True
        journal = storage.journal_of(ledger_id)
        if first > state.lac and not journal.is_idle:
            durable_to = storage.last_entry_id(ledger_id)
            journal.when_durable(partial(self._read_batch_deferred, body, target, durable_to))
            return True
        return False

    def _read_batch_deferred(
        self, body: BatchReadRequest, target: ReplyTarget, durable_to: int
    ) -> None:
        self._deferred.read(body, target, partial(self.read_batch, body, target, durable_to))

    async def read_batch(
        self, body: BatchReadRequest, target: ReplyTarget, durable_to: int = LAST_ENTRY
    ) -> None:
        """Replies with consecutive entries, up to the first that is not stored here, does not fit
        or is not durable. A long reply never waits for a journal: many would fill the memory."""
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
            durable_to = max(durable_to, state.lac)
            if first + count_max - 1 > durable_to:
                if storage.journal_of(ledger_id).is_idle:
                    durable_to = max(durable_to, storage.last_entry_id(ledger_id))
                count_max = min(count_max, max(1, durable_to - first + 1))
            entries = await storage.read_batch(
                ledger_id, first, count_max, min(body.size_max, BATCH_READ_BYTES_MAX)
            )
        except LedgerError as error:
            status = status_of_error(error, ledger_id, first)
            target.reply(BatchReadResponse(status, ledger_id, first))
            return
        answer = BatchReadResponse(Status.OK, ledger_id, first, tuple(entries))
        if first <= durable_to:
            # It has been counted for this peer since the read began.
            if not target.is_gone():
                target.reply(answer)
        else:
            self._deferred.send_when_durable(body, target, answer, is_durable=False)

    async def read_lac(self, ledger_id: int) -> ResponseBody:
        """Returns the explicit LAC and the last entry, of which the client takes the greater. An
        unknown ledger has neither; Apache BookKeeper does not distinguish the two cases either."""
        state = self._storage.state(ledger_id) if ledger_id >= 0 else None
        if state is None or state.is_deleted:
            return ReadLacResponse(Status.NO_SUCH_ENTRY, ledger_id)
        state.expect_reader(trio.current_time())
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
        """Replies with the ids of the ledger's entries that are stored here, all of them durable.
        Auditors send this request."""
        ledger_id = body.ledger_id
        state = self._storage.state(ledger_id) if ledger_id >= 0 else None
        if state is None or state.is_deleted:
            target.reply(ListEntriesResponse(Status.NO_SUCH_LEDGER, ledger_id))
            return
        async with self._lists:
            try:
                stored = await self._storage.entries_held(ledger_id)
            except LedgerError as error:
                status = status_of_error(error, ledger_id, LAST_ENTRY)
                target.reply(ListEntriesResponse(status, ledger_id))
                return
            # Entries that are not in the list would count as absent, and those in it as copies.
            if state.is_limbo or state.is_leaving:
                target.reply(ListEntriesResponse(Status.UNKNOWN_LEDGER_STATE, ledger_id))
                return
            listed = stored.encode()
            is_short = len(listed) <= _SHORT_LIST_BYTES_MAX
            if not is_short:
                # Inside the semaphore: long lists that wait for a stuck journal would fill the
                # memory. Short ones may not keep others from the few places for lists meanwhile.
                durable = trio.Event()
                self._storage.journal_of(ledger_id).when_durable(durable.set)
                await durable.wait()
        answer = ListEntriesResponse(Status.OK, ledger_id, listed)
        self._deferred.send_when_durable(body, target, answer, is_durable=not is_short)


def _found(body: ReadRequest, state: LedgerState, entry: Buffer) -> ReadResponse:
    """Returns the response with an entry. It holds the LAC unless the read fences, as with Apache
    BookKeeper."""
    lac = None if body.is_fencing else state.lac
    return ReadResponse(Status.OK, body.ledger_id, body.entry_id, entry, lac)
