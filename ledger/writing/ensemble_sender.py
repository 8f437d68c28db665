"""Sends the entries of one ledger to its bookies, and processes their acks. Base of the writer.

It has the connections, the frames sent and not yet confirmed, and the acks of each bookie; it knows
nothing of callers. Frames are joined once per scheduler tick and class of entries, and the same
bytes are sent to all bookies of the write set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from ledger.connection.authorization import unauthorized
from ledger.connection.connection import BookieConnection
from ledger.core.append import AppendCore
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.metadata import LedgerMetadata
from ledger.core.permissions import Role
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    LedgerFenced,
    OperationTimeout,
    Status,
    error_of_status,
)
from ledger.wire import v2
from ledger.wire.messages import Buffer
from ledger.writing import frames as add_frames
from ledger.writing.ensemble_change import EnsembleChange
from ledger.writing.explicit_lac import ExplicitLac
from ledger.writing.frames import SentFrames
from ledger.writing.overload_retry import OverloadRetry
from ledger.writing.receipts import EntryAcks
from ledger.writing.send_loop import SendLoop


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """Counts of one writer since it was opened, and what is in flight."""

    entries: int
    bytes: int
    entries_pending: int
    bytes_pending: int
    ensemble_changes: int


class EnsembleSender:
    """The part of `LedgerWriter` that faces the bookies. Its `append_nowait` fills the buffers.

    Together the two have fewer than 30 attributes. With more, CPython does not share the keys of
    instances, and each attribute access costs more; the append path does little else.
    """

    def __init__(
        self, metadata: LedgerMetadata, loop: SendLoop, *, is_sync_deferred: bool = False
    ) -> None:
        self.metadata = metadata
        self.ledger_id = metadata.ledger_id
        self.error: LedgerError | None = None
        self.length = 0
        self.core = AppendCore(
            metadata.ensemble_size,
            metadata.write_quorum,
            metadata.ack_quorum,
            is_sync_deferred=is_sync_deferred,
        )
        self.connections: list[BookieConnection | None] = [None] * metadata.ensemble_size
        self.digest = Digest(metadata.digest_type or DigestType.CRC32C, metadata.password)
        self.is_dirty = False
        self._loop = loop
        self._options = loop.options
        self._overload_retry = OverloadRetry(self)
        self._change = EnsembleChange(self, loop)
        self._key = master_key(metadata.password)
        self.explicit_lac = ExplicitLac(self, loop, self._key)
        self._buffers: list[list[Buffer]] = [[] for _ in range(self.core.stride)]
        self._sent: deque[SentFrames] = deque()
        self._bytes_pending = 0
        self._progress: list[tuple[int, float]] = [(-1, 0.0)] * metadata.ensemble_size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ledger {self.ledger_id}>"

    @property
    def last_add_pushed(self) -> int:
        """Id of the newest entry handed to `append`; -1 for none."""
        return self.core.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """Every entry up to this id is durable on its ack quorum; -1 for none."""
        return self.core.last_add_confirmed

    @property
    def last_add_acknowledged(self) -> int:
        """Every entry up to this id has its ack quorum. Confirmed too, unless sync is deferred."""
        return self.core.last_add_acknowledged

    @property
    def is_sync_deferred(self) -> bool:
        """Whether bookies may acknowledge entries before they are durable."""
        return self.core.is_sync_deferred

    @property
    def wire_version(self) -> int:
        """The protocol in which adds are sent; only v3 has deferred sync."""
        return 3 if self.core.is_sync_deferred else self._options.wire_version

    @property
    def bytes_pending(self) -> int:
        """Bytes of frames that are not confirmed; the window bounds them."""
        return self._bytes_pending

    def fail(self, error: LedgerError) -> None:
        """Ends the writer: it can never write to the ledger again."""
        raise NotImplementedError

    def settle(self) -> None:
        """All acks of a chunk were reported: the last add confirmed may advance."""
        raise NotImplementedError

    def confirmed_moved(self) -> None:
        """The last add confirmed has advanced."""
        raise NotImplementedError

    def _drop_acknowledged(self, acknowledged: int) -> None:
        sent = self._sent
        while sent and sent[0].last_entry_id <= acknowledged:
            self._bytes_pending -= sent.popleft().bytes_held
        if not sent and not self.is_dirty:
            self._bytes_pending = 0

    def statistics(self) -> WriterStatistics:
        return WriterStatistics(
            entries=self.core.last_add_confirmed + 1,
            bytes=self.length,
            entries_pending=self.core.last_add_pushed - self.core.last_add_acknowledged,
            bytes_pending=self._bytes_pending,
            ensemble_changes=self._change.count,
        )

    # ---- sending (called by the send loop, once per tick)

    def send_after(self, fill: Callable[[], None]) -> None:
        """Calls `fill`, which calls `append_nowait`, and sends what was gathered without waiting
        for the end of the scheduler tick."""
        self._loop.send_after(fill)

    def send_gathered(self) -> None:
        """Hands the entries that `append_nowait` gathered to the connections."""
        self.is_dirty = False
        if self.error is not None:
            return
        core = self.core
        for entry_class, buffer in enumerate(self._buffers):
            if not buffer:
                continue
            frames = b"".join(buffer)
            lac_carried = v2.lac_of_add(buffer[-2])  # the buffers hold payloads apart
            bytes_held = len(frames)
            if self.wire_version == 3:
                frames = add_frames.to_v3(buffer, is_sync_deferred=self.is_sync_deferred)
            buffer.clear()
            # The newest entry of this class is at most stride - 1 before the newest of all.
            last = core.last_add_pushed - (core.last_add_pushed - entry_class) % core.stride
            # The LAC at the time the newest entry was made: it may have advanced since.
            self.send_frames(last, frames, bytes_held, lac_carried)

    def send_frames(self, last: int, frames: Buffer, bytes_held: int, lac: int) -> None:
        entry_class = last % self.core.stride
        self._sent.append(SentFrames(entry_class, last, frames, bytes_held))
        for index in self.core.write_set(entry_class):
            self._send(index, frames)
        if self.core.failed:
            self._change.resume()
        self.explicit_lac.carried(lac)

    def _send(self, index: int, frames: Buffer) -> None:
        connection = self.connections[index]
        if connection is not None and index not in self.core.failed:
            connection.send_adds(frames)

    def resend(self, indices: tuple[int, ...]) -> None:
        """Sends all unconfirmed entries to the bookies that are new at `indices`."""
        for sent in self._sent:
            members = self.core.write_set(sent.entry_class)
            for index in indices:
                if index in members:
                    self._send(index, sent.frames)

    # ---- answers (AckSink)

    def acked(self, bookie: str, first: int, last: int, *, is_unpolled: bool = False) -> None:
        index = self._index_of(bookie)
        if index is None:
            return
        if is_unpolled is not (index in self.explicit_lac.hints.unpolled):
            self.explicit_lac.said(index, is_unpolled=is_unpolled)
        core = self.core
        try:
            core.acked(index, first, last)
        except LedgerError as error:
            self.bookie_failed(index, error)
            return
        if core.ack_log.entries:
            core.ack_log.acked(index, bookie, first, last, trio.current_time())

    def watch_acks(self, entry_id: int) -> EntryAcks:
        """Begins to record which bookies acknowledge an entry; called right after its append.

        Raises InvalidArgument if the entry is not in flight (not appended, or confirmed already),
        or if sync is deferred: then an ack does not mean that the entry is durable.
        """
        core = self.core
        digest = None
        if not self.is_sync_deferred and core.last_add_confirmed < entry_id <= core.last_add_pushed:
            digest = self._stored_digest(entry_id)
        if digest is None:
            raise InvalidArgument(
                f"entry {entry_id} of ledger {self.ledger_id} is not in flight to bookies that "
                f"sync at once: its acks cannot be watched. Confirmed are 0.."
                f"{core.last_add_confirmed}, sent 0..{core.last_add_pushed}"
            )
        bookies = self.metadata.last_fragment.bookies
        watched = core.watch(entry_id, bookies, trio.current_time())
        return EntryAcks(self, watched, self.digest.digest_type, digest)

    def _stored_digest(self, entry_id: int) -> bytes | None:
        """Returns the digest in the frame of an unconfirmed entry; None if the writer failed."""
        stride, size = self.core.stride, self.digest.size
        gathered = self._buffers[entry_id % stride]
        # Each entry is two pieces; the newest of its class is last.
        at = -2 * ((self.core.last_add_pushed - entry_id) // stride + 1)
        if -at <= len(gathered):
            return add_frames.digest_in(gathered[at], size, 2)
        frame = add_frames.sent_frame(self._sent, entry_id, self.core.stride)
        return None if frame is None else add_frames.digest_in(frame, size, self.wire_version)

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        what = f"entry {entry_id} of ledger {self.ledger_id} at bookie {bookie}"
        if status is Status.FENCED:
            self.fail(
                LedgerFenced(
                    f"{what}: another client fenced the ledger to recover it; "
                    f"confirmed up to entry {self.last_add_confirmed}"
                )
            )
        elif status is Status.UNAUTHORIZED and not self._is_key_foreign_at(bookie):
            said = f"{what}: the key of the ledger is another one, or this client may not write"
            self.fail(unauthorized(self._loop.pool, self.metadata, Role.WRITE, said))
        elif status is Status.TOO_MANY_REQUESTS and self._retry_later(bookie, entry_id):
            return
        elif (index := self._index_of(bookie)) is not None:
            self.bookie_failed(index, error_of_status(status, what))

    def _is_key_foreign_at(self, bookie: str) -> bool:
        """Whether a bookie that refuses the key has the id under another one, so that the writer
        continues without it. Otherwise this client may not write."""
        index = self._index_of(bookie)
        if index is None:
            return True  # it was replaced meanwhile
        return self.core.key_refused(index, bookie, self.metadata.last_fragment.first_entry_id)

    def _retry_later(self, bookie: str, entry_id: int) -> bool:
        """Whether the bookie gets the entry again, or need not, having acknowledged it before."""
        index = self._index_of(bookie)
        if index is None or entry_id <= self.core.acked_up_to(index):
            return True  # it acknowledged the same entry before
        if entry_id <= self.core.last_add_acknowledged:
            return False
        frame = add_frames.sent_frame(self._sent, entry_id, self.core.stride)
        if frame is None or self._loop.nursery is None:
            return False
        self._overload_retry.refused(index, bookie, entry_id, frame, self._loop.nursery)
        return True

    def send_again(self, index: int, bookie: str, frames: Buffer) -> bool:
        """Sends frames to an overloaded bookie again; False if it was replaced."""
        if self.error is not None or self.metadata.last_fragment.bookies[index] != bookie:
            return False
        self._send(index, frames)
        return index not in self.core.failed

    def lost(self, bookie: str, error: LedgerError) -> None:
        index = self._index_of(bookie)
        if index is not None:
            self.bookie_failed(index, error)

    def _index_of(self, bookie: str) -> int | None:
        bookies = self.metadata.fragments[-1].bookies  # hot: one call per ack less
        return bookies.index(bookie) if bookie in bookies else None

    # ---- bookies

    def attach(self, index: int) -> None:
        """Begins to use the connection to the bookie that is now at `index`."""
        bookie = self.metadata.last_fragment.bookies[index]
        self._progress[index] = (-1, self._loop.watched_s)
        try:
            connection = self._loop.pool.connection(bookie, self.wire_version)
        except LedgerError as error:
            self.connections[index] = None
            self.bookie_failed(index, error)
            return
        self.connections[index] = connection
        if index in self.explicit_lac.hints.unpolled:
            self.explicit_lac.said(index, is_unpolled=False)
        connection.sinks[self.ledger_id] = self

    def detach(self, index: int) -> None:
        """Stops using the connection to the bookie at `index`; its late acks are dropped."""
        connection = self.connections[index]
        if connection is not None and connection.sinks.get(self.ledger_id) is self:
            del connection.sinks[self.ledger_id]
        self.connections[index] = None

    def bookie_failed(self, index: int, error: LedgerError) -> None:
        """Stops using the bookie at `index` and looks for a replacement in the background."""
        if self.error is None and self.core.fail(index):
            self.detach(index)
            self._change.begin(index, error)

    def check_progress(self, now_s: float) -> None:
        """Fails bookies that acknowledged nothing for the add timeout, by the loop's clock."""
        core = self.core
        for index, connection in enumerate(self.connections):
            if connection is None or index in core.failed:
                continue
            mark = core.acked_up_to(index)
            seen, since_s = self._progress[index]
            if mark >= core.last_add_pushed or mark != seen:
                self._progress[index] = (mark, now_s)
            elif now_s - since_s > self._options.add_timeout_s:
                connection.close(
                    OperationTimeout(
                        f"bookie {connection.bookie} acknowledged nothing for "
                        f"{now_s - since_s:.1f} s, entries from {mark + 1} wait"
                    )
                )

    def _leave(self) -> None:
        for index in range(len(self.connections)):
            self.detach(index)
        self._loop.remove(self)
        self._sent.clear()
        for buffer in self._buffers:
            buffer.clear()
        self._bytes_pending = 0
