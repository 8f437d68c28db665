"""`spark.readStream`: the micro-batch source, as Spark's engine asks it. Core: micro_batches.

One object lives as long as the query, in a process beside the driver; what executors get of it is
the options. Answers at once when nothing happened. Nothing unconfirmed is ever read.
"""

from __future__ import annotations

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

from connectors.spark.client.client_cache import Running, kept
from connectors.spark.client.quickack import acknowledge_at_once
from connectors.spark.core.admission import NO_LIMITS, Limits
from connectors.spark.core.offsets import Offsets
from connectors.spark.core.planner import plan
from connectors.spark.error_messages import plain_errors
from connectors.spark.options.options import ReadOptions, Selection
from connectors.spark.schema import arrow_schema
from connectors.spark.source.data_loss import LossLog
from connectors.spark.source.discovery import discover
from connectors.spark.source.end_tracker import Followers
from connectors.spark.source.input_partitions import Piece, make_pieces, read_piece
from connectors.spark.source.micro_batches import MicroBatches
from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerClosed

if TYPE_CHECKING:
    import pyarrow as pa

SMALL_TASK_BYTES = 256 << 10
"""A micro-batch is not cut into smaller tasks than this unless option minTasks says so."""
_UNDERSUPPLIED_PAUSE_S = 0.05
"""Between looks while fewer than minRecordsPerTrigger are there."""


@dataclass(frozen=True, slots=True)
class _Quiet:
    """Nothing is to be read from `start` on while `version` is that, or before `until_s`."""

    start: dict[str, Any]
    version: int
    until_s: float


