"""`spark.readStream`: the micro-batch source that Spark's engine calls.

micro_batches.py makes its decisions. One object lives as long as the query, in a process beside
the driver; executors get the options only. While there are no new records a poll waits a little for
a notification (core/idle_polling.py). Must never read an unconfirmed record.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from connectors.spark.client.client_cache import BackgroundCall, cached_cluster
from connectors.spark.core.admission import NO_LIMITS, Limits
from connectors.spark.core.idle_polling import IdlePolling
from connectors.spark.core.offsets import Offsets
from connectors.spark.core.planner import plan
from connectors.spark.core.source_metrics import metrics
from connectors.spark.error_messages import errors_without_traceback
from connectors.spark.options.options import ReadOptions, Selection
from connectors.spark.schema import arrow_schema
from connectors.spark.source.data_loss import DataLossLog
from connectors.spark.source.discovery import discover
from connectors.spark.source.end_tracker import EndTracker
from connectors.spark.source.input_partitions import (
    LedgerPartition,
    executor_reader,
    make_partitions,
)
from connectors.spark.source.micro_batches import MicroBatches
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerClosed

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.spark.source.checkpoint_cursors import CursorMoves

SMALL_TASK_BYTES = 256 << 10
"""Tasks of a micro-batch are not smaller than this, unless the option minTasks is given."""
_REPORT_KEPT_S = 1.0
"""How long a report of the lag is valid while nothing changes: its age is in seconds."""
_MIN_RECORDS_PAUSE_S = 0.05
"""The pause between two checks while there are fewer than minRecordsPerTrigger records."""
_TRIES_MAX = 5
"""How often one call looks for records after changes that brought none, like a new segment."""


@dataclass(frozen=True, slots=True)
class _NothingNew:
    """No records are to be read from `start` on before `not_before_s`.

    The same holds until `due_s` while the tracker has this `version`.
    """

    start: dict[str, Any]
    version: int
    not_before_s: float
    due_s: float


@dataclass(frozen=True, slots=True)
class _Report:
    """What was reported of `position`; it holds until `until_s` while the tracker has this
    `version`."""

    document: dict[str, Any]
    position: Offsets
    version: int
    until_s: float


@errors_without_traceback
class LedgerstreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as micro-batches."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._cluster = cached_cluster(options.cluster)
        self._limits = Limits(
            records_max=options.max_records_per_trigger,
            bytes_max=options.max_bytes_per_trigger,
            records_min=options.min_records_per_trigger,
            delay_ms_max=options.max_trigger_delay_ms,
        )
        self._losses = DataLossLog(is_error=options.fail_on_data_loss)
        cursors = None
        self._moves: CursorMoves | None = None
        if options.cursor is not None:
            from connectors.spark.source.checkpoint_cursors import CheckpointCursors, CursorMoves

            cursors = CheckpointCursors(options.cursor, options.selection)
            self._moves = CursorMoves(self._cluster, cursors, lambda: self._batches.tracker)
        self._batches = MicroBatches(options.selection, options.starting, self._losses, cursors)
        self._tracking: BackgroundCall[None] | None = None
        self._is_checked = False
        """Whether all named streams were found to exist, or to be in the offsets."""
        self._is_final = False
        self._position: Offsets | None = None
        self._nothing_new: _NothingNew | None = None
        self._report: _Report | None = None
        self._polling = IdlePolling()
        self._changed = threading.Condition()
        self._advanced_s = time.monotonic()

    def __reduce__(self) -> tuple[Any, ...]:
        return executor_reader, (self._schema,)

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        self._track(())
        self._check_named(())
        return self._cluster.run(_initial, self._batches).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self._limits
        if limits.records_max is not None:
            return ReadMaxRows(limits.records_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.records_min is not None:
            return ReadMinRows(limits.records_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._moves is not None and self._is_tracking:
            self._moves.move(time.monotonic())
        wait_until_s = self._polling.begin(time.monotonic())
        try:
            if self._is_known_end(start) and not self._has_news(wait_until_s):
                return start
            return self._next_end(start, limit, wait_until_s)
        finally:
            self._polling.end(time.monotonic())

    def _next_end(
        self, start: dict[str, Any], limit: ReadLimit, wait_until_s: float
    ) -> dict[str, Any]:
        begin = Offsets.from_json(start)
        self._track(begin)
        if self._options.fail_on_data_loss:
            self._check_named(begin)  # otherwise the query continues without purged streams
        limits = self._limits_of(limit)
        for _ in range(_TRIES_MAX):
            version, now_s = self._batches.tracker.version, time.monotonic()
            waited_ms = int((now_s - self._advanced_s) * 1000)
            end = self._cluster.run(_latest, self._batches, begin, limits, waited_ms)
            self._position = end
            if end is not begin:
                self._nothing_new = None
                self._advanced_s = now_s
                self._polling.note_change(now_s)
                return end.to_json()
            self._nothing_new = self._until_news(start, version, limits, now_s)
            if not self._has_news(wait_until_s):
                break
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        position = self._position
        if position is None or not self._is_tracking:
            return None
        # Spark asks at each poll, also of an idle query.
        report, now_s = self._report, time.monotonic()
        version = self._batches.tracker.version
        if (
            report is None
            or report.position is not position
            or report.version != version
            or now_s >= report.until_s
        ):
            newest, lag = self._cluster.run(_newest, self._batches, position)
            document = {
                **newest.to_json(),
                "lag": {"records": lag.records, "bytes": lag.nbytes, "seconds": lag.seconds},
                "metrics": metrics(lag.records, lag.streams, lag.least, lag.most),
            }
            report = _Report(document, position, version, now_s + _REPORT_KEPT_S)
            self._report = report
        return {**report.document, "lost_records": self._losses.records}

    def prepareForTriggerAvailableNow(self) -> None:
        self._track(())
        self._is_final = True
        self._cluster.run(_settle_end, self._batches)

    def _until_news(
        self, start: dict[str, Any], version: int, limits: Limits, now_s: float
    ) -> _NothingNew:
        if limits.records_min is None or self._is_final:
            return _NothingNew(start, version, now_s, math.inf)
        # The millisecond makes up for rounding. A time that has passed was without any record.
        due_s = self._advanced_s + (limits.delay_ms_max + 1) / 1000
        if due_s <= now_s:
            due_s = math.inf
        return _NothingNew(start, version, now_s + _MIN_RECORDS_PAUSE_S, due_s)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_known_end(self, start: dict[str, Any]) -> bool:
        """Returns whether no records after `start` were known at the previous call."""
        quiet = self._nothing_new
        return quiet is not None and self._is_tracking and start == quiet.start

    def _has_news(self, wait_until_s: float) -> bool:
        """Returns whether there may be a micro-batch now although nothing new was known."""
        quiet, now_s = self._nothing_new, time.monotonic()
        assert quiet is not None, "records are known"
        if now_s < quiet.not_before_s:
            return False
        tracker = self._batches.tracker
        timeout_s = max(0.0, min(wait_until_s, quiet.due_s) - now_s)
        with self._changed:
            is_changed = self._changed.wait_for(
                lambda: tracker.version != quiet.version, 0.0 if self._is_final else timeout_s
            )
        if not is_changed and not self._is_final and self._polling.should_ask():
            self._cluster.run(_poll_ends, tracker)
            is_changed = tracker.version != quiet.version
        now_s = time.monotonic()
        if is_changed:
            self._polling.note_change(now_s)
        return is_changed or now_s >= quiet.due_s

    def _limits_of(self, limit: ReadLimit) -> Limits:
        """Returns the limits of a micro-batch.

        The default limit, which the engine got from the options, stands for all their limits; any
        other limit of the engine applies alone.
        """
        if limit == self.getDefaultReadLimit():
            return self._limits
        match limit:
            case ReadAllAvailable():
                return NO_LIMITS
            case ReadMaxRows(max_rows=records):
                return Limits(records_max=records)
            case ReadMaxBytes(max_bytes=nbytes):
                return Limits(bytes_max=nbytes)
            case ReadMinRows(min_rows=records):
                return Limits(records_min=records, delay_ms_max=self._options.max_trigger_delay_ms)
        raise InvalidArgument(f"a stream cannot be read with the limit {limit!r}")

    # Partitions

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, behind = Offsets.from_json(start), Offsets.from_json(end)
        self._track({**begin, **behind})
        return self._cluster.run(_partitions, self._batches, begin, behind, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return executor_reader(self._schema).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._is_tracking:
            behind, batches = Offsets.from_json(end), self._batches
            self._cluster.post(lambda: batches.forget_before(behind))
            if self._moves is not None:
                self._moves.note_committed(behind, time.monotonic())

    # Life cycle

    def stop(self) -> None:
        if self._moves is not None and self._is_tracking:
            self._moves.finish()
        following, self._tracking = self._tracking, None
        if following is not None:
            following.cancel()

    @property
    def _is_tracking(self) -> bool:
        return self._tracking is not None and not self._tracking.has_ended

    def _check_named(self, may_be_gone: Collection[str]) -> None:
        if not self._is_checked:
            if self._batches.tracker.has_missing:  # they may have been created since
                self._cluster.run(_check_named, self._options.selection, may_be_gone)
            self._is_checked = True

    def _track(self, may_be_gone: Collection[str]) -> None:
        """Starts to track the streams, unless they are tracked already."""
        following = self._tracking
        if following is not None:
            if not following.has_ended:
                return
            try:
                following.result()
            except LedgerClosed:
                pass  # the connection has ended, for example in a forked process
        self._batches.tracker = self._cluster.run(_begin, self._options.selection, may_be_gone)
        self._batches.tracker.on_change = self._notify
        self._nothing_new = self._report = None  # they name a version of the other tracker
        self._tracking = self._cluster.start(_run, self._batches.tracker)


# On the loop


async def _begin(
    client: LedgerClient, selection: Selection, may_be_gone: Collection[str]
) -> EndTracker:
    tracker = EndTracker(client, selection)
    await tracker.begin(may_be_gone)
    return tracker


async def _poll_ends(_client: LedgerClient, tracker: EndTracker) -> None:
    await tracker.poll_ends()


async def _check_named(
    client: LedgerClient, selection: Selection, may_be_gone: Collection[str]
) -> None:
    (await discover(client, selection)).check(may_be_gone)


async def _run(client: LedgerClient, tracker: EndTracker) -> None:
    if tracker.client is not client:
        raise LedgerClosed("the connection has ended")
    await tracker.run()


async def _initial(_client: LedgerClient, batches: MicroBatches) -> Offsets:
    return await batches.initial()


async def _latest(
    _client: LedgerClient, batches: MicroBatches, start: Offsets, limits: Limits, waited_ms: int
) -> Offsets:
    return await batches.latest(start, limits, waited_ms)


async def _newest(
    _client: LedgerClient, batches: MicroBatches, position: Offsets
) -> tuple[Offsets, Any]:
    return await batches.reported(position)


async def _settle_end(_client: LedgerClient, batches: MicroBatches) -> None:
    await batches.settle_end()


async def _partitions(
    client: LedgerClient,
    batches: MicroBatches,
    start: Offsets,
    end: Offsets,
    options: ReadOptions,
) -> list[LedgerPartition]:
    async def planned() -> list[LedgerPartition]:
        tasks = plan(
            await batches.ranges(start, end),
            task_bytes_max=options.max_bytes_per_task,
            tasks_min=options.min_tasks or options.default_tasks,
            task_bytes_min=SMALL_TASK_BYTES if options.min_tasks is None else 0,
        )
        return await make_partitions(
            client, options.cluster, tasks, rows_per_batch=options.rows_per_batch,
            is_loss_error=options.fail_on_data_loss,
        )  # fmt: skip

    # If segments are purged while this runs, the next try does not include them.
    return await batches.retrying(planned)
