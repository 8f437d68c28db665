"""Takeover and roll of a stream as one state machine without I/O: who may write, on which ledger.

`Takeover` ends the open segment and begins the next one in a single change of metadata, at the
epoch it holds; a takeover first raises the epoch. The machine emits one action at a time and
receives its outcome as an event. Must never begin a segment before the end of the old one is known,
nor at an epoch that is not its own. Shell: stream/takeover.py.

    takeover: read -> store epoch+1 -> end old ledger (recovery) -> make ledger -> store -> done
    roll:     end old ledger (close) -> make ledger -> store -> done
    a conflict or an unknown outcome of a store leads to a read, and the machine continues there
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from ledger.errors import LedgerError, MetadataConflict
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.errors import EpochMismatch, NoSuchStream, TakenOver


@dataclass(frozen=True, slots=True)
class ReadStream:
    """Read the stream's metadata; the answer is StreamRead."""


@dataclass(frozen=True, slots=True)
class StoreStream:
    """Store if the version is still this; the answer is StreamStored, StoreConflicted or
    StoreUnknown."""

    stream: StreamMetadata
    version: int


@dataclass(frozen=True, slots=True)
class EndLedger:
    """Fix the end of this ledger, by recovery or by closing our own; the answer is LedgerEnded."""

    ledger_id: int
    first_sequence: int
    is_recovery: bool


@dataclass(frozen=True, slots=True)
class MakeLedger:
    """Make a ledger, or take the one made ahead; the answer is LedgerMade.

    `spent` is a ledger that was made before, and that a commit ended before anything was sent to
    it.
    """

    prepared: int | None
    spent: int | None = None


@dataclass(frozen=True, slots=True)
class StreamRead:
    stream: StreamMetadata
    version: int


@dataclass(frozen=True, slots=True)
class StreamStored:
    """`stream` is what was stored, if it differs: older segments are in pages then."""

    version: int
    stream: StreamMetadata | None = None


@dataclass(frozen=True, slots=True)
class StoreConflicted:
    """Another client changed the metadata first."""


@dataclass(frozen=True, slots=True)
class StoreUnknown:
    """The store did not answer: the change may have happened."""


@dataclass(frozen=True, slots=True)
class LedgerEnded:
    end: SegmentEnd


@dataclass(frozen=True, slots=True)
class LedgerGone:
    """The ledger to be ended does not exist: another writer deleted it, or it was lost."""

    error: LedgerError


@dataclass(frozen=True, slots=True)
class LedgerMade:
    ledger_id: int


Action = ReadStream | StoreStream | EndLedger | MakeLedger
Event = (
    StreamRead
    | StreamStored
    | StoreConflicted
    | StoreUnknown
    | LedgerEnded
    | LedgerGone
    | LedgerMade
)

_EVENTS_REMEMBERED = 64


class _Step(enum.Enum):
    NEW = "new"
    READING_TO_TAKE = "reading the stream to take it over"
    STORING_EPOCH = "storing the new epoch"
    ENDING = "ending the old ledger"
    MAKING = "making the next ledger"
    STORING = "publishing the new segment"
    READING_AGAIN = "reading the outcome of the change"
    DONE = "done"


