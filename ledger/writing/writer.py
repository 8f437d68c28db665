"""LedgerWriter: appends to one ledger. Shell of `ledger.core.append`.

An append costs one header, one digest and two list appends; once per scheduler tick what has
gathered is joined and the same bytes go to all bookies of the write set. Acks come back as
runs of entries; callers are woken when the last add confirmed has passed their entry.
Replacing failed bookies is `ledger.writing.ensemble_change`, syncing what was not synced at once
`ledger.writing.force`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType

import trio

from ledger.core.metadata import LedgerMetadata, closed_by_writer
from ledger.errors import InvalidArgument, LedgerClosed, LedgerError, LedgerFenced
from ledger.frame_in_place import append_in_place
from ledger.wire.messages import Buffer
from ledger.writing.ensemble_sender import EnsembleSender
from ledger.writing.force import force
from ledger.writing.frames import ADD_START_BYTES, FrameHeads, as_bytes
from ledger.writing.send_loop import SendLoop
from ledger.writing.waiters import EntryWaiters, RoomWaiters

_SEND_BYTES = 128 * 1024
"""A burst of appends is sent in pieces of this size: they stay in the processor's cache."""


class LedgerWriter(EnsembleSender):
    """The only writer of one ledger; made by `LedgerClient.create_ledger`.

    Guarantees: entry ids are dense from 0; an entry is confirmed when `ack_quorum` bookies
    of its write set have fsynced it and all entries before it are confirmed. After an error
    the writer stays failed (`error`), and unconfirmed entries are *unknown*: recovery may
    find them.

    With `is_sync_deferred` bookies may acknowledge before they sync: `append` returns and
    `wait_confirmed` and `flush` are content when an ack quorum *has* the entries, which a power
    cut may still take. `force` makes them durable, and only then are they confirmed.
    """

    def __init__(
        self, metadata: LedgerMetadata, loop: SendLoop, *, is_sync_deferred: bool = False
    ) -> None:
        super().__init__(metadata, loop, is_sync_deferred=is_sync_deferred)
        self.is_closed = False
        self._is_closing = False
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self._refuses = False
        self.frame_overhead = ADD_START_BYTES + self.digest.size
        self.frame_heads = FrameHeads(self.digest.size, self._key)
        self._send_at = 0
        self._waiters = EntryWaiters()
        self._room_waiters = RoomWaiters()
        for index in range(metadata.ensemble_size):
            self.attach(index)
        loop.add(self)

    # ---- appending

    @property
    def has_room(self) -> bool:
        """Whether `append_nowait` would take an entry now."""
        core = self.core
        return (
            core.last_add_pushed - core.last_add_acknowledged < self._options.window_entries
            and self._bytes_pending < self._options.window_bytes
        )

    @property
    def _is_half_empty(self) -> bool:
        """Who waits for room is woken for half a window at once, not for each ack."""
        core = self.core
        return (
            2 * (core.last_add_pushed - core.last_add_acknowledged) <= self._options.window_entries
            and 2 * self._bytes_pending <= self._options.window_bytes
        )

    def append_nowait(self, payload: Buffer) -> int:
        """Queues an entry and returns its id; it is sent at the end of this scheduler tick.

        `payload` must not be changed afterwards. Raises trio.WouldBlock when the window
        (entries or bytes) is full, InvalidArgument if the payload is too large, and the
        writer's error if it failed or is closed.
        """
        core = self.core
        entry_id = core.last_add_pushed + 1
        if self.error is not None or self._refuses:
            raise self._failure()
        if payload.__class__ is not bytes:
            payload = as_bytes(payload)
        if (
            entry_id - core.last_add_acknowledged > self._options.window_entries
            or self._bytes_pending >= self._options.window_bytes
        ):
            raise trio.WouldBlock
        size = len(payload)
        head = self.frame_heads[size]
        core.last_add_pushed = entry_id
        self.length += size
        header, _ = self.digest.encode_entry(
            self.ledger_id, entry_id, core.last_add_confirmed, self.length, payload
        )
        stride = core.stride
        buffer = self._buffers[0 if stride == 1 else entry_id % stride]
        buffer.append(head + header)
        buffer.append(payload)
        pending = self._bytes_pending + size + self.frame_overhead
        self._bytes_pending = pending
        if not self.is_dirty:
            self._send_at = pending + _SEND_BYTES
            self._loop.schedule(self)
        elif pending >= self._send_at:
            # The bookies begin on these while the rest of the burst is made.
            self.send_gathered()
            self._send_at = pending + _SEND_BYTES
            self.is_dirty = True  # the loop still has this writer on its list
        return entry_id

    def append_frame_nowait(self, room_and_payload: bytearray) -> int:
        """`append_nowait` of a payload behind FRAME_ROOM_BYTES, sent at once from where it is."""
        return append_in_place(self, room_and_payload)

    @property
    def takes_frames(self) -> bool:  # for `append_in_place`: as they are made
        return self.wire_version == 2 and self.has_room and not (self._refuses or self.error)

    async def wait_room(self) -> None:
        """Returns when the window has room again; raises the writer's error if it failed."""
        while not self.has_room:
            if self.error is not None:
                raise self._failure()
            await self._room_waiters.wait()

    async def append(self, payload: Buffer) -> int:
        """Appends one entry and returns its id once it is confirmed.

        Waits while the window is full. If cancelled or failed after the entry was sent, its
        fate is unknown. Raises LedgerFenced, LedgerClosed, NotEnoughBookies, InvalidArgument.
        """
        while not self.has_room:
            await self.wait_room()
        entry_id = self.append_nowait(payload)
        await self.wait_confirmed(entry_id)
        return entry_id

    async def append_many(self, payloads: Iterable[Buffer]) -> int:
        """Appends all payloads in order; returns the last id once all are confirmed."""
        for payload in payloads:
            while not self.has_room:
                await self.wait_room()
            self.append_nowait(payload)
        last = self.last_add_pushed
        await self.wait_confirmed(last)
        return last

    async def wait_confirmed(self, entry_id: int) -> None:
        """Returns when `entry_id` and all before it are confirmed."""
        core = self.core
        if entry_id <= core.last_add_acknowledged:
            await trio.lowlevel.checkpoint()
            return
        if self.error is not None:
            raise self._failure()
        if entry_id > core.last_add_pushed:
            raise InvalidArgument(f"entry {entry_id} was not appended yet")
        await self._waiters.wait(entry_id)
        if entry_id > core.last_add_acknowledged:
            raise self._failure()

    async def flush(self) -> None:
        """Returns when everything appended so far is confirmed."""
        await self.wait_confirmed(self.core.last_add_pushed)

    async def force(self) -> int:
        """Returns when all that was acknowledged before is synced; the last add confirmed.

        Raises NotEnoughBookies (try again), and the writer's error if it failed.
        """
        await force(self, self._loop)
        if self.error is not None:
            raise self._failure()
        return self.core.last_add_confirmed

    # ---- confirmation

    def settle(self) -> None:
        """Moves the last add acknowledged as far as the acks allow and wakes who waits for it."""
        core = self.core
        before = core.last_add_acknowledged
        acknowledged = core.advance()
        if acknowledged == before or self.error is not None:
            return
        self._drop_acknowledged(acknowledged)
        self._waiters.wake(acknowledged)
        if self._room_waiters and self._is_half_empty:
            self._room_waiters.wake_all()
        if not self.is_sync_deferred:
            self.confirmed_moved()

    def confirmed_moved(self) -> None:
        """Whoever wants to know the last add confirmed is told."""
        core = self.core
        confirmed = core.last_add_confirmed
        if confirmed > self.lac_carried and self.is_lac_due:
            self._loop.schedule_explicit_lac(self)
        if self.on_confirmed is not None:
            self.on_confirmed(confirmed)

    # ---- end

    def fail(self, error: LedgerError) -> None:
        """The writer can never confirm anything again; whoever waits gets the error."""
        if self.error is None:
            self._end(error)
            if self.on_failed is not None:
                self.on_failed(error)

    def _end(self, error: LedgerError) -> None:
        self.error = error
        self._leave()
        self._waiters.wake_all()
        self._room_waiters.wake_all()

    def _failure(self) -> LedgerError:
        """A new exception each time: one instance raised in many tasks mixes tracebacks."""
        if self.error is None:
            return LedgerClosed(f"ledger {self.ledger_id} is being closed")
        return type(self.error)(*self.error.args)

    async def close(self) -> LedgerMetadata:
        """Waits until all is confirmed, then fixes the end of the ledger for ever.

        Idempotent; after MetadataUnavailable it can be called again. Raises the writer's error
        if it failed; LedgerFenced if another client recovers the ledger, or closed it elsewhere.
        A fenced writer with nothing on its way closes it all the same where nobody recovers it, and
        finds it closed where another client did so at the same end: a bookie that says "fenced"
        late must not make the difference.
        """
        if self.is_closed:
            return self.metadata
        if not self._is_closing:
            self._refuses = True  # nothing may come after what is flushed here
            try:
                await self.flush()
                if self.is_sync_deferred and self.error is None:
                    await self.force()
            finally:
                self._refuses = False
            if self.error is None:
                end = self.core.last_add_confirmed
                self._end(LedgerClosed(f"ledger {self.ledger_id} is closed at entry {end}"))
            elif not self._is_fenced_when_done:
                raise self._failure()
            self._is_closing = True
        own, last, length = self.metadata.last_fragment, self.core.last_add_confirmed, self.length
        self.metadata = await self._loop.ledgers.update(
            self.ledger_id, lambda stored: closed_by_writer(stored, own, last, length)
        )
        self.is_closed = True
        return self.metadata

    @property
    def _is_fenced_when_done(self) -> bool:
        """Fenced with nothing on its way: where the ledger ends, the metadata can still say."""
        core = self.core
        return (
            isinstance(self.error, LedgerFenced) and core.last_add_confirmed == core.last_add_pushed
        )

    def abandon(self) -> None:
        """Stops writing without closing the ledger: it stays open until somebody recovers it."""
        self.send_lac()
        self.fail(
            LedgerClosed(
                f"the writer of ledger {self.ledger_id} was abandoned; confirmed up to entry "
                f"{self.last_add_confirmed}"
            )
        )

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        elif self._is_closing or not isinstance(self.error, LedgerClosed):
            await self.close()
