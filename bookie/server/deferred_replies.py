"""Replies that wait for a journal or a disk before they are sent.

A peer that sends many requests and reads few replies must not make the bookie hold those replies:
while the peer's send queue is full, a deferred reply waits for the peer's turn. Only the request
waits then, or a view of an entry that is in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookie.server.error_replies import error_reply
from bookie.server.read_scheduler import (
    Job,
    Owner,
    ReadScheduler,
    is_urgent,
    reply_bytes_of,
)
from bookie.storage.bookie_storage import BookieStorage
from ledger.errors import Status
from ledger.wire.messages import BatchReadRequest, ListEntriesRequest, ReadRequest, ResponseBody

Reply = Callable[[ResponseBody], None]
IsGone = Callable[[], bool]
"""Returns whether the peer that sent the request has disconnected."""
DeferredRequest = ReadRequest | BatchReadRequest | ListEntriesRequest


class ReplyTarget(NamedTuple):
    """The receiver of the reply to one request."""

    reply: Reply
    is_gone: IsGone
    owner: Owner
    """The connection that takes turns with the others, and whose send queue counts."""


class DeferredReplies:
    """The deferred replies of one bookie. Its methods are called by journals and by requests that
    advance a LAC, so they must not raise."""

    def __init__(self, storage: BookieStorage, read_scheduler: ReadScheduler) -> None:
        self._storage = storage
        self._read_scheduler = read_scheduler

    @property
    def is_held(self) -> bool:
        """Whether replies with entries must wait, because too many wait for peers."""
        return self._read_scheduler.is_held()

    def send(
        self,
        body: DeferredRequest,
        target: ReplyTarget,
        answer: ResponseBody,
        again: Job | None = None,
    ) -> None:
        """Replies now, or when the peer's send queue has capacity. `again` makes the answer once
        more and replies, so that its memory is not kept until then."""
        if target.is_gone():
            return
        if target.owner.takes_replies:
            target.reply(answer)
        elif again is not None:
            self.read(body, target, again)
        else:
            self._send_in_turn(body, target, answer)

    def send_when_durable(
        self,
        body: DeferredRequest,
        target: ReplyTarget,
        answer: ResponseBody,
        *,
        is_durable: bool,
        again: Job | None = None,
    ) -> None:
        """Sends now if the entries in the answer are durable, or else when everything that is
        queued now is. No other request for a disk waits for that. `again` as for `send`."""
        if is_durable:
            self.send(body, target, answer, again)
        else:
            journal = self._storage.journal_of(body.ledger_id)
            journal.when_durable(lambda: self._send_unless_held(body, target, answer))

    def send_after_open_group(
        self, body: DeferredRequest, target: ReplyTarget, answer: ResponseBody, *, is_durable: bool
    ) -> None:
        """Like `send_when_durable`, for an entry that may be queued only after this call: the
        request that advanced the LAC has put it into a cache just now, and it joins the open
        group."""
        if is_durable:
            self.send(body, target, answer)
        else:
            journal = self._storage.journal_of(body.ledger_id)
            journal.with_group(on_durable=lambda: self._send_unless_held(body, target, answer))

    def _send_unless_held(
        self, body: DeferredRequest, target: ReplyTarget, answer: ResponseBody
    ) -> None:
        """Like `send`, for an answer that is still a view of an entry in memory."""
        if self.is_held and not is_urgent(body) and not target.is_gone():
            self._send_in_turn(body, target, answer)
        else:
            self.send(body, target, answer)

    def _send_in_turn(
        self, body: DeferredRequest, target: ReplyTarget, answer: ResponseBody
    ) -> None:
        async def reply() -> None:
            target.reply(answer)

        self.read(body, target, reply)

    def read(self, body: DeferredRequest, target: ReplyTarget, job: Job) -> None:
        """Runs `job`, which replies, when it is the peer's turn and its send queue has
        capacity."""

        if target.is_gone():
            return
        directory_no = self._storage.layout.directory_of(body.ledger_id)
        goes_first = is_urgent(body)
        is_taken = self._read_scheduler.submit(
            directory_no,
            target.owner,
            job,
            goes_first=goes_first,
            reply_bytes=reply_bytes_of(body),
        )
        if not is_taken:
            target.reply(error_reply(body, Status.TOO_MANY_REQUESTS))
