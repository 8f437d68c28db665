"""LastConfirmed: what one reader knows of a ledger's last add confirmed, and how it learns more.

It learns from entries that are read, from the metadata, which it watches, from bookies that it asks
(`LastConfirmed.read`), and from long polls (`LacPoll`): a bookie answers when an entry after the
known one is confirmed, and sends that entry along, so that a tail needs one round trip per entry.
The last add confirmed must never move back before an entry that was read, nor past the end of a
closed ledger. What bookies say of it is a claim: if every replica denies an entry of an open ledger
that a claim has promised, the claim is dropped (docs/adr/0038).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import trio

from ledger.connection.authorization import unauthorized
from ledger.connection.pool import BookiePool
from ledger.core.entry import Digest, Entry
from ledger.core.metadata import LedgerMetadata
from ledger.core.permissions import Role
from ledger.core.reading import (
    Failed,
    LacRead,
    ReadReplica,
    ReplicaAnswered,
    ReplicaRead,
    lac_of,
)
from ledger.errors import (
    INVALID_ENTRY_ID,
    DigestMismatch,
    LedgerError,
    MetadataCorrupt,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    RemoteProtocolError,
    RetryableError,
    Status,
    Unauthorized,
    error_of_status,
)
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.ledgers import CLIENT_TAG, LedgerStore
from ledger.options import ClientOptions
from ledger.reading.quorum_lac import find_confirmed
from ledger.reading.replica_call import ReplicaCall
from ledger.reading.replica_fetch import ReplicaFetch
from ledger.runtime.drive import drive
from ledger.wire.messages import (
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    ResponseBody,
)

_POLL_PAUSE_S_MIN = 0.005
_POLL_PAUSE_S_MAX = 0.25
"""Pauses after a poll that ended early without news, so that no reader polls in a busy loop."""
_WATCH_PAUSE_S = 0.5
_ANNOUNCED_S = 0.12
"""A living writer has announced by then what was confirmed (docs/adr/0011)."""


class LastConfirmed:
    """The last add confirmed of one ledger, as far as its reader knows.

    Args:
        fetch: the reader's; it holds the ledger's metadata.
        spawn: starts an async function with one argument as a task of the client.
    """

    def __init__(
        self,
        fetch: ReplicaFetch,
        digest: Digest,
        *,
        pool: BookiePool,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        options: ClientOptions,
        spawn: Callable[[Callable[..., Awaitable[Any]], Any], None],
    ) -> None:
        self.entry_id = -1
        """The last entry that may be read; -1 if none."""
        self._shown = -1
        """The last entry that was read here, or that metadata shows to be confirmed."""
        self._checked = -1
        """The last entry that was claimed to be confirmed, and was there."""
        self._is_misled = False
        """Whether a claim was refuted since the last wait."""
        self._last_seen = -1
        """The last entry that a bookie had, confirmed or not."""
        self.length = 0
        """Payload bytes of the ledger up to the last entry received."""
        self._fetch = fetch
        self._digest = digest
        self._pool = pool
        self._ledgers = ledgers
        self._bookies = bookies
        self._options = options
        self._spawn = spawn
        self._poll = LacPoll(fetch, digest, pool, options)
        self._changed = trio.Event()
        """Set and replaced when the metadata changes."""
        self._failure: LedgerError | None = None
        self._watch_scope: trio.CancelScope | None = None
        self._piggybacked: Entry | None = None
        self.install(fetch.metadata)

    @property
    def is_final(self) -> bool:
        """Whether the ledger is known to be closed."""
        return self._fetch.metadata.is_closed

    @property
    def polls(self) -> int:
        """Long polls sent."""
        return self._poll.count

    def note(self, entry_id: int) -> None:
        """Records that `entry_id` is confirmed."""
        # An entry after the end of a closed ledger was never confirmed, whatever a bookie says.
        if not self.is_final and entry_id > self.entry_id:
            self.entry_id = entry_id

    def note_entry(self, entry: Entry) -> None:
        """Records the last add confirmed and the length that an entry carries."""
        self.note(entry.lac)
        self._shown = max(self._shown, entry.entry_id)
        self.length = max(self.length, entry.length)

    def refute(self, entry_id: int) -> bool:
        """Goes back before an entry that every replica denies, if only claims say that it is
        confirmed; returns whether it is so."""
        if self.is_final or entry_id <= self._shown:
            return False
        self.entry_id = min(self.entry_id, entry_id - 1)
        self._is_misled = True
        return True

    def install(self, metadata: LedgerMetadata) -> None:
        """Replaces the metadata by newer metadata. Raises MetadataCorrupt if that takes away an
        entry that was read."""
        before = self._fetch.metadata
        if before.is_closed and not metadata.is_closed:
            return  # older than what is known
        self._fetch.metadata = metadata
        if metadata.is_closed:
            if metadata.last_entry_id < self._shown:
                raise MetadataCorrupt(
                    f"ledger {metadata.ledger_id} is closed at entry {metadata.last_entry_id}, "
                    f"but entry {self._shown} was confirmed"
                )
            self.entry_id = metadata.last_entry_id
        else:
            # A fragment begins after the last entry confirmed before it.
            self._shown = max(self._shown, metadata.last_fragment.first_entry_id - 1)
            self.note(self._shown)
        if metadata != before:
            self._notify_changed()

    def _notify_changed(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        self._poll.interrupt()

    def close(self) -> None:
        """Ends the watch of the metadata."""
        if self._watch_scope is not None:
            self._watch_scope.cancel()

    # Asking bookies

    async def read(self) -> int:
        """Asks the bookies for the last add confirmed and returns what is known then: at least what
        was acknowledged before, unless its writer has died, or no bookie hears of it in twice
        `_ANNOUNCED_S`.

        Raises NotEnoughBookies if too few of them answer, Unauthorized if they refuse.
        """
        while not self.is_final:
            await self._fetch.refresh()
            metadata = self._fetch.metadata
            question = LacRead(metadata)
            try:
                await drive(question, self._ask)
            except NotEnoughBookies:
                await self._fetch.refresh()
                is_moved = self._fetch.metadata.last_fragment != metadata.last_fragment
                if not self.is_final and not is_moved:
                    raise
                continue
            except Unauthorized as error:
                raise unauthorized(self._pool, metadata, Role.READ, error) from None
            await self._note_claims(question.claims)
            if await self._look_behind_writer():
                await self._wait_announced(self._last_seen)
            break
        return self.entry_id

    async def _wait_announced(self, last: int) -> None:
        """Waits until entries up to `last`, which bookies have, are known to be confirmed; twice
        `_ANNOUNCED_S` at most, as they may never be. Their writer may have reported them already.

        Twice, because a loop that stands still ends the first wait before the writer announces.
        """
        for _ in range(2):
            deadline_s = trio.current_time() + _ANNOUNCED_S
            known = -2
            while not self.is_final and known < self.entry_id < last:
                known, left_s = self.entry_id, deadline_s - trio.current_time()
                answer = await self._poll.poll(known, left_s) if left_s > 0 else None
                if answer is not None:
                    await self._note_claims([answer.lac])

    async def _note_claims(self, claims: Sequence[int]) -> None:
        """Records the greatest claim, unless every replica denies the entry that it names; then the
        next one. Silence is no denial."""
        for claimed in claims:
            if claimed > max(self._shown, self._checked):
                try:
                    await self._fetch.fetch(claimed, claimed)
                except NoSuchEntry:
                    continue
                except LedgerError:
                    pass
                else:
                    self._checked = claimed
            self.note(claimed)
            return

    async def _ask(self, action: ReadReplica) -> ReplicaAnswered[int] | Failed:
        bookie, ledger_id = action.bookie, self._fetch.metadata.ledger_id
        try:
            response = await self._pool.call(
                bookie, ReadLacRequest(ledger_id), timeout_s=self._options.read_timeout_s
            )
            if response.status is not Status.OK:
                return Failed(bookie, error_of_status(response.status, f"read LAC at {bookie}"))
            if not isinstance(response, ReadLacResponse):
                return Failed(bookie, RemoteProtocolError(f"{bookie}: {type(response).__name__}"))
            lac, last = lac_of(self._digest, ledger_id, response.lac_body, response.last_entry_body)
        except LedgerError as error:
            return Failed(bookie, error)
        self._last_seen = max(self._last_seen, last)
        return ReplicaAnswered(bookie, lac)

    async def _look_behind_writer(self) -> bool:
        """Looks for entries that a writer confirmed and did not announce, if it is gone. Returns
        whether it may still announce some: those of other programs do so in their own time."""
        writer = self._fetch.metadata.custom.get(CLIENT_TAG)
        if self.is_final or writer is None:
            return False
        if not await self._ledgers.is_writer_gone(self._fetch.metadata):
            return True
        # In the ensemble that will not change any more: copies in an earlier one prove nothing.
        is_fresh = await self._fetch.refresh()
        if is_fresh and self._fetch.metadata.custom.get(CLIENT_TAG) == writer:
            await self.find()
        return False

    async def find(self) -> int:
        """Advances to the last entry that an ack quorum holds, and returns what is known then.

        See `ledger.reading.quorum_lac`. Only for a ledger whose writer is gone.
        """
        if not self.is_final:
            found = await find_confirmed(
                self._fetch.metadata,
                self._digest,
                self._pool,
                self._bookies,
                self._options,
                self.entry_id,
            )
            self.note(found)
        return self.entry_id

    # Waiting

    async def wait_after(self, known: int, timeout_s: float) -> int:
        """Waits until an entry after `known` is confirmed, the ledger is closed, or `timeout_s`
        have passed. Returns what is known then, which may be no more than `known`.

        Raises NoSuchLedger if the ledger is deleted meanwhile.
        """
        deadline = trio.current_time() + timeout_s
        pause_s = _POLL_PAUSE_S_MIN
        self._start_watch()
        if self._is_misled:  # the bookie that claims it does so again at once
            self._is_misled = False
            with trio.move_on_at(min(trio.current_time() + _POLL_PAUSE_S_MAX, deadline)):
                await self._changed.wait()
        while True:
            if self._failure is not None:
                raise self._failure
            began = trio.current_time()
            left_s = deadline - began
            if self.entry_id > known or self.is_final or left_s <= 0:
                await trio.lowlevel.checkpoint()
                return self.entry_id
            changed = self._changed
            answer = await self._poll.poll(known, min(left_s, self._options.long_poll_s))
            if answer is not None:
                self.note(answer.lac)
                if answer.entry is not None:
                    self._piggybacked = answer.entry
            if self.entry_id <= known and not changed.is_set():
                await self._look_behind_writer()
            if self.entry_id > known or changed.is_set():
                pause_s = _POLL_PAUSE_S_MIN
            elif trio.current_time() - began < pause_s:
                with trio.move_on_at(min(trio.current_time() + pause_s, deadline)):
                    await changed.wait()
                pause_s = min(2 * pause_s, _POLL_PAUSE_S_MAX)

    def take_piggybacked(self, entry_id: int) -> Entry | None:
        """Returns this entry if it arrived with the last poll and need not be read."""
        entry, self._piggybacked = self._piggybacked, None
        if entry is None or entry.entry_id != entry_id or entry_id > self.entry_id:
            return None
        self._fetch.counts.entries += 1
        self._fetch.counts.payload_bytes += len(entry.payload)
        return entry

    def _start_watch(self) -> None:
        """Watches the metadata from the first wait until the ledger is closed."""
        if self._watch_scope is None and not self.is_final:
            self._watch_scope = trio.CancelScope()
            self._spawn(self._watch, self._watch_scope)

    async def _watch(self, scope: trio.CancelScope) -> None:
        with scope:
            while not self.is_final and self._failure is None:
                try:
                    await self._watch_versions()
                except RetryableError:
                    await trio.sleep(_WATCH_PAUSE_S)
                except LedgerError as error:
                    self._failure = error
                    self._notify_changed()

    async def _watch_versions(self) -> None:
        ledger_id = self._fetch.metadata.ledger_id
        async with aclosing(self._ledgers.watch(ledger_id)) as versions:
            async for metadata in versions:
                if metadata is None:
                    raise NoSuchLedger(f"ledger {ledger_id} was deleted")
                self.install(metadata)
                if self.is_final:
                    return


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """`entry` is the one after the known one, if the bookie sent it along."""

    lac: int
    entry: Entry | None


class LacPoll:
    """Sends long polls for one reader, in its order of replicas.

    Further bookies are asked when the first one does not answer for a while: it may lag behind,
    hang, or no longer be in use by the writer.
    """

    def __init__(
        self, fetch: ReplicaFetch, digest: Digest, pool: BookiePool, options: ClientOptions
    ) -> None:
        self.count = 0
        """Polls sent."""
        self._fetch = fetch
        self._digest = digest
        self._pool = pool
        self._options = options
        self._running: dict[ReplicaCall[PollAnswer], None] = {}

    def interrupt(self) -> None:
        """Ends the polls in flight: the caller has other news to look at first."""
        for call in self._running:
            call.interrupt()

    async def poll(self, known: int, poll_s: float) -> PollAnswer | None:
        """Returns the first answer of a bookie; None if no bookie could answer, or after
        `interrupt`."""
        metadata = self._fetch.metadata
        ledger_id = metadata.ledger_id
        began_s = trio.current_time()
        order = self._fetch.order.order(metadata, known + 1, began_s)
        what = f"long poll for entry {known + 1} of ledger {ledger_id}"
        # Enough bookies that one of them is in every ack quorum and learns what is confirmed.
        hedges_max = max(1, metadata.write_quorum - metadata.ack_quorum)
        hedge_s = self._options.speculative_read_s
        read = ReplicaRead[PollAnswer](what, order, hedge_s, hedges_max=hedges_max)

        def request(_bookie: str) -> ReadRequest:
            self.count += 1
            left_s = max(began_s + poll_s - trio.current_time(), 0.001)
            return ReadRequest(
                ledger_id,
                INVALID_ENTRY_ID,
                is_piggyback=True,
                previous_lac=known,
                timeout_ms=max(1, int(left_s * 1000)),
            )

        def take(bookie: str, response: ResponseBody) -> PollAnswer:
            return self._taken(bookie, response, known)

        timeout_s = poll_s + self._options.read_timeout_s
        call = ReplicaCall(self._pool, read, request, take, timeout_s=timeout_s)
        self._running[call] = None
        answer: PollAnswer | None = None
        try:
            answer = await call.run()
        except LedgerError:
            pass  # no replica could answer: the caller pauses and polls again
        finally:
            del self._running[call]
        # A bookie that was overtaken lags behind; one that merely had no news does not.
        overtaken = read.slow if answer is not None and answer.lac > known else []
        for bookie in [*read.errors, *overtaken]:
            self._fetch.order.failed(bookie, trio.current_time())
        return answer

    def _taken(self, bookie: str, response: ResponseBody, known: int) -> PollAnswer:
        if response.status is not Status.OK:
            raise error_of_status(response.status, f"long poll at {bookie}")
        if not isinstance(response, ReadResponse):
            raise RemoteProtocolError(f"{bookie} answered a long poll with {response}")
        lac = -1 if response.max_lac is None else response.max_lac
        if response.body is None:
            return PollAnswer(lac, None)
        try:
            entry = self._digest.decode_entry(
                self._fetch.metadata.ledger_id, known + 1, response.body
            )
        except DigestMismatch:
            self._fetch.counts.digest_mismatches += 1
            raise
        return PollAnswer(max(lac, entry.lac), entry)
