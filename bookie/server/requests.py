"""The operations of a bookie: checks, calls of the storage, status of the reply.

The semantics are those of Apache BookKeeper, except where it is less strict. Reads are in
`bookie.server.reads`. An add must never be acknowledged before it is durable, nor accepted if the
ledger's state refuses it, nor change an entry that is stored (`bookie.core.repeated_adds`).

Replies to explicit LACs wait until the LACs are durable. No client waits for those replies, and in
most cases an add follows soon. So a LAC joins the next group that is synced anyway; only if no add
comes for `LINGER_S` is a journal synced for the explicit LACs of that time alone.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from bookie.core.ledger_state import ENTRY_ID_END, EXPLICIT_LAC_BYTES_MAX, LedgerState
from bookie.core.repeated_adds import Presence
from bookie.server.deferred_replies import IsGone, Reply, ReplyTarget
from bookie.server.error_replies import error_reply, read_refused, status_of_error
from bookie.server.key_check import KeyCheck
from bookie.server.read_scheduler import (
    Job,
    Owner,
    ReadLimits,
    Unbounded,
    is_urgent,
    reply_bytes_of,
)
from bookie.server.reads import LAST_ENTRY, MASTER_KEY_BYTES, Reads
from bookie.storage.bookie_storage import BookieStorage
from bookie.storage.journal.journal import CommitGroup, Journal
from ledger.errors import BookieIoError, Status
from ledger.wire import v2
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    RequestBody,
    ResponseBody,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)

_log = logging.getLogger(__name__)

LINGER_S: Final = 0.05
"""A stream with more than twenty entries per second never causes a sync for its LAC alone."""
_ADD_HEAD = struct.Struct(">iI20s").pack
_LAC_PACKET = struct.Struct(">qq")
_REPLY_BYTES = 1024
"""Memory of the reply to an add over v3 while it waits, beside a second copy of the entry in the
request. Without it, small adds would fill twenty times the limit of a journal's queue."""
_REPORT_INTERVAL_S: Final = 60.0
"""Refused adds over other entries are reported once in this time."""
_SPACE_KNOWN_S: Final = 1.0
"""What the disks have free is known for this long: many may ask, and few threads look."""
AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"
_UNBOUNDED = Unbounded()