@plain_errors
class LedgerstreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams as micro-batches."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._cluster = kept(options.cluster)
        self._limits = Limits(
            records_max=options.max_records_per_trigger,
            bytes_max=options.max_bytes_per_trigger,
            records_min=options.min_records_per_trigger,
            delay_ms_max=options.max_trigger_delay_ms,
        )
        self._losses = LossLog(is_error=options.fail_on_data_loss)
        self._batches = MicroBatches(options.selection, options.starting, self._losses)
        self._following: Running[None] | None = None
        self._is_checked = False
        """Whether all streams that are named were there, or are in the offsets."""
        self._is_final = False
        self._position: Offsets | None = None
        self._quiet: _Quiet | None = None
        self._advanced_s = time.monotonic()

    def __reduce__(self) -> tuple[Any, ...]:
        # Executors get one to read with.
        return _for_reading, (self._options, self._schema)

    # Offsets

    def initialOffset(self) -> dict[str, Any]:
        self._follow(())
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
        now_s = time.monotonic()
        if self._is_quiet(start, now_s):
            assert self._quiet is not None, "not quiet"
            if not self._has_missed_news(self._quiet.version, now_s):
                return start
        begin = Offsets.from_json(start)
        self._follow(begin)
        if self._options.fail_on_data_loss:
            self._check_named(begin)  # else it goes on without those that were purged meanwhile
        limits = self._limits_of(limit)
        version = self._batches.followers.version
        waited_ms = int((now_s - self._advanced_s) * 1000)
        end = self._cluster.run(_latest, self._batches, begin, limits, waited_ms)
        if end is begin and self._has_missed_news(version, now_s):
            version = self._batches.followers.version
            end = self._cluster.run(_latest, self._batches, begin, limits, waited_ms)
        self._position = end
        if end is begin:
            is_waiting = limits.records_min is not None and not self._is_final
            until_s = now_s + _UNDERSUPPLIED_PAUSE_S if is_waiting else 0.0
            self._quiet = _Quiet(start, -1 if is_waiting else version, until_s)
            return start
        self._quiet = None
        self._advanced_s = now_s
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        position = self._position
        if position is None or self._following is None or self._following.has_ended:
            return None
        newest, lag = self._cluster.run(_newest, self._batches, position)
        return {
            **newest.to_json(),
            "lag": {"records": lag.records, "bytes": lag.nbytes, "seconds": lag.seconds},
            "lost_records": self._losses.records,
        }

    def prepareForTriggerAvailableNow(self) -> None:
        self._follow(())
        self._is_final = True
        self._cluster.run(_settle_end, self._batches)

    def _is_quiet(self, start: dict[str, Any], now_s: float) -> bool:
        quiet, following = self._quiet, self._following
        if quiet is None or following is None or following.has_ended:
            return False
        is_same = now_s < quiet.until_s or self._batches.followers.version == quiet.version
        return is_same and start == quiet.start

    def _has_missed_news(self, version: int, now_s: float) -> bool:
        """Whether the streams have moved on since `version` without its being known yet."""
        if self._is_final or (self._quiet is not None and now_s < self._quiet.until_s):
            return False
        followers = self._batches.followers
        self._cluster.run(_glance, followers)
        return followers.version != version

    def _limits_of(self, limit: ReadLimit) -> Limits:
        """All limits of the options go with the one that is handed to the engine; another one, that
        the engine sets, stands alone."""
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

    # Pieces

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, behind = Offsets.from_json(start), Offsets.from_json(end)
        self._follow({**begin, **behind})
        return self._cluster.run(_pieces, self._batches, begin, behind, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece), f"{partition!r} was not planned here"
        return read_piece(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        if self._following is not None and not self._following.has_ended:
            behind, batches = Offsets.from_json(end), self._batches
            self._cluster.post(lambda: batches.forget_before(behind))

    # Life

    def stop(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.cancel()

    def _check_named(self, may_be_gone: Collection[str]) -> None:
        if not self._is_checked:
            self._cluster.run(_check_named, self._options.selection, may_be_gone)
            self._is_checked = True

    def _follow(self, may_be_gone: Collection[str]) -> None:
        """Begins to follow the streams, unless somebody does."""
        following = self._following
        if following is not None:
            if not following.has_ended:
                return
            try:
                following.result()
            except LedgerClosed:
                pass  # the connection has ended, for instance with the process it was opened in
        self._batches.followers = self._cluster.run(_begin, self._options.selection, may_be_gone)
        self._following = self._cluster.start(_run, self._batches.followers)


class _Reading(LedgerstreamStreamReader):
    """What executors have of a reader."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema


def _for_reading(options: ReadOptions, schema: pa.Schema) -> LedgerstreamStreamReader:
    acknowledge_at_once()
    return _Reading(options, schema)


# On the loop


async def _begin(
    client: LedgerClient, selection: Selection, may_be_gone: Collection[str]
) -> Followers:
    followers = Followers(client, selection)
    await followers.begin(may_be_gone)
    return followers


async def _glance(_client: LedgerClient, followers: Followers) -> None:
    await followers.glance()


async def _check_named(
    client: LedgerClient, selection: Selection, may_be_gone: Collection[str]
) -> None:
    (await discover(client, selection)).check(may_be_gone)


async def _run(client: LedgerClient, followers: Followers) -> None:
    if followers.client is not client:
        raise LedgerClosed("the connection has ended")
    await followers.run()


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


async def _pieces(
    client: LedgerClient,
    batches: MicroBatches,
    start: Offsets,
    end: Offsets,
    options: ReadOptions,
) -> list[Piece]:
    async def planned() -> list[Piece]:
        tasks = plan(
            await batches.ranges(start, end),
            task_bytes_max=options.max_bytes_per_task,
            tasks_min=options.min_tasks or options.default_tasks,
            task_bytes_min=SMALL_TASK_BYTES if options.min_tasks is None else 0,
        )
        return await make_pieces(
            client, options.cluster, tasks, rows_per_batch=options.rows_per_batch,
            is_loss_error=options.fail_on_data_loss,
        )  # fmt: skip

    # What was purged between the two is not in the ranges of the next look.
    return await batches.steadily(planned)
