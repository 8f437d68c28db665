"""AssignedPartition: one partition of one member of a consumer group, from acquisition to release.

It acquires the group's cursor once the holder has released it or is dead, offers batches, and hands
over: it stops offering, waits until the delivered records are handled, commits, releases. Must
never commit at an epoch that is not its own, and never wait forever for a stuck holder.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError, MetadataConflict, NoSuchEntry, NoSuchLedger, RetryableError
from ledger.runtime.background import open_background
from stream.consuming.cursor import Cursor
from stream.core.entry.records import RecordBatch
from stream.core.metadata.cursors import CursorMetadata, CursorMoved
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import BEGINNING, Position, Start
from stream.errors import NoSuchCursor
from stream.reading.reader import StreamReader
from stream.reading.seek import find
from stream.store.cursors import CursorStore, new_cursor
from stream.store.groups import GroupStore
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

RETRY_S = 0.5
COMMITS_FAILING_MAX_S = 10.0
"""A member whose commits have failed for this long delivers nothing more: the others may consider
it dead."""
FORCE_MARGIN_S = 5.0
"""How much longer than its handover time a living holder is waited for, before it is fenced."""
_RELEASE_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class MemberContext:
    """What all partitions of one member share."""

    client: LedgerClient
    namespace: str
    groups: GroupStore
    member: str
    token: str
    commit_interval_ms: int
    hand_over_s: float
    open_reader: Callable[[str, Position], AbstractAsyncContextManager[StreamReader]]

    @property
    def streams(self) -> StreamStore:
        return StreamStore(self.client.store)

    @property
    def cursors(self) -> CursorStore:
        return CursorStore(self.client.store)


class HoldState(enum.Enum):
    WAITING = "waiting"
    HOLDING = "holding"
    LEAVING = "leaving"


class AssignedPartition:
    """One partition of one consumer, from its assignment until the member has left it.

    Args:
        start: where to begin if the group has no cursor on this partition.
        on_offer: called with a batch to `take`, or when `error` says why there will be none.
    """

    def __init__(
        self,
        context: MemberContext,
        partition: str,
        start: Start,
        on_offer: Callable[[AssignedPartition], None],
    ) -> None:
        self.partition = partition
        self.state = HoldState.WAITING
        self.error: LedgerError | None = None
        self.cursor: Cursor | None = None
        self.is_suspended = False
        """Other members may have taken it: nothing is delivered until it was checked again."""
        self._context = context
        self._start = start
        self._on_offer = on_offer
        self._leaving = trio.Event()
        self._ending = trio.Event()
        self._drained = trio.Event()
        self._delivered = BEGINNING
        self._offer: RecordBatch | None = None
        self._answered = trio.Event()
        self._may_be_ours = False

    # For the consumer

    @property
    def epoch(self) -> int:
        return 0 if self.cursor is None else self.cursor.epoch

    def holds(self, epoch: int) -> bool:
        """Whether what was delivered at this epoch can still be committed."""
        cursor = self.cursor
        return cursor is not None and cursor.epoch == epoch and cursor.error is None

    def is_holding(self, epoch: int) -> bool:
        """Whether it is ours, or may be: no other member reads again what was read at this
        epoch."""
        return self.state is HoldState.HOLDING and self.holds(epoch)

    @property
    def is_offering(self) -> bool:
        """Whether more may be delivered now."""
        if self.state is not HoldState.HOLDING or self.is_suspended or self.cursor is None:
            return False
        since_s = self.cursor.failing_since_s
        return since_s is None or trio.current_time() - since_s < COMMITS_FAILING_MAX_S

    def take(self) -> RecordBatch | None:
        """Returns the offered batch; None if it may not be delivered any more, or not now."""
        offer = self._offer if self.is_offering else None
        if offer is not None:
            self._offer = None
        self._answered.set()
        return offer

    def note_handed_out(self, to: Position) -> None:
        """Notes that records before `to` were delivered; a handover waits until they are
        handled."""
        self._delivered = max(self._delivered, to)

    def note_undelivered(self, begin: Position, end: Position) -> None:
        """Notes that these delivered records reached no caller: a handover does not wait for
        them."""
        if self._delivered == end:
            self._delivered = begin
            if self.cursor is not None and self.cursor.position >= begin:
                self._drained.set()

    def handled(self, to: Position, epoch: int) -> bool:
        """Notes that records before `to`, delivered at `epoch`, are handled; returns False if the
        partition is no longer ours."""
        if self.cursor is None or not self.holds(epoch):
            return False
        self.cursor.advance(to)
        if self.cursor.position >= self._delivered:
            self._drained.set()
        return True

    def leave(self) -> None:
        """Begins the handover: the partition is assigned to another member from now on."""
        if self.state is HoldState.HOLDING:
            self.state = HoldState.LEAVING
        self._leaving.set()
        self._ending.set()

    async def run(self) -> None:
        """Runs until the partition was left, or failed permanently (see `error`)."""
        while not self._leaving.is_set():
            cursor = await self._acquire()
            if cursor is None:
                break
            await self._hold(cursor)
        if self._may_be_ours:
            await self._release_unconfirmed()

    # Acquiring

    async def _acquire(self) -> Cursor | None:
        """Returns the group's cursor, ours; None if the partition must be left first, or failed
        permanently."""
        waiting: tuple[int, float] | None = None
        while not self._leaving.is_set():
            try:
                stream = await self._context.streams.read_living_stream(
                    self._context.namespace, self.partition
                )
                slot = await self._context.cursors.read_slot(
                    self._context.namespace, stream, self._context.groups.name
                )
                present = slot.cursor
                if present is not None and await self._is_held_by_other(present):
                    now_s = trio.current_time()
                    if waiting is None or waiting[0] != present.epoch:
                        waiting = (present.epoch, now_s)
                    remaining_s = waiting[1] + self._context.hand_over_s + FORCE_MARGIN_S - now_s
                    if remaining_s > 0:
                        await self._wait_changed(stream, present, remaining_s)
                        continue
                    if not await self._is_still_assigned():
                        await self._pause(RETRY_S)
                        continue
                    _log.warning(
                        "group=%s partition=%s: member %s does not release it, taken by force",
                        present.name, self.partition, present.holder,
                    )  # fmt: skip
                return await self._take_cursor(stream, present, slot.version, slot.last_epoch)
            except MetadataConflict:
                await trio.lowlevel.checkpoint()  # another client came first: read again
            except (RetryableError, NoSuchLedger, NoSuchEntry) as error:
                _log.info("partition=%s: not acquired: %s", self.partition, error)
                await self._pause(RETRY_S)
            except LedgerError as error:
                self.error = error
                self._on_offer(self)
                return None
        return None

    async def _is_held_by_other(self, cursor: CursorMetadata) -> bool:
        if not cursor.holder or cursor.token == self._context.token:
            return False
        return await self._context.groups.token_of(cursor.holder) == cursor.token

    async def _is_still_assigned(self) -> bool:
        """Whether the partition is still ours, checked before a forced takeover: a watch may be
        late."""
        group = (await self._context.groups.read()).group
        return group is not None and group.assignment.get(self.partition) == self._context.member

    async def _take_cursor(
        self,
        stream: StreamMetadata,
        present: CursorMetadata | None,
        version: int | None,
        last_epoch: int,
    ) -> Cursor:
        """Acquires the cursor. Raises MetadataConflict if another client came first."""
        context, now_ms = self._context, self._context.client.now_ms()
        if present is None:
            position = await find(context.client, stream, self._start, context.namespace)
            present = new_cursor(stream, context.groups.name, position, last_epoch, now_ms)
        wanted = present.acquired(context.member, context.token, now_ms)
        self._may_be_ours = True
        try:
            version = await context.cursors.put(context.namespace, wanted, version)
        except (MetadataConflict, NoSuchCursor) as error:
            self._may_be_ours = False
            raise MetadataConflict(str(error)) from None
        return self._cursor(stream, wanted, version)

    def _cursor(self, stream: StreamMetadata, stored: CursorMetadata, version: int) -> Cursor:
        context = self._context
        return Cursor(
            context.client, context.namespace, stream, stored, version,
            token=context.token, commit_interval_ms=context.commit_interval_ms,
        )  # fmt: skip

    async def _wait_changed(
        self, stream: StreamMetadata, present: CursorMetadata, remaining_s: float
    ) -> None:
        """Waits until the holder releases the cursor or dies, or until this member must leave."""
        context = self._context

        async def wait_released() -> None:
            watch = context.cursors.watch(context.namespace, stream, present.name)
            async with aclosing(watch) as cursors:
                async for cursor in cursors:
                    if cursor is None or cursor.epoch != present.epoch or not cursor.holder:
                        return

        async def wait_dead() -> None:
            path = context.groups.member_path(present.holder)
            async with aclosing(context.client.store.watch(path)) as nodes:
                async for node in nodes:
                    if node is None or node.data != present.token.encode():
                        return

        with trio.move_on_after(remaining_s):
            async with open_background() as nursery:
                done = trio.Event()

                async def note(wait: Callable[[], Awaitable[object]]) -> None:
                    try:
                        await wait()
                    except RetryableError as error:
                        _log.info("partition=%s: checking again: %s", self.partition, error)
                        await trio.sleep(RETRY_S)
                    done.set()

                for wait in (wait_released, wait_dead, self._leaving.wait):
                    nursery.start_soon(note, wait)
                await done.wait()

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._leaving.wait()

    # Holding

    async def _hold(self, cursor: Cursor) -> None:
        """Offers batches until the partition must be left, or is lost."""
        self._delivered = cursor.position
        if not self._leaving.is_set():
            self._ending = trio.Event()
        self.is_suspended = False
        self.cursor, self.state = cursor, HoldState.HOLDING

        async def commit() -> None:
            await cursor.run()
            self._ending.set()
            self._drained.set()

        async with open_background() as nursery:
            nursery.start_soon(commit)
            feeding = trio.CancelScope()
            nursery.start_soon(self._feed, cursor.position, feeding)
            await self._ending.wait()
            self.state, self._offer = HoldState.LEAVING, None
            feeding.cancel()
            if cursor.error is None and cursor.position < self._delivered:
                self._drained = trio.Event()
                with trio.move_on_after(self._context.hand_over_s):
                    await self._drained.wait()
        await self._release(cursor)
        if isinstance(cursor.error, CursorMoved | NoSuchCursor):
            _log.info("partition=%s epoch=%d: lost: %s", self.partition, self.epoch, cursor.error)
        cursor.end()
        self._may_be_ours = False
        self.state = HoldState.WAITING

    async def _release(self, cursor: Cursor) -> None:
        while cursor.error is None:
            try:
                await cursor.release()
            except RetryableError as error:
                _log.info("partition=%s: not released: %s", self.partition, error)
                await trio.sleep(RETRY_S)
            except LedgerError:
                return  # another member has it already

    async def _release_unconfirmed(self) -> None:
        """Releases a cursor whose acquisition has an unknown outcome, when it is no longer
        wanted."""
        context = self._context
        for _ in range(_RELEASE_TRIES_MAX):
            try:
                stream = await context.streams.read_living_stream(context.namespace, self.partition)
                cursor, version, _ = await context.cursors.read_slot(
                    context.namespace, stream, context.groups.name
                )
                is_ours = cursor is not None and cursor.holder and cursor.token == context.token
                if is_ours and cursor is not None and version is not None:
                    await self._cursor(stream, cursor, version).release()
            except RetryableError:
                await trio.sleep(RETRY_S)
            except LedgerError:
                return  # another member has it, or there is no cursor
            else:
                return

    async def _feed(self, position: Position, scope: trio.CancelScope) -> None:
        context = self._context
        with scope:
            while True:
                try:
                    async with context.open_reader(self.partition, position) as reader:
                        while True:
                            batch = await reader.next_batch()
                            await self._offer_until_taken(batch)
                            position = batch.after
                except RetryableError as error:
                    _log.info("partition=%s: reading again: %s", self.partition, error)
                    await trio.sleep(RETRY_S)
                except LedgerError as error:
                    self.error = error
                    self._on_offer(self)
                    return

    async def _offer_until_taken(self, batch: RecordBatch) -> None:
        self._offer = batch
        while self._offer is not None:
            while not self.is_offering:  # noqa: ASYNC110 - as rare as a lost session
                await trio.sleep(RETRY_S)
            self._answered = trio.Event()
            self._on_offer(self)
            await self._answered.wait()
