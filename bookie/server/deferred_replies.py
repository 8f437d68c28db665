"""Answers that are not given while the request is taken: a journal or a disk comes first.

Whoever asks much and reads little must not make the bookie hold the answers: one that comes late
waits for its peer's turn if the peer has no room for it. Only the request waits, or a view of what
is in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookie.server.error_replies import error_reply
from bookie.server.read_scheduler import Job, Owner, ReadScheduler, is_urgent
from bookie.storage.bookie_storage import BookieStorage
from ledger.errors import Status
from ledger.wire.messages import BatchReadRequest, ListEntriesRequest, ReadRequest, ResponseBody

Reply = Callable[[ResponseBody], None]
IsGone = Callable[[], bool]
"""Whether the peer that asked has left."""
DeferredRequest = ReadRequest | BatchReadRequest | ListEntriesRequest


class ReplyTarget(NamedTuple):
    """Who gets the answer to one request."""

    reply: Reply
    is_gone: IsGone
    owner: Owner
    """Whose requests take turns with the others', and whose room counts."""


class DeferredReplies:
    """Of one bookie. Called by journals and by whoever moves a LAC: must not raise."""

    def __init__(self, storage: BookieStorage, read_scheduler: ReadScheduler) -> None:
        self._storage = storage
        self._read_scheduler = read_scheduler

    def give(self, body: DeferredRequest, target: ReplyTarget, answer: ResponseBody) -> None:
        """Now, or when the peer has room for it."""
        if target.is_gone():
            return
        if target.owner.takes_replies:
            target.reply(answer)
            return

        async def reply() -> None:
            target.reply(answer)

        self.read(body, target, reply)

    def give_durable(
        self, body: DeferredRequest, target: ReplyTarget, answer: ResponseBody, *, is_sure: bool
    ) -> None:
        """`give` now if what is in the answer is surely durable, or when all is that is queued
        now. Nobody else's turn to read a disk waits for that."""
        if is_sure:
            self.give(body, target, answer)
        else:
            journal = self._storage.journal_of(body.ledger_id)
            journal.when_durable(lambda: self.give(body, target, answer))

    def give_after_group(
        self, body: DeferredRequest, target: ReplyTarget, answer: ResponseBody, *, is_sure: bool
    ) -> None:
        """As `give_durable`, but what is in the answer may be queued only after this call, by
        whoever has just put it into a cache and moved the LAC: it goes with the open group."""
        if is_sure:
            self.give(body, target, answer)
        else:
            journal = self._storage.journal_of(body.ledger_id)
            journal.open_group.on_durable.append(lambda: self.give(body, target, answer))
            journal.kick()

    def read(self, body: DeferredRequest, target: ReplyTarget, job: Job) -> None:
        """Runs `job`, which answers, when it is the peer's turn and it has room."""
        if target.is_gone():
            return
        directory_no = body.ledger_id % len(self._storage.directories)
        goes_first = is_urgent(body)
        if not self._read_scheduler.submit(directory_no, target.owner, job, goes_first=goes_first):
            target.reply(error_reply(body, Status.TOO_MANY_REQUESTS))