class ExplicitLacSync:
    """Syncs journals for explicit LACs that no add follows. `run` runs as long as the bookie."""

    def __init__(self) -> None:
        self._groups: dict[Journal, CommitGroup] = {}
        """The last group of each journal that a LAC joined."""
        self._wanted = trio.Event()

    def schedule(self, journal: Journal) -> None:
        """Arranges a sync of the journal, whose open group holds a LAC. Cheap to call often."""
        if not journal.open_group.is_kicked:
            self._groups[journal] = journal.open_group
            self._wanted.set()

    async def run(self) -> None:
        """Syncs journals until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await trio.sleep(LINGER_S)
            groups, self._groups = self._groups, {}
            for journal, group in groups.items():
                if journal.open_group is group:
                    journal.kick()


class Requests:
    """The operations of one bookie; `run` runs as long as the bookie."""

    def __init__(
        self,
        storage: BookieStorage,
        *,
        long_polls_max: int,
        space: Callable[[], Awaitable[tuple[int, int]]],
        read_limits: ReadLimits | None = None,
        key_check: KeyCheck | None = None,
    ) -> None:
        """`space` returns total and free bytes of the disks. `read_limits` holds for requests that
        wait for disks. `key_check` decides which keys new ledgers may have; None: any."""
        self._storage = storage
        self._space = space
        self.key_check = key_check or KeyCheck()
        self._reads = Reads(
            storage,
            long_polls_max=long_polls_max,
            limits=read_limits,
            may_begin=self.key_check.may_begin,
        )
        self.read_scheduler = self._reads.read_scheduler
        self._explicit_lac_sync = ExplicitLacSync()
        self._report_next_at = -math.inf
        self._known_space = 0, 0
        self._space_known_until = -math.inf

    @property
    def long_polls(self) -> int:
        """The number of long polls that wait. Looks at each of them."""
        return self._reads.long_polls

    async def run(self) -> None:
        """Answers requests that outlive the chunk in which they were received; runs until
        cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reads.run)
            nursery.start_soon(self._explicit_lac_sync.run)

    def answer_nowait(
        self, request: Request, reply: Reply, is_gone: IsGone, owner: Owner = _UNBOUNDED
    ) -> bool:
        """Answers now or arranges that `reply` is called later; returns False if a disk must be
        read first: then the caller awaits `answer`.

        Args:
            is_gone: returns whether the peer has disconnected.
            owner: the connection whose send queue must have capacity for a deferred reply.
        """
        try:
            return self._answer_nowait(request.body, ReplyTarget(reply, is_gone, owner))
        except BookieIoError as error:
            reply(_failed(request.body, error))
            return True

    def _answer_nowait(self, body: RequestBody, target: ReplyTarget) -> bool:
        if isinstance(body, ReadRequest):
            return self._reads.read(body, target)
        if isinstance(body, BatchReadRequest):
            return self._reads.begin_batch(body, target)
        reply = target.reply
        if isinstance(body, AddRequest):
            return self._add(body, reply)
        if isinstance(body, WriteLacRequest):
            self._write_lac(body, reply)
        elif isinstance(body, ForceLedgerRequest):
            self._storage.journal_of(body.ledger_id).when_durable(
                lambda: reply(ForceLedgerResponse(Status.OK, body.ledger_id))
            )
        elif isinstance(body, GetBookieInfoRequest) and (
            trio.current_time() < self._space_known_until
        ):
            reply(_info(body, *self._known_space))
        elif isinstance(body, StartTlsRequest):
            reply(StartTlsResponse(Status.BAD_REQUEST))  # none is configured, or too late
        elif isinstance(body, AuthRequest):
            # No authentication is required: this name says to the peer that it may continue.
            reply(AuthResponse(Status.OK, AUTH_DISABLED_PLUGIN, b""))
        else:
            return False
        return True

    def submit(self, request: Request, owner: Owner, job: Job) -> bool:
        """Runs `job`, which answers the request by `answer`, when it is its turn; returns False if
        too many wait already. `owner` is the connection that takes turns with the others."""
        body = request.body
        directory_no = None
        if isinstance(body, AddRequest | ReadRequest | BatchReadRequest | ReadLacRequest):
            directory_no = self._storage.layout.directory_of(body.ledger_id)
        return self.read_scheduler.submit(
            directory_no,
            owner,
            job,
            goes_first=is_urgent(body),
            reply_bytes=reply_bytes_of(body),
        )

    async def answer(
        self, request: Request, reply: Reply, is_gone: IsGone, owner: Owner = _UNBOUNDED
    ) -> None:
        """Answers a request that needs a disk or may need one. See `answer_nowait`."""
        body, target = request.body, ReplyTarget(reply, is_gone, owner)
        try:
            if isinstance(body, ReadRequest):
                await self._reads.read_entry(body, body.entry_id, target)
            elif isinstance(body, BatchReadRequest):
                await self._reads.read_batch(body, target)
            elif isinstance(body, AddRequest):
                await self._compare_and_add(body, reply)
            elif isinstance(body, ReadLacRequest):
                reply(await self._reads.read_lac(body.ledger_id))
            elif isinstance(body, GetBookieInfoRequest):
                reply(await self._look_at_space(body))
            elif isinstance(body, ListEntriesRequest):
                await self._reads.list_entries(body, target)
        except BookieIoError as error:
            reply(_failed(body, error))

    # ---- adds

    def check_add(self, body: AddRequest) -> Status:
        """Returns OK if this add may be stored, else the reason; creates the ledger if it is
        new."""
        status = self._check_place(body.ledger_id, body.entry_id, is_urgent=body.is_urgent)
        if status is not Status.OK:
            return status
        try:
            if self._storage.gate.is_emptying and not self._is_of_recovery(body):
                return Status.READ_ONLY
            status = self._check_state(
                body.ledger_id, body.entry_id, body.master_key, body.is_recovery
            )
            if body.is_recovery and status is Status.OK:
                self._storage.copied_again(body.ledger_id)
        except BookieIoError as error:
            return status_of_error(error, body.ledger_id, body.entry_id)
        return status

    def _is_of_recovery(self, body: AddRequest) -> bool:
        """Returns whether the add is of a recovery whose ensemble has this bookie: it has fenced
        the ledger here, so that the ledger is known. See `bookie.draining`."""
        return body.is_recovery and self._storage.state(body.ledger_id) is not None

    def make_known(self, ledger_id: int, entry_id: int, key: bytes) -> bool:
        """Returns whether this ordinary add may be stored without a search, and creates its ledger
        if it is new. If not, `check_add` returns the reason."""
        try:
            return (
                self._check_place(ledger_id, entry_id, is_urgent=False) is Status.OK
                and self._check_state(ledger_id, entry_id, key, False) is Status.OK
                and self._is_above(ledger_id, entry_id)
            )
        except BookieIoError:
            return False

    def is_new(self, body: AddRequest) -> bool:
        """Returns whether no entry from the one of a checked add on is here, so that there is
        nothing to compare it with."""
        return self._is_above(body.ledger_id, body.entry_id)

    def _is_above(self, ledger_id: int, entry_id: int) -> bool:
        return entry_id >= self._known(ledger_id).new_from

    def _known(self, ledger_id: int) -> LedgerState:
        state = self._storage.state(ledger_id)
        assert state is not None, f"ledger {ledger_id} was known a moment ago"
        return state

    def _check_place(self, ledger_id: int, entry_id: int, *, is_urgent: bool) -> Status:
        if ledger_id < 0 or not 0 <= entry_id < ENTRY_ID_END:
            return Status.BAD_REQUEST
        is_refused = self._storage.gate.refuses(is_urgent=is_urgent)
        return Status.READ_ONLY if is_refused else Status.OK

    def _check_state(self, ledger_id: int, entry_id: int, key: bytes, is_recovery: bool) -> Status:
        state = self._storage.state(ledger_id)
        if state is None:
            if len(key) != MASTER_KEY_BYTES:
                return Status.BAD_REQUEST
            status = self.key_check.may_begin(ledger_id, key)
            if status is not Status.OK:
                return status
            state = self._storage.create(ledger_id, key)
        status = state.check_add(key, is_recovery)
        if status is not Status.OK:
            return status
        self._storage.directory_of(ledger_id).history.look_up(state)
        return state.check_end(entry_id)

    def _add(self, body: AddRequest, reply: Reply) -> bool:
        """Takes an add that came over v3, or that may be here already; returns False if a disk must
        be read to decide that."""
        status = self.check_add(body)
        if status is not Status.OK:
            reply(error_reply(body, status))
            return True
        state = self._known(body.ledger_id)
        directory = self._storage.directory_of(body.ledger_id)
        presence = directory.history.presence(state, body.entry_id, body.body)
        if presence is Presence.UNREAD:
            return False
        self._take(body, presence, reply)
        return True

    async def _compare_and_add(self, body: AddRequest, reply: Reply) -> None:
        directory = self._storage.directory_of(body.ledger_id)
        presence = await directory.history.presence_on_disk(
            body.ledger_id, body.entry_id, body.body
        )
        status = self.check_add(body)  # again: the ledger may have been fenced meanwhile
        if status is not Status.OK:
            reply(error_reply(body, status))
            return
        state = self._known(body.ledger_id)
        if presence is Presence.ABSENT:
            # What is stored is damaged; unless it was replaced meanwhile.
            now = directory.history.presence(state, body.entry_id, body.body)
            presence = presence if now is Presence.UNREAD else now
        self._take(body, presence, reply)

    def _take(self, body: AddRequest, presence: Presence, reply: Reply) -> None:
        """Carries out a checked add, of which is known whether the entry is here."""
        if presence is Presence.OTHER:
            self._report_other(body)
            reply(error_reply(body, Status.BAD_REQUEST))
        elif presence is Presence.EQUAL:
            journal = self._storage.journal_of(body.ledger_id)
            accepted = AddResponse(Status.OK, body.ledger_id, body.entry_id, body.entry_id)
            if journal.is_idle:
                reply(accepted)
            else:  # the entry may be in the open group, or in one that is being written
                journal.with_group(on_accepted=lambda: reply(accepted))
        else:
            self._store(body, reply)

    def _report_other(self, body: AddRequest) -> None:
        now = trio.current_time()
        if now >= self._report_next_at:
            self._report_next_at = now + _REPORT_INTERVAL_S
            _log.warning(
                "add refused ledger=%d entry=%d cause=another payload or length is stored for this "
                "entry, and entries never change. Another client has the ledger's key, or wrote "
                "this entry before its writer did. Further ones within %d s are only counted",
                body.ledger_id,
                body.entry_id,
                _REPORT_INTERVAL_S,
            )

    def _store(self, body: AddRequest, reply: Reply) -> None:
        """Stores an add in the frame that v2 would have used."""
        entry = body.body
        # The codec checked the lengths, and that the entry's ids are those of the request.
        lac = v2.lac_of_entry(entry)
        header = v2.ADD_HEADER | (v2.RECOVERY_ADD if body.is_recovery else 0)
        frame = b"".join((_ADD_HEAD(24 + len(entry), header, body.master_key), entry))
        directory = self._storage.directory_of(body.ledger_id)
        directory.cache.put_frame(frame)
        state = directory.states[body.ledger_id]
        state.added(body.entry_id, body.entry_id)
        state.advance_lac(lac)
        journal = self._storage.journal_of(body.ledger_id)
        journal.queue(
            frame,
            1,
            lambda: reply(AddResponse(Status.OK, body.ledger_id, body.entry_id, body.entry_id)),
            overhead_bytes=_REPLY_BYTES + len(entry),
        )

    # ---- LAC, info

    def _write_lac(self, body: WriteLacRequest, reply: Reply) -> None:
        status = self._check_write_lac(body)
        if status is not Status.OK:
            reply(WriteLacResponse(status, body.ledger_id))
            return
        self._storage.set_explicit_lac(
            self._known(body.ledger_id),
            body.lac,
            bytes(body.body),
            lambda: reply(WriteLacResponse(Status.OK, body.ledger_id)),
        )
        journal = self._storage.journal_of(body.ledger_id)
        if body.lac < 0:
            journal.kick()  # a claim: the creator of the ledger waits (`ledger.writing.creator`)
        else:
            self._explicit_lac_sync.schedule(journal)

    def _check_write_lac(self, body: WriteLacRequest) -> Status:
        if body.ledger_id < 0 or not _LAC_PACKET.size <= len(body.body) <= EXPLICIT_LAC_BYTES_MAX:
            return Status.BAD_REQUEST
        if _LAC_PACKET.unpack_from(body.body) != (body.ledger_id, body.lac):
            return Status.BAD_REQUEST
        state = self._storage.state(body.ledger_id)
        if state is not None:  # first: with a full disk, too, it is said that a key is another one
            status = state.check_write_lac(body.master_key)
            if status is not Status.OK:
                return status
        # A read-only bookie accepts it, where one of Apache BookKeeper does not: otherwise readers
        # of entries that were written before would not learn that those are confirmed.
        if self._storage.gate.refuses(is_urgent=True):
            return Status.READ_ONLY
        if state is None:
            if len(body.master_key) != MASTER_KEY_BYTES:
                return Status.BAD_REQUEST
            if self._storage.gate.is_emptying:
                return Status.READ_ONLY
            status = self.key_check.may_begin(body.ledger_id, body.master_key)
            if status is not Status.OK:
                return status
            self._storage.create(body.ledger_id, body.master_key)
        return Status.OK

    async def _look_at_space(self, body: GetBookieInfoRequest) -> ResponseBody:
        try:
            self._known_space = await self._space()
        except OSError:
            return GetBookieInfoResponse(Status.IO_ERROR)
        self._space_known_until = trio.current_time() + _SPACE_KNOWN_S
        return _info(body, *self._known_space)


def _info(body: GetBookieInfoRequest, total: int, free: int) -> ResponseBody:
    return GetBookieInfoResponse(
        Status.OK,
        total if body.requested & 1 else None,
        free if body.requested & 2 else None,
    )


def _failed(body: RequestBody, error: BookieIoError) -> ResponseBody:
    """Returns the reply to a request that met damage: an I/O error, for every operation."""
    if isinstance(body, ReadRequest):
        return read_refused(error, body.ledger_id, body.entry_id, body.entry_id)
    if isinstance(body, BatchReadRequest | AddRequest):
        return error_reply(body, status_of_error(error, body.ledger_id, body.entry_id))
    if isinstance(body, ReadLacRequest | WriteLacRequest | ListEntriesRequest):
        return error_reply(body, status_of_error(error, body.ledger_id, LAST_ENTRY))
    raise error
