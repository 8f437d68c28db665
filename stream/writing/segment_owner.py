"""SegmentOwner: takes the segments of a writer over, begins, publishes and repairs them.

Must never confirm a record in a segment that is not published, nor continue at an epoch that is not
ours. segment_lifecycle.py decides when each step is due; core/takeover.py decides on the changes of
the metadata.
"""

from __future__ import annotations

import logging
from contextlib import aclosing

import trio

from ledger.errors import (
    LedgerError,
    LedgerFenced,
    MetadataConflict,
    MetadataCorrupt,
    MetadataUnavailable,
    NotEnoughBookies,
    RetryableError,
)
from ledger.writing.writer import LedgerWriter
from stream.core.clocks import is_ahead, moment_text
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import ProducerState, SegmentEnd, StreamMetadata
from stream.core.takeover import EndLedger, MakeLedger, Takeover
from stream.errors import CompressionUnavailable, NoSuchStream, TakenOver
from stream.retention.reclaim import reclaim_stream
from stream.takeover import StreamLedgers, makes_same_ledgers
from stream.writing.accumulator import RecordAccumulator
from stream.writing.open_segment import OpenSegment, WriterOptions

_log = logging.getLogger(__name__)

_PAUSE_S = 0.05
_PAUSE_S_MAX = 1.0
_COMMIT_WAIT_S = 0.5
_COMMIT_WAITS_MAX = 16
"""The largest factor by which a writer waits longer for a sink's commit that fences it repeatedly
and is not done in time: a commit to many streams, or one on a busy machine."""
_FUTILE_REPAIRS_MAX = 5
"""After this many repairs in a row without a confirmed record the writer fails: the cause does not
pass."""


