"""SegmentLifecycle: rolls, prepares and seals the segment of a writer, and hands the stream over.

One task makes all changes, one at a time, so no two of them meet. segment_owner.py takes segments
over, publishes and repairs them; the decisions are made by core/takeover.py and
core/metadata/namespaces.py.
"""

from __future__ import annotations

import copy
import logging
import math

import trio

from ledger.errors import LedgerClosed, LedgerError, LedgerFenced, RetryableError
from ledger.writing.writer import LedgerWriter
from stream.core.metadata.namespaces import NamespaceMetadata, should_prepare, should_roll
from stream.core.takeover import Takeover
from stream.errors import HandedOver, NoSuchStream, TakenOver
from stream.takeover import StreamLedgers, makes_same_ledgers
from stream.writing.accumulator import RecordAccumulator
from stream.writing.open_segment import OpenSegment, WriterOptions
from stream.writing.segment_owner import SegmentOwner

_log = logging.getLogger(__name__)

_ROLL_RETRY_S = 5.0
_CLOCK_LOOK_S = 3600.0
"""How often the age of a segment is looked at in any case."""
_ROLL_SPREAD_S = 1.0
"""All writers of a namespace receive a new policy at once; this spreads their rolls."""
_SEAL_TRIES_MAX = 5


class SegmentLifecycle(SegmentOwner):
    """Changes the segment that an accumulator sends to; `run` is its task."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        ledgers: StreamLedgers,
        policy: NamespaceMetadata,
        options: WriterOptions,
    ) -> None:
        super().__init__(accumulator, ledgers, policy, options)
        self.rolls = 0
        self._event = trio.Event()
        self._retry_at = -math.inf
        self._is_closing = False
        self._requested_epoch = -1
        self._seal_tries = 0
        self._done = trio.Event()
        self._end: LedgerError | None = None
        """Why no more records are taken, once the writer is ending."""
        accumulator.sender.on_segment_event = self._on_segment_event

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._ledgers.stream

    async def take_over(self, if_epoch: int | None = None) -> None:
        """Makes this writer the only writer of the stream; see `SegmentOwner.take_over`."""
        await super().take_over(if_epoch)
        self.handover_requested(self._requested_epoch)  # a request may have come before

    # Called by the watch of the namespace

    def policy_changed(self, policy: NamespaceMetadata, version: int) -> None:
        """Follows the stored policy. Rolls soon if it requires other ledgers than the open one."""
        self._use_policy(policy, version)
        if self._is_outdated():
            pause_s = self._ledgers.client.rng.random() * _ROLL_SPREAD_S
            self._retry_at = max(self._retry_at, trio.current_time() + pause_s)
        self._event.set()

    def handover_requested(self, epoch: int) -> None:
        """Hands the stream over to another client, if this is the writer at `epoch`."""
        self._requested_epoch = max(self._requested_epoch, epoch)
        if self.epoch == self._requested_epoch and self._end is None:
            self._accumulator.nursery.start_soon(self._hand_over)

    async def _hand_over(self) -> None:
        """Refuses new records, and seals the segment when all records taken are durable."""
        try:
            await self._finish(HandedOver(self.stream, self.epoch))
        except LedgerError as error:
            _log.info("stream=%s: the handover failed: %s", self.stream, error)

    def _is_outdated(self) -> bool:
        """Whether the policy requires other ledgers than the open one."""
        return bool(self._segments) and not makes_same_ledgers(self._made_for, self._policy)

    # The task

    def _on_segment_event(self, error: LedgerError | None) -> None:
        if error is not None and self._error is None:
            self._error = error
        self._event.set()

    async def run(self) -> None:
        """Rolls, repairs and seals segments until the writer is closed or has failed."""
        try:
            await self._reclaim()
            while not await self._act():
                pass
        except LedgerError as error:
            _log.warning("stream=%s: writer failed: %s", self.stream, error)
            self._accumulator.fail(error)
        finally:
            for segment in self._segments:
                segment.ledger.on_confirmed = segment.ledger.on_failed = None
                segment.ledger.abandon()
            if self._prepared is not None:
                self._prepared.abandon()
            self._done.set()

    async def _act(self) -> bool:
        """Takes the most urgent step, or waits for one; returns True when the segment is sealed."""
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
        elif (is_due := should_roll(**facts, policy=self._policy)) or self._is_outdated():
            await self._roll(is_due)
        elif not self._is_prepare_tried and should_prepare(**facts, policy=self._policy):
            await self._prepare()
        else:
            await self._wait()
        return False

    async def _wait(self) -> None:
        """Waits until the ledger fails, or the size or age of the segment may require a step."""
        segment, policy = self._segments[-1], self._policy
        watch, due_ms = policy.roll_bytes, policy.roll_ms
        if not self._is_prepare_tried:
            watch, due_ms = (watch + 1) // 2, (due_ms + 1) // 2
        timeout_s = self._retry_at - trio.current_time()
        if timeout_s > 0:
            watch = 1 << 62  # a step that failed is retried at its time, whatever the size
        elif segment.nbytes == 0:
            watch, timeout_s = 1, math.inf  # the age counts from the first entry
        else:
            timeout_s = max(0.001, (segment.since_ms + due_ms - self._now_ms()) / 1000)
            timeout_s = min(timeout_s, _CLOCK_LOOK_S)  # the clock may have been wrong
        self._sender.segment_bytes_watch = watch
        with trio.move_on_after(timeout_s):
            await self._event.wait()
        self._event = trio.Event()

    async def _prepare(self) -> None:
        """Creates the next ledger in advance: metadata only. If this fails, rolling creates one."""
        self._is_prepare_tried = True
        epoch = self.epoch
        ledger: LedgerWriter | None = None
        try:
            policy = await self._fresh_policy()
            ledger = await self._ledgers.make(policy)
            ledger_id = ledger.ledger_id
            self._prepared, self._prepared_for = ledger, policy  # from here on `run` abandons it
            await self._ledgers.store.update_stream(
                self._ledgers.namespace,
                self.stream,
                lambda stream: self._own(stream).with_prepared(epoch, ledger_id),
            )
        except LedgerError as error:
            _log.info("stream=%s: no ledger was prepared: %s", self.stream, error)
            if ledger is not None:
                self._prepared = None
                await self._ledgers.discard(ledger)
            try:
                await self._check_epoch()
            except RetryableError:
                pass  # the next step that needs the epoch checks it again

    async def _next_ledger(self, is_due: bool) -> LedgerWriter:
        """Returns the prepared ledger if it satisfies the policy, and creates one otherwise.

        If the roll is due anyway, a ledger like the one before will do: a policy that cannot be
        followed must not let segments grow without bound.
        """
        ledger, self._prepared = self._prepared, None
        if ledger is not None:
            if makes_same_ledgers(self._prepared_for, self._policy):
                self._made_for = self._prepared_for
                return ledger
            await self._ledgers.discard(ledger)
        policy = await self._fresh_policy()
        if is_due:
            return await self._make()
        ledger = await self._ledgers.make(policy)
        self._made_for = policy
        return ledger

    async def _roll(self, is_due: bool) -> None:
        """Sends to a new ledger at once; confirms its entries when the old ledger is closed and the
        new segment is published."""
        old = self._segments[-1]
        try:
            stream, version = await self._check_epoch()
            if stream.interrupted is not None:
                self._on_segment_event(
                    LedgerFenced(f"stream {stream.name!r}: a sink committed a batch")
                )
                return
            ledger = await self._next_ledger(is_due)
        except RetryableError as error:
            self._retry_at = trio.current_time() + _ROLL_RETRY_S
            _log.info("stream=%s: rolling is retried later: %s", self.stream, error)
            return
        self._is_prepare_tried = False
        now_ms = self._now_ms()
        # Nothing is awaited from here to the end of use_segment: no entry may be sent in between.
        if self._error is not None:
            await self._ledgers.discard(ledger)
            return
        segment = OpenSegment(stream.next_segment, ledger, old.first_sequence + old.records)
        self._segments = [old, segment]
        self._sender.use_segment(segment)
        takeover = Takeover(
            stream.name, now_ms, epoch=stream.epoch, stream=stream, version=version,
            is_recovery=False, begins_at=(segment.number, segment.first_sequence),
        )  # fmt: skip
        try:
            await self._run_takeover(takeover, closing=old, made=ledger)
        except LedgerError as error:
            self._sender.ledger_failed(segment, error)
            return
        self._publish(segment)
        self.rolls += 1
        _log.info(
            "stream=%s segment=%d sealed records=%d, segment=%d ledger=%d begun",
            stream.name, old.number, old.records, segment.number, ledger.ledger_id,
        )  # fmt: skip
        await self._reclaim()

    # The end

    async def close(self) -> None:
        """Flushes, seals the segment and ends the task. Raises the writer's error."""
        await self._finish(LedgerClosed(f"the writer of stream {self.stream!r} is closed"))
        await self._done.wait()
        error = self._accumulator.error
        if error is not None and not isinstance(error, (LedgerClosed, HandedOver)):
            raise copy.copy(error)
        if self._sender.refused is not None:
            raise copy.copy(self._sender.refused)

    async def _finish(self, reason: LedgerError) -> None:
        if self._end is None:
            self._end = reason
        if not self._is_closing:
            await self._accumulator.finish(self._end)
            self._is_closing = True
            self._event.set()

    async def _seal(self) -> bool:
        """Closes the ledger and seals the segment; returns False if it has to be repaired first."""
        try:
            stream, version = await self._check_epoch()
            takeover = Takeover(
                stream.name, self._now_ms(), epoch=stream.epoch, stream=stream, version=version,
                is_recovery=False, begins_next=False,
            )  # fmt: skip
            await self._run_takeover(takeover, closing=self._segments[-1])
        except (TakenOver, NoSuchStream) as error:
            # All our records were durable before: the next writer, or the deletion, sealed them.
            _log.info("stream=%s: sealed by another client: %s", self.stream, error)
        except LedgerError as error:
            self._seal_tries += 1
            if self._seal_tries >= _SEAL_TRIES_MAX:
                raise
            self._error = error
            return False
        assert self._end is not None, "sealed without a reason"
        self._accumulator.fail(self._end)
        await self._reclaim()
        return True