class Takeover:
    """The state machine of a takeover or a roll.

    With `epoch` None it takes the stream over (with `if_epoch` only a stream at that epoch);
    otherwise `epoch` is the one this writer holds. `begins_next` False only seals. `is_recovery`
    says how to end the ledger (a takeover always recovers). A roll needs `stream` and `version` as
    last read. `begins_at` are number and first sequence of the new segment if entries were sent to
    it already: it begins there, or the roll fails (MetadataConflict).
    """

    def __init__(
        self,
        name: str,
        now_ms: int,
        *,
        epoch: int | None = None,
        stream: StreamMetadata | None = None,
        version: int = -1,
        is_recovery: bool = True,
        begins_next: bool = True,
        if_epoch: int | None = None,
        begins_at: tuple[int, int] | None = None,
    ) -> None:
        assert (epoch is None) == (stream is None), "only a roll starts from the stream"
        assert epoch is None or if_epoch is None, "a roll knows its epoch"
        self.name = name
        self.epoch = epoch
        self.stream = stream
        self.version = version
        self.ended: SegmentEnd | None = None
        self.ends: dict[int, int] = {}
        """Ledgers of this writer that another client ended, as far as is known, and their last
        entries."""
        self.made: int | None = None
        self.failure: LedgerError | None = None
        self._now_ms = now_ms
        self._is_recovery = is_recovery or epoch is None
        self._begins_next = begins_next
        self._if_epoch = if_epoch
        self._begins_at = begins_at
        self.restores = 0
        """The known restores of the metadata, set with the ledger: a new segment begins behind what
        they may have lost."""
        self._old_ledger: int | None = None
        self._gone: LedgerError | None = None
        self._target: StreamMetadata | None = None
        self._step = _Step.NEW
        self._history: deque[str] = deque(maxlen=_EVENTS_REMEMBERED)

    @property
    def finished(self) -> bool:
        return self._step is _Step.DONE

    @property
    def result(self) -> StreamMetadata:
        """The metadata as stored. Only when finished.

        Raises TakenOver if the epoch is no longer ours, EpochMismatch if it is not the requested
        one, NoSuchStream if the stream was deleted.
        """
        assert self.finished, self.history()
        if self.failure is not None:
            raise self.failure
        assert self.stream is not None, self.history()
        return self.stream

    def history(self) -> str:
        """The last events and actions, for logs and failed assertions."""
        return "\n".join((*self._history, f"now {self._step.value}"))

    def start(self) -> tuple[Action, ...]:
        assert self._step is _Step.NEW, self.history()
        if self.stream is None:
            return self._go(_Step.READING_TO_TAKE, ReadStream())
        self._note(self.stream)
        return self._end_old()

    def handle(self, event: Event) -> tuple[Action, ...]:
        """The next action; none when finished."""
        self._history.append(f"<- {type(event).__name__}")
        match self._step, event:
            case _Step.READING_TO_TAKE, StreamRead(stream, version):
                return self._take(stream, version)
            case _Step.STORING_EPOCH, StreamStored(version, stored):
                self.version = version
                self.stream = stored or self._target
                assert self.stream is not None, self.history()
                self.epoch = self.stream.epoch
                return self._end_old()
            case _Step.STORING_EPOCH, StoreConflicted() | StoreUnknown():
                # If our own change did happen, another takeover costs one epoch number.
                return self._go(_Step.READING_TO_TAKE, ReadStream())
            case _Step.ENDING, LedgerEnded(end):
                self.ended = end
                assert self._old_ledger is not None, self.history()
                self.ends[self._old_ledger] = end.last_entry
                return self._make()
            case _Step.ENDING, LedgerGone(error):
                self._gone = error
                return self._go(_Step.READING_AGAIN, ReadStream())
            case _Step.MAKING, LedgerMade(ledger_id):
                self.made = ledger_id
                return self._store()
            case _Step.STORING, StreamStored(version, stored):
                self.version = version
                self.stream = stored or self._target
                return self._go(_Step.DONE)
            case _Step.STORING, StoreConflicted() | StoreUnknown():
                return self._go(_Step.READING_AGAIN, ReadStream())
            case _Step.READING_AGAIN, StreamRead(stream, version):
                return self._look_again(stream, version)
        raise AssertionError(f"event {event} does not fit the step\n{self.history()}")

    def _go(self, step: _Step, *actions: Action) -> tuple[Action, ...]:
        self._step = step
        names = ", ".join(type(action).__name__ for action in actions)
        self._history.append(f"-> {names or 'finished'}")
        return actions

    def _fail(self, error: LedgerError) -> tuple[Action, ...]:
        self.failure = error
        return self._go(_Step.DONE)

    def _take(self, stream: StreamMetadata, version: int) -> tuple[Action, ...]:
        if stream.is_deleted:
            return self._fail(NoSuchStream(f"stream {self.name!r} was deleted"))
        if self._if_epoch is not None and stream.epoch != self._if_epoch:
            # Also if our own change happened unnoticed: that of another writer looks the same.
            return self._fail(EpochMismatch(self.name, self._if_epoch, stream.epoch))
        self._target = stream.taken_over()
        return self._go(_Step.STORING_EPOCH, StoreStream(self._target, version))

    def _end_old(self) -> tuple[Action, ...]:
        assert self.stream is not None, self.history()
        segment = self.stream.open_segment
        self._old_ledger = None if segment is None else segment.ledger_id
        if segment is None:
            return self._make()
        return self._go(
            _Step.ENDING,
            EndLedger(segment.ledger_id, segment.first_sequence, self._is_recovery),
        )

    def _make(self, spent: int | None = None) -> tuple[Action, ...]:
        assert self.stream is not None, self.history()
        if self._begins_next:
            return self._go(_Step.MAKING, MakeLedger(self.stream.prepared, spent))
        if self._old_ledger is None and self.stream.interrupted is None:
            return self._go(_Step.DONE)
        return self._store()

    def _store(self) -> tuple[Action, ...]:
        assert self.stream is not None, self.history()
        assert self.epoch is not None, self.history()
        target = self.stream
        if self._old_ledger is not None:
            assert self.ended is not None, self.history()
            target = target.sealed(self.epoch, self.ended, self._now_ms)
        if self._begins_next:
            assert self.made is not None, self.history()
            target = target.continued_after(self.restores)
            target = target.begun(self.epoch, self.made, self._now_ms)
            begun = target.segments[-1]
            if self._begins_at not in (None, (begun.number, begun.first_sequence)):
                return self._fail(self._moved_on())
        else:
            target = target.released(self.epoch)
        self._target = target
        return self._go(_Step.STORING, StoreStream(target, self.version))

    def _note(self, stream: StreamMetadata) -> None:
        if stream.interrupted is not None:
            self.ends[stream.interrupted.ledger_id] = stream.interrupted.last_entry

    def _moved_on(self) -> MetadataConflict:
        return MetadataConflict(
            f"stream {self.name!r}: a batch was committed while its segment was rolled"
        )

    def _look_again(self, stream: StreamMetadata, version: int) -> tuple[Action, ...]:
        assert self.epoch is not None, self.history()
        assert self.stream is not None, self.history()
        if stream.is_deleted or stream.created_ms != self.stream.created_ms:
            return self._fail(NoSuchStream(f"stream {self.name!r} was deleted"))
        if stream.epoch != self.epoch:
            return self._fail(TakenOver(self.name, self.epoch, stream.epoch))
        self.stream, self.version = stream, version
        self._note(stream)
        segment = stream.open_segment
        ledger_id = None if segment is None else segment.ledger_id
        if self.made is not None and ledger_id == self.made:
            # Only this writer begins segments at its epoch: our change happened after all.
            return self._go(_Step.DONE)
        if self._begins_next and self.made in self.ends and self._begins_at is None:
            # It happened, and a commit ended the new segment before we learned of it.
            self._is_recovery, self._gone, self.ended, self._old_ledger = True, None, None, None
            return self._make(spent=self.made)
        if ledger_id is None and not self._begins_next:
            self._old_ledger = None
            return self._make()
        if ledger_id == self._old_ledger:
            if self._gone is not None:
                return self._fail(self._gone)
            return self._store()
        if self._begins_at is not None:
            return self._fail(self._moved_on())
        # A commit has ended our segment; or an earlier change of ours, whose outcome stayed
        # unknown, has happened only now: the segment it began is the one to end.
        self._is_recovery, self._gone, self.ended = True, None, None
        return self._end_old()