class SegmentOwner:
    """The segments that an accumulator sends to; one change at a time."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        ledgers: StreamLedgers,
        policy: NamespaceMetadata,
        options: WriterOptions,
    ) -> None:
        self.epoch = -1
        self.repairs = 0
        self._accumulator = accumulator
        self._sender = accumulator.sender
        self._ledgers = ledgers
        self._policy = policy
        self._policy_version = -1
        self._made_for = policy
        """The policy that the newest ledger was created for."""
        self.options = options
        self._now_ms = ledgers.client.now_ms
        self._stream: StreamMetadata | None = None
        self._prepared: LedgerWriter | None = None
        self._prepared_for = policy
        self._is_prepare_tried = False
        self._segments: list[OpenSegment] = []
        """Segments with batches that may be unconfirmed: one, or two while rolling."""
        self._ends: dict[int, int] = {}
        """Ledgers of `_segments` that were closed or recovered, and their last entries."""
        self._error: LedgerError | None = None
        self._futile_repairs = 0
        self._confirmed_at_repair = -1
        self._commit_waits = 1

    # Takeover

    async def take_over(self, if_epoch: int | None = None) -> None:
        """Makes this writer the only writer of the stream; with `if_epoch` only from that epoch.

        Raises NoSuchStream, EpochMismatch and the errors of ledgers.
        """
        takeover = Takeover(self._ledgers.stream, self._now_ms(), if_epoch=if_epoch)
        ledger = await self._run_takeover(takeover)
        stream = self._stream
        assert stream is not None, takeover.history()
        self.epoch = stream.epoch
        self._accumulator.begin_at(stream.next_sequence, stream.last_time_ms)
        self._use(ledger)
        self._ledgers.check_recent_copies(stream)
        now_ms = self._now_ms()
        if is_ahead(stream.last_time_ms, now_ms):
            _log.warning(
                "stream=%s: its newest record is stamped %s, ahead of this clock, which says %s: "
                "append times stand still until then. Cure: correct the clock; `ledgerstream "
                "retention explain` says what follows",
                stream.name, moment_text(stream.last_time_ms), moment_text(now_ms),
            )  # fmt: skip
        _log.info(
            "stream=%s epoch=%d segment=%d ledger=%d: took over",
            stream.name, stream.epoch, self._segments[0].number,
            self._segments[0].ledger.ledger_id,
        )  # fmt: skip

    async def _run_takeover(
        self,
        takeover: Takeover,
        *,
        closing: OpenSegment | None = None,
        made: LedgerWriter | None = None,
    ) -> LedgerWriter | None:
        """Carries the takeover out; returns the ledger of the new segment, if there is one.

        `closing`: our own segment to be closed rather than recovered; `made`: the ledger to use.
        A ledger made here that was not published is deleted again.
        """
        fresh: list[LedgerWriter] = [] if made is None else [made]

        async def make(action: MakeLedger) -> int:
            if fresh and fresh[0].ledger_id == action.spent:
                fresh.pop().abandon()
            if not fresh:
                fresh.append(await self._make())
            if closing is None:
                takeover.restores = await self._ledgers.client.restores()
            return fresh[0].ledger_id

        async def end(action: EndLedger) -> SegmentEnd:
            if closing is None:
                return await self._ledgers.recovered_end(action.ledger_id, action.first_sequence)
            assert closing.ledger.ledger_id == action.ledger_id, takeover.history()
            await closing.ledger.flush()
            closing.ledger.on_confirmed = closing.ledger.on_failed = None
            await closing.ledger.close()
            return closing.end

        try:
            self._stream = await self._ledgers.run(takeover, end=end, make=make)
        except BaseException:
            if made is None and fresh:
                await self._ledgers.discard(fresh[0])
            raise
        finally:
            self._ends |= takeover.ends
        return fresh[0] if fresh else None

    async def _make(self) -> LedgerWriter:
        """Creates a ledger that satisfies the policy.

        If there are too few bookies for that, a writer that works gets one like before: a policy
        that cannot be followed must not end it.
        """
        policy = self._policy
        try:
            ledger = await self._ledgers.make(policy)
        except NotEnoughBookies:
            if not self._segments or makes_same_ledgers(policy, self._made_for):
                raise
            return await self._ledgers.make(self._made_for)
        self._made_for = policy
        return ledger

    def _use(self, ledger: LedgerWriter | None) -> None:
        """Sends to the open segment in the metadata from now on."""
        assert self._stream is not None, "a segment is used after it was stored"
        assert ledger is not None, "a new segment has a ledger"
        begun = self._stream.open_segment
        assert begun is not None, "no open segment was stored"
        assert begun.ledger_id == ledger.ledger_id, f"{begun} is not on ledger {ledger.ledger_id}"
        segment = OpenSegment(begun.number, ledger, begun.first_sequence)
        segment.is_published = True
        self._segments, self._ends = [segment], {}
        self._accumulator.resume_at(begun.first_sequence, self._stream.last_time_ms)
        self._sender.use_segment(segment)
        self._sender.is_paused = False
        self._sender.settle()

    def _use_policy(self, policy: NamespaceMetadata, version: int) -> None:
        """Follows a policy, unless a newer one was seen before: reads and watches race."""
        is_same_node = policy.created_ms == self._policy.created_ms
        if is_same_node and version < self._policy_version:
            return
        self._policy_version = version
        if policy == self._policy:
            return
        self._policy = policy
        try:
            self._accumulator.use_policy(policy)
        except CompressionUnavailable as error:
            # A setting that this process cannot follow must not end a writer that works.
            _log.warning(
                "stream=%s: the compression does not change: %s", self._ledgers.stream, error
            )

    async def _fresh_policy(self) -> NamespaceMetadata:
        try:
            self._use_policy(*await self._ledgers.store.read_namespace(self._ledgers.namespace))
        except MetadataCorrupt as error:
            _log.warning("stream=%s: the policy does not change: %s", self._ledgers.stream, error)
        return self._policy

    async def producer_state(self, name: str) -> ProducerState:
        """Returns the stored state of a producer, which the stream stores from now on.

        It does not include records that this writer took since. Raises TooManyProducers,
        TakenOver, NoSuchStream, MetadataUnavailable.
        """
        epoch, ledgers = self.epoch, self._ledgers
        try:
            stream = await ledgers.store.update_stream(
                ledgers.namespace, ledgers.stream, lambda s: self._own(s).with_producer(epoch, name)
            )
        except MetadataConflict:
            await self._check_epoch()
            raise
        return stream.producers[name]

    # Publishing and repair

    async def _check_epoch(self) -> tuple[StreamMetadata, int]:
        """Returns the stream as stored, and its version. Raises TakenOver, NoSuchStream."""
        ledgers = self._ledgers
        stream, version = await ledgers.store.read_stream(ledgers.namespace, ledgers.stream)
        return self._own(stream), version

    def _own(self, stream: StreamMetadata) -> StreamMetadata:
        """Returns this stream if it is still ours. Raises TakenOver, NoSuchStream."""
        assert self._stream is not None, "nothing is ours before the takeover"
        # Some time after a stream was deleted the epochs of its name begin again.
        if stream.is_deleted or stream.created_ms != self._stream.created_ms:
            raise NoSuchStream(f"stream {stream.name!r} was deleted")
        if stream.epoch != self.epoch:
            raise TakenOver(stream.name, self.epoch, stream.epoch)
        return stream

    def _publish(self, segment: OpenSegment) -> None:
        assert self._stream is not None, "published without metadata"
        begun = self._stream.open_segment
        assert begun is not None, "published without an open segment"
        assert (begun.number, begun.first_sequence) == (segment.number, segment.first_sequence), (
            f"{begun} is not what was sent to: {segment.number} from {segment.first_sequence}"
        )
        self._segments = [segment]
        segment.is_published = True
        self._sender.settle()

    async def _repair(self) -> None:
        """Recovers the open segment after its ledger failed, begins another, and sends again the
        batches that the old one does not have. Raises TakenOver, or the last error after
        `repair_timeout_s`."""
        failed_at = trio.current_time()
        cause, self._error = self._error, None
        assert cause is not None, "nothing to repair"
        confirmed = self._sender.records_confirmed
        self._futile_repairs = (
            self._futile_repairs + 1 if confirmed == self._confirmed_at_repair else 0
        )
        self._confirmed_at_repair = confirmed
        if self._futile_repairs >= _FUTILE_REPAIRS_MAX:
            raise cause
        _log.info("stream=%s: ledger failed, repairing: %s", self._ledgers.stream, cause)
        self._sender.is_paused = True
        for segment in self._segments:
            segment.ledger.on_confirmed = segment.ledger.on_failed = None
            segment.ledger.abandon()
        if isinstance(cause, LedgerFenced):
            await self._wait_for_commit()
            failed_at = trio.current_time()  # the repair begins only now
        pause_s = _PAUSE_S
        while True:
            try:
                await self._replace_segment()
                break
            except RetryableError as error:
                if isinstance(error, MetadataUnavailable):
                    failed_at = trio.current_time()  # no try is possible without it
                elif trio.current_time() - failed_at + pause_s > self.options.repair_timeout_s:
                    raise
                _log.info("stream=%s: the repair is retried: %s", self._ledgers.stream, error)
            await trio.sleep(pause_s * (0.5 + self._ledgers.client.rng.random()))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        self.repairs += 1

    async def _wait_for_commit(self) -> None:
        """Waits until a sink's commit that fenced this writer appears in the metadata.

        A commit fences first and updates the metadata right after. If this writer were faster, the
        commit would have to fence it again.
        """
        ledgers = self._ledgers
        own = [segment.ledger.ledger_id for segment in self._segments]
        with trio.move_on_after(_COMMIT_WAIT_S * self._commit_waits):
            try:
                versions = ledgers.store.watch_stream(ledgers.namespace, ledgers.stream)
                async with aclosing(versions):
                    async for stream in versions:
                        begun = None if stream is None else stream.open_segment
                        is_ours = stream is not None and stream.epoch == self.epoch
                        if not is_ours or begun is None or begun.ledger_id not in own:
                            # The commit makes progress, and so will this writer.
                            self._commit_waits, self._futile_repairs = 1, 0
                            return
            except LedgerError as error:
                _log.info(
                    "stream=%s: no commit that fenced the writer is known: %s",
                    ledgers.stream,
                    error,
                )
        self._commit_waits = min(2 * self._commit_waits, _COMMIT_WAITS_MAX)

    async def _replace_segment(self) -> None:
        stream, version = await self._check_epoch()
        stale = list(self._segments)
        takeover = Takeover(
            stream.name, self._now_ms(), epoch=stream.epoch, stream=stream, version=version
        )
        ledger = await self._run_takeover(takeover)
        assert self._stream is not None, takeover.history()
        assert self._stream.next_sequence >= self._sender.confirmed_sequence, (
            f"stream {stream.name!r}: recovery ended at sequence {self._stream.next_sequence}, "
            f"{self._sender.confirmed_sequence} records were confirmed\n{takeover.history()}"
        )
        # Publishing the last one may have succeeded although its outcome was unknown.
        ends, last_entries = self._ends, dict[OpenSegment, int]()
        for segment in stale:
            ledger_id = segment.ledger.ledger_id
            segment.is_published |= ledger_id in ends
            if segment.is_published:
                # A segment without a known end was closed by us, with all its entries.
                last_entries[segment] = ends.get(ledger_id, segment.entries - 1)
        self._sender.take_back(last_entries)
        prepared, self._prepared, self._is_prepare_tried = self._prepared, None, False
        self._use(ledger)
        if prepared is not None:
            await self._ledgers.discard(prepared)
        for segment in stale:
            if not segment.is_published:
                await self._ledgers.discard(segment.ledger)
        await self._reclaim()

    async def _reclaim(self) -> None:
        """Deletes ledgers that the metadata lists as garbage; the janitor deletes what is left."""
        if self._stream is None or not self._stream.garbage:
            return
        try:
            await reclaim_stream(
                self._ledgers.client, self._ledgers.store, self._ledgers.namespace,
                self._ledgers.stream,
            )  # fmt: skip
        except LedgerError as error:
            _log.info("stream=%s: garbage is left to the janitor: %s", self._ledgers.stream, error)
