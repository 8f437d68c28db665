"""Looks after the segment of a writer: opens it by takeover, rolls, repairs, and seals it.

One task does all of it, one thing at a time, so no two changes meet. Must never confirm anything
in a segment that is not published, nor go on at an epoch that is not ours. The decisions are
core/ownership.py and core/policy.py.
"""

from __future__ import annotations

import copy
import logging
import math

import trio

from ledger.errors import LedgerClosed, LedgerError, MetadataUnavailable, RetryableError
from ledger.writer import LedgerWriter
from stream.core.metadata import SegmentEnd, StreamMetadata
from stream.core.ownership import EndLedger, MakeLedger, Succession
from stream.core.policy import NamespaceMetadata, should_prepare, should_roll
from stream.errors import CompressionUnavailable, NoSuchStream, TakenOver
from stream.open_segment import OpenSegment, WriterOptions
from stream.outbox import Outbox
from stream.reclaim import reclaim_stream
from stream.succession import StreamLedgers

_log = logging.getLogger(__name__)

_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
_ROLL_RETRY_S = 5.0
_SEAL_TRIES_MAX = 5
_REPAIRS_IN_VAIN_MAX = 5
"""So many ledgers in a row on which nothing was confirmed: something that does not pass."""


class SegmentChanges:
    """Changes the segment under an outbox; `run` is its task."""

    def __init__(
        self,
        outbox: Outbox,
        ledgers: StreamLedgers,
        policy: NamespaceMetadata,
        options: WriterOptions,
    ) -> None:
        self.epoch = -1
        self.rolls = 0
        self.repairs = 0
        self._outbox = outbox
        self._ledgers = ledgers
        self._policy = policy
        self._options = options
        self._now_ms = ledgers.client.now_ms
        self._stream: StreamMetadata | None = None
        self._prepared: LedgerWriter | None = None
        self._is_prepare_tried = False
        self._segments: list[OpenSegment] = []
        """Segments with batches that may be unconfirmed: one, or two while rolling."""
        self._error: LedgerError | None = None
        self._event = trio.Event()
        self._retry_at = -math.inf
        self._is_closing = False
        self._seal_tries = 0
        self._repairs_in_vain = 0
        self._confirmed_at_repair = -1
        self._done = trio.Event()
        outbox.on_segment_event = self._noticed

    # Takeover

    async def take_over(self) -> None:
        """Makes this writer the one of the stream. Raises NoSuchStream and what ledgers raise."""
        machine = Succession(self._ledgers.stream, self._now_ms())
        ledger = await self._succeed(machine)
        stream = self._stream
        assert stream is not None, machine.story()
        self.epoch = stream.epoch
        self._outbox.begin_at(stream.next_sequence, stream.last_time_ms)
        self._use(ledger)
        _log.info(
            "stream=%s epoch=%d segment=%d ledger=%d: took over",
            stream.name, stream.epoch, self._segments[0].number,
            self._segments[0].ledger.ledger_id,
        )  # fmt: skip

    async def _succeed(
        self,
        machine: Succession,
        *,
        closing: OpenSegment | None = None,
        made: LedgerWriter | None = None,
    ) -> LedgerWriter | None:
        """Runs the machine; returns the ledger of the new segment, if there is one.

        `closing`: our own segment to be closed rather than recovered; `made`: the ledger to use.
        A ledger made here that was not published is deleted again.
        """
        fresh: list[LedgerWriter] = [] if made is None else [made]

        async def make(_action: MakeLedger) -> int:
            if not fresh:
                fresh.append(await self._ledgers.make(self._policy))
            return fresh[0].ledger_id

        async def end(action: EndLedger) -> SegmentEnd:
            if closing is None:
                return await self._ledgers.recovered_end(action.ledger_id, action.first_sequence)
            assert closing.ledger.ledger_id == action.ledger_id, machine.story()
            await closing.ledger.flush()
            closing.ledger.on_confirmed = closing.ledger.on_failed = None
            await closing.ledger.close()
            return closing.end

        try:
            self._stream = await self._ledgers.run(machine, end=end, make=make)
        except BaseException:
            if made is None and fresh:
                await self._ledgers.discard(fresh[0])
            raise
        return fresh[0] if fresh else None

    def _use(self, ledger: LedgerWriter | None) -> None:
        """Sends to the open segment of the metadata from now on."""
        assert self._stream is not None, "a segment is used after it was stored"
        assert ledger is not None, "a new segment has a ledger"
        begun = self._stream.open_segment
        assert begun is not None, "no open segment was stored"
        assert begun.ledger_id == ledger.ledger_id, f"{begun} is not on ledger {ledger.ledger_id}"
        segment = OpenSegment(begun.number, ledger, begun.first_sequence)
        segment.is_published = True
        self._segments = [segment]
        self._outbox.use_segment(segment)
        self._outbox.is_paused = False
        self._outbox.settle()

    # The task

    def _noticed(self, error: LedgerError | None) -> None:
        if error is not None and self._error is None:
            self._error = error
        self._event.set()

    async def run(self) -> None:
        """Looks after the segment until the writer is closed or has failed."""
        try:
            await self._reclaim()
            while not await self._act():
                pass
        except LedgerError as error:
            _log.warning("stream=%s: writer failed: %s", self._ledgers.stream, error)
            self._outbox.fail(error)
        finally:
            for segment in self._segments:
                segment.ledger.on_confirmed = segment.ledger.on_failed = None
                segment.ledger.abandon()
            self._done.set()

    async def _act(self) -> bool:
        """Does what is due most, or waits until something may be; True when all is done."""
        segment = self._segments[-1]
        facts = {
            "since_ms": segment.since_ms, "nbytes": segment.nbytes, "now_ms": self._now_ms(),
        }  # fmt: skip
        if self._error is not None:
            await self._repair()
        elif self._is_closing:
            return await self._seal()
        elif trio.current_time() < self._retry_at:
            await self._wait()
        elif should_roll(**facts, policy=self._policy):
            await self._roll()
        elif not self._is_prepare_tried and should_prepare(**facts, policy=self._policy):
            await self._prepare()
        else:
            await self._wait()
        return False

    async def _wait(self) -> None:
        """Until the ledger fails, the segment has grown to where something is due, or time has
        come."""
        segment, policy = self._segments[-1], self._policy
        watch, due_ms = policy.roll_bytes, policy.roll_ms
        if not self._is_prepare_tried:
            watch, due_ms = (watch + 1) // 2, (due_ms + 1) // 2
        timeout_s = self._retry_at - trio.current_time()
        if timeout_s > 0:
            watch = 1 << 62  # what could not be done waits for its time
        elif segment.nbytes == 0:
            watch, timeout_s = 1, math.inf  # from the first entry on the clock matters
        else:
            timeout_s = max(0.001, (segment.since_ms + due_ms - self._now_ms()) / 1000)
        self._outbox.segment_bytes_watch = watch
        with trio.move_on_after(timeout_s):
            await self._event.wait()
        self._event = trio.Event()

    async def _prepare(self) -> None:
        """Makes the next ledger ahead: metadata only. A failure is no harm: rolling makes one."""
        self._is_prepare_tried = True
        epoch = self.epoch
        ledger: LedgerWriter | None = None
        try:
            ledger = await self._ledgers.make(await self._fresh_policy())
            ledger_id = ledger.ledger_id
            await self._ledgers.store.update_stream(
                self._ledgers.namespace,
                self._ledgers.stream,
                lambda stream: stream.with_prepared(epoch, ledger_id),
            )
            self._prepared = ledger
        except LedgerError as error:
            _log.info("stream=%s: no ledger ahead: %s", self._ledgers.stream, error)
            if ledger is not None:
                await self._ledgers.discard(ledger)
            try:
                await self._check_epoch()
            except RetryableError:
                pass  # whether it is still ours will be seen when it matters

    async def _fresh_policy(self) -> NamespaceMetadata:
        policy, _ = await self._ledgers.store.read_namespace(self._ledgers.namespace)
        try:
            self._outbox.use_policy(policy)
        except CompressionUnavailable as error:
            # A setting that this process cannot follow must not end a writer that works.
            _log.warning("stream=%s: compression stays: %s", self._ledgers.stream, error)
        self._policy = policy
        return policy

    async def _check_epoch(self) -> tuple[StreamMetadata, int]:
        """The stream as stored. Raises TakenOver, NoSuchStream."""
        ledgers = self._ledgers
        stream, version = await ledgers.store.read_stream(ledgers.namespace, ledgers.stream)
        if stream.is_deleted:
            raise NoSuchStream(f"stream {ledgers.stream!r} was deleted")
        if stream.epoch != self.epoch:
            raise TakenOver(ledgers.stream, self.epoch, stream.epoch)
        return stream, version

    async def _roll(self) -> None:
        """Sends to a new ledger at once, and confirms there when the old one is closed and the
        new segment is published."""
        old = self._segments[-1]
        try:
            stream, version = await self._check_epoch()
            ledger = self._prepared or await self._ledgers.make(await self._fresh_policy())
        except RetryableError as error:
            self._retry_at = trio.current_time() + _ROLL_RETRY_S
            _log.info("stream=%s: cannot roll now: %s", self._ledgers.stream, error)
            return
        self._prepared, self._is_prepare_tried = None, False
        now_ms = self._now_ms()
        # From here to the end of use_segment nothing is awaited: no entry may slip in between.
        if self._error is not None:
            await self._ledgers.discard(ledger)
            return
        segment = OpenSegment(stream.next_segment, ledger, old.first_sequence + old.records)
        self._segments = [old, segment]
        self._outbox.use_segment(segment)
        machine = Succession(
            stream.name, now_ms, epoch=stream.epoch, stream=stream, version=version,
            is_recovery=False,
        )  # fmt: skip
        try:
            await self._succeed(machine, closing=old, made=ledger)
        except LedgerError as error:
            self._outbox.ledger_failed(segment, error)
            return
        self._publish(segment)
        self.rolls += 1
        _log.info(
            "stream=%s segment=%d sealed records=%d, segment=%d ledger=%d begun",
            stream.name, old.number, old.records, segment.number, ledger.ledger_id,
        )  # fmt: skip
        await self._reclaim()

    def _publish(self, segment: OpenSegment) -> None:
        assert self._stream is not None, "published without metadata"
        begun = self._stream.open_segment
        assert begun is not None, "published without an open segment"
        assert (begun.number, begun.first_sequence) == (segment.number, segment.first_sequence), (
            f"{begun} is not what was sent to: {segment.number} from {segment.first_sequence}"
        )
        self._segments = [segment]
        segment.is_published = True
        self._outbox.settle()

    async def _repair(self) -> None:
        """After a ledger failed: recovers the open segment, begins another, sends again what the
        old one does not hold. Raises TakenOver, or the last error when the time is up."""
        failed_at = trio.current_time()
        cause, self._error = self._error, None
        assert cause is not None, "nothing to repair"
        confirmed = self._outbox.records_confirmed
        self._repairs_in_vain = (
            self._repairs_in_vain + 1 if confirmed == self._confirmed_at_repair else 0
        )
        self._confirmed_at_repair = confirmed
        if self._repairs_in_vain >= _REPAIRS_IN_VAIN_MAX:
            raise cause
        _log.info("stream=%s: ledger failed, repairing: %s", self._ledgers.stream, cause)
        self._outbox.is_paused = True
        for segment in self._segments:
            segment.ledger.on_confirmed = segment.ledger.on_failed = None
            segment.ledger.abandon()
        pause_s = _PAUSE_S
        while True:
            try:
                await self._replace_segment()
                break
            except RetryableError as error:
                if isinstance(error, MetadataUnavailable):
                    failed_at = trio.current_time()  # without it nothing can be tried
                elif trio.current_time() - failed_at + pause_s > self._options.repair_timeout_s:
                    raise
                _log.info("stream=%s: repair goes on: %s", self._ledgers.stream, error)
            await trio.sleep(pause_s * (0.5 + self._ledgers.client.rng.random()))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        self.repairs += 1

    async def _replace_segment(self) -> None:
        stream, version = await self._check_epoch()
        stale = list(self._segments)
        machine = Succession(
            stream.name, self._now_ms(), epoch=stream.epoch, stream=stream, version=version
        )
        ledger = await self._succeed(machine)
        assert self._stream is not None, machine.story()
        assert self._stream.next_sequence >= self._outbox.confirmed_sequence, (
            f"stream {stream.name!r}: recovery ended at sequence {self._stream.next_sequence}, "
            f"{self._outbox.confirmed_sequence} records were confirmed\n{machine.story()}"
        )
        # Publishing the last one may have been given up for unknown, and have happened.
        stored = [segment.ledger_id for segment in self._stream.segments]
        for segment in stale:
            segment.is_published |= segment.ledger.ledger_id in stored
        published = [segment for segment in stale if segment.is_published]
        self._outbox.take_back(published, self._stream.next_sequence)
        self._prepared, self._is_prepare_tried = None, False
        self._use(ledger)
        for segment in stale:
            if not segment.is_published:
                await self._ledgers.discard(segment.ledger)
        await self._reclaim()

    # The end

    async def close(self) -> None:
        """Flushes, seals the segment, ends the task. Raises the writer's error."""
        if not self._is_closing:
            await self._outbox.finish()
            self._is_closing = True
            self._event.set()
        await self._done.wait()
        if self._outbox.error is not None and not isinstance(self._outbox.error, LedgerClosed):
            raise copy.copy(self._outbox.error)

    async def _seal(self) -> bool:
        """Closes the ledger and seals the segment; False if it failed and must be repaired."""
        try:
            stream, version = await self._check_epoch()
            machine = Succession(
                stream.name, self._now_ms(), epoch=stream.epoch, stream=stream, version=version,
                is_recovery=False, begins_next=False,
            )  # fmt: skip
            await self._succeed(machine, closing=self._segments[-1])
        except (TakenOver, NoSuchStream) as error:
            # All our records were durable before: whoever came after us has sealed them.
            _log.info("stream=%s: closed behind our back: %s", self._ledgers.stream, error)
        except LedgerError as error:
            self._seal_tries += 1
            if self._seal_tries >= _SEAL_TRIES_MAX:
                raise
            self._error = error
            return False
        self._outbox.fail(LedgerClosed(f"the writer of stream {self._ledgers.stream!r} is closed"))
        await self._reclaim()
        return True

    async def _reclaim(self) -> None:
        """Deletes ledgers the metadata calls garbage. The janitor does what is left undone."""
        if self._stream is None or not self._stream.garbage:
            return
        try:
            await reclaim_stream(
                self._ledgers.client, self._ledgers.store, self._ledgers.namespace,
                self._ledgers.stream,
            )  # fmt: skip
        except LedgerError as error:
            _log.info("stream=%s: garbage stays for now: %s", self._ledgers.stream, error)
