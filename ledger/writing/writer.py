"""LedgerWriter: appends to one ledger. Shell of `ledger.core.append`.

An append costs one header, one digest and two list appends. Once per scheduler tick the frames
that have gathered are joined, and the same bytes are sent to all bookies of the write set. Acks
arrive as runs of entries; a caller is woken when the last add confirmed reaches its entry.
`ledger.writing.ensemble_change` replaces failed bookies, `ledger.writing.force` syncs entries
that were acknowledged before they were synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from ledger.core.metadata import LedgerMetadata
from ledger.errors import InvalidArgument, LedgerClosed, LedgerError
from ledger.runtime.parking import ThresholdWaiters
from ledger.wire.messages import Buffer
from ledger.writing.closing import Closing
from ledger.writing.ensemble_sender import EnsembleSender
from ledger.writing.force import force
from ledger.writing.frames import ADD_START_BYTES, FRAME_ROOM_BYTES, FrameHeads, as_bytes
from ledger.writing.send_loop import SendLoop

_SEND_BYTES = 128 * 1024
"""A burst of appends is sent in pieces of this size, which stay in the processor's cache."""


class LedgerWriter(EnsembleSender):
    """The only writer of one ledger; made by `LedgerClient.create_ledger`.

    Guarantees: entry ids are dense and begin at 0. An entry is confirmed when `ack_quorum` bookies
    of its write set have fsynced it and all entries before it are confirmed. After an error the
    writer stays failed (`error`), and the outcome of unconfirmed entries is *unknown*.
    With `is_sync_deferred` an ack quorum *has* the entries when `append`, `wait_confirmed` and
    `flush` return, but a power failure may lose them: `force` confirms them.
    """

    def __init__(
        self, metadata: LedgerMetadata, loop: SendLoop, *, is_sync_deferred: bool = False
    ) -> None:
        super().__init__(metadata, loop, is_sync_deferred=is_sync_deferred)
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self.refuses = False
        self._closing = Closing(self, loop)
        self._frame_overhead = ADD_START_BYTES + self.digest.size
        self._frame_heads = FrameHeads(self.digest.size, self._key)
        self._send_at = 0
        self._waiters = ThresholdWaiters()
        self._room_waiters = trio.lowlevel.ParkingLot()
        for index in range(metadata.ensemble_size):
            self.attach(index)
        loop.add(self)

    # ---- appending

    @property
    def is_closed(self) -> bool:
        """Whether the end of the ledger is stored."""
        return self._closing.is_done

    @property
    def has_room(self) -> bool:
        """Whether `append_nowait` would accept an entry now."""
        core = self.core
        return (
            core.last_add_pushed - core.last_add_acknowledged < self._options.window_entries
            and self._bytes_pending < self._options.window_bytes
        )

    @property
    def _is_half_empty(self) -> bool:
        """Tasks that wait for the window are woken once half of it is free, not for each ack."""
        core = self.core
        return (
            2 * (core.last_add_pushed - core.last_add_acknowledged) <= self._options.window_entries
            and 2 * self._bytes_pending <= self._options.window_bytes
        )

    def append_nowait(self, payload: Buffer) -> int:
        """Queues an entry and returns its id; it is sent at the end of this scheduler tick.

        `payload` must not be changed afterwards. Raises trio.WouldBlock if the window is full,
        InvalidArgument if the payload is too large, and the writer's error if it failed.
        """
        core = self.core
        entry_id = core.last_add_pushed + 1
        if self.error is not None or self.refuses:
            raise self.failure()
        if payload.__class__ is not bytes:
            payload = as_bytes(payload)
        if (
            entry_id - core.last_add_acknowledged > self._options.window_entries
            or self._bytes_pending >= self._options.window_bytes
        ):
            raise trio.WouldBlock
        size = len(payload)
        head = self._frame_heads[size]
        core.last_add_pushed = entry_id
        self.length += size
        header, _ = self.digest.encode_entry(
            self.ledger_id, entry_id, core.last_add_confirmed, self.length, payload
        )
        stride = core.stride
        buffer = self._buffers[0 if stride == 1 else entry_id % stride]
        buffer.append(head + header)
        buffer.append(payload)
        pending = self._bytes_pending + size + self._frame_overhead
        self._bytes_pending = pending
        if not self.is_dirty:
            self._send_at = pending + _SEND_BYTES
            self._loop.schedule(self)
        elif pending >= self._send_at:
            # The bookies work on these while the rest of the burst is produced.
            self.send_gathered()
            self._send_at = pending + _SEND_BYTES
            self.is_dirty = True  # the loop still has this writer on its list
        return entry_id

    def append_frame_nowait(self, room_and_payload: bytearray) -> int:
        """Appends a payload that follows FRAME_ROOM_BYTES of free space, where its frame is built.

        It is sent at once and not copied: a copy of a large payload costs as much as the rest of
        an append. The buffer must not change before the entry is confirmed. Raises what
        `append_nowait` raises.
        """
        payload = memoryview(room_and_payload)[FRAME_ROOM_BYTES:]
        if self.is_dirty:
            self.send_gathered()  # earlier entries go out first
            self.is_dirty = True  # the loop still has this writer on its list
        if self.wire_version != 2 or not self.has_room or self.refuses or self.error:
            return self.append_nowait(payload)  # raises, or copies
        core, overhead = self.core, self._frame_overhead
        head = self._frame_heads[len(payload)]
        entry_id = core.last_add_pushed = core.last_add_pushed + 1
        self.length += len(payload)
        header, _ = self.digest.encode_entry(
            self.ledger_id, entry_id, core.last_add_confirmed, self.length, payload
        )
        frame = memoryview(room_and_payload)[FRAME_ROOM_BYTES - overhead :]
        frame[:overhead] = head + header
        self._bytes_pending += len(frame)
        self.send_frames(entry_id, frame, len(frame), core.last_add_confirmed)
        return entry_id

    async def wait_room(self) -> None:
        """Returns when the window accepts an entry; raises the writer's error if it failed."""
        while not self.has_room:
            if self.error is not None:
                raise self.failure()
            await self._room_waiters.park()

    async def append(self, payload: Buffer) -> int:
        """Appends one entry and returns its id once it is confirmed.

        Waits while the window is full. If it is cancelled or fails after the entry was sent, the
        outcome is unknown. Raises LedgerFenced, LedgerClosed, NotEnoughBookies, InvalidArgument.
        """
        while not self.has_room:
            await self.wait_room()
        entry_id = self.append_nowait(payload)
        await self.wait_confirmed(entry_id)
        return entry_id

    async def append_many(self, payloads: Iterable[Buffer]) -> int:
        """Appends all payloads in order; returns the last entry's id once all are confirmed."""
        for payload in payloads:
            while not self.has_room:
                await self.wait_room()
            self.append_nowait(payload)
        last = self.last_add_pushed
        await self.wait_confirmed(last)
        return last

    async def wait_confirmed(self, entry_id: int) -> None:
        """Returns when `entry_id` and all entries before it are confirmed."""
        core = self.core
        if entry_id <= core.last_add_acknowledged:
            await trio.lowlevel.checkpoint()
            return
        if self.error is not None:
            raise self.failure()
        if entry_id > core.last_add_pushed:
            raise InvalidArgument(f"entry {entry_id} was not appended yet")
        await self._waiters.wait(entry_id)
        if entry_id > core.last_add_acknowledged:
            raise self.failure()

    async def flush(self) -> None:
        """Returns when everything appended so far is confirmed."""
        await self.wait_confirmed(self.core.last_add_pushed)

    async def force(self) -> int:
        """Returns the last add confirmed once all entries acknowledged before are synced.

        Raises NotEnoughBookies (retry), and the writer's error if it failed.
        """
        await force(self, self._loop)
        if self.error is not None:
            raise self.failure()
        return self.core.last_add_confirmed

    # ---- confirmation

    def settle(self) -> None:
        """Advances the last add acknowledged as far as the acks allow, and wakes the waiters."""
        core = self.core
        before = core.last_add_acknowledged
        acknowledged = core.advance()
        if acknowledged == before or self.error is not None:
            return
        self._drop_acknowledged(acknowledged)
        self._waiters.wake(acknowledged)
        if self._room_waiters and self._is_half_empty:
            self._room_waiters.unpark_all()
        if not self.is_sync_deferred:
            self.confirmed_moved()

    def confirmed_moved(self) -> None:
        """Notifies bookies and `on_confirmed` that the last add confirmed has moved."""
        core = self.core
        confirmed = core.last_add_confirmed
        self.explicit_lac.confirmed_moved()
        if self.on_confirmed is not None:
            self.on_confirmed(confirmed)

    # ---- end

    def fail(self, error: LedgerError) -> None:
        """Ends the writer: it can never confirm an entry again, and all waits raise the error."""
        if self.error is None:
            self.end(error)
            if self.on_failed is not None:
                self.on_failed(error)

    def end(self, error: LedgerError) -> None:
        self.error = error
        self._leave()
        self._waiters.wake_all()
        self._room_waiters.unpark_all()

    def failure(self) -> LedgerError:
        """Returns a new exception: one instance raised in many tasks would mix tracebacks."""
        if self.error is None:
            return LedgerClosed(f"ledger {self.ledger_id} is being closed")
        return type(self.error)(*self.error.args)

    async def close(self) -> LedgerMetadata:
        """Waits until all entries are confirmed, then fixes the end of the ledger permanently.

        Idempotent; it can be called again after MetadataUnavailable. Raises the writer's error if
        it failed, and LedgerFenced if another client recovers the ledger or closed it at another
        entry. A fenced writer with nothing in flight succeeds if no client recovers the ledger, or
        one closed it at the same entry: a late "fenced" must not change the outcome.
        """
        return await self._closing.close()

    async def prepare_close(self) -> LedgerMetadata:
        """Waits until all entries are confirmed, and returns the metadata that fix the end.

        For a caller that stores them by a transaction of its own, in place of `metadata`, and
        calls `note_closed` after it. An ensemble change replaces `metadata`, and gives what is
        stored another version. If that fails, or its outcome is not known, `close` may be
        called all the same. Raises what `close` raises.
        """
        return await self._closing.prepare()

    def note_closed(self, metadata: LedgerMetadata) -> None:
        """Notes that what `prepare_close` returned is stored, or may be. Idempotent."""
        self._closing.note(metadata)

    def abandon(self) -> None:
        """Stops writing without closing the ledger, which stays open until it is recovered."""
        self.explicit_lac.send_all()
        end = self.last_add_confirmed
        why = f"the writer of ledger {self.ledger_id} was abandoned; confirmed up to entry {end}"
        self.fail(LedgerClosed(why))

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None:
            self.abandon()
        elif self._closing.has_begun or not isinstance(self.error, LedgerClosed):
            await self.close()
