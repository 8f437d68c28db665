"""`spark.read`: plans a batch on the driver's side and reads its partitions in tasks.

The begin and the end in each stream are fixed once, when Spark requests the partitions: a batch
must always read the same rows, however long it takes and whatever is appended in the meantime.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from connectors.spark.client.client_cache import cached_cluster
from connectors.spark.core.filters import NO_BOUNDS, Bounds, Comparison, narrow
from connectors.spark.core.offsets import StreamOffset
from connectors.spark.core.planner import SegmentRange, plan, ranges_between
from connectors.spark.error_messages import errors_without_traceback
from connectors.spark.monitoring.plan_summary import print_plan
from connectors.spark.options.options import ReadOptions
from connectors.spark.schema import arrow_schema
from connectors.spark.source.data_loss import DataLossLog
from connectors.spark.source.discovery import (
    ending_offset,
    offset_at,
    open_streams,
    starting_offset,
)
from connectors.spark.source.input_partitions import (
    LedgerPartition,
    executor_reader,
    make_partitions,
)
from connectors.spark.source.stream_index import StreamIndex
from ledger.client import LedgerClient
from ledger.errors import NoSuchEntry, NoSuchLedger
from ledger.runtime.concurrency import map_bounded
from stream.core.position import NUMBER_MAX, FromSequence, FromTime, Start
from stream.store.pages import PageLost

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_PURGES_MAX = 5
"""How many times planning starts again because segments were purged."""

_OPERATORS: dict[type[Filter], str] = {
    spark_filters.EqualTo: "=",
    spark_filters.EqualNullSafe: "=",
    spark_filters.LessThan: "<",
    spark_filters.LessThanOrEqual: "<=",
    spark_filters.GreaterThan: ">",
    spark_filters.GreaterThanOrEqual: ">=",
    spark_filters.In: "in",
    spark_filters.StringStartsWith: "prefix",
    spark_filters.IsNotNull: "not null",
}


@errors_without_traceback
class LedgerstreamReader(DataSourceReader):
    """Reads the streams of the options, as they are when Spark requests the partitions."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._bounds = NO_BOUNDS

    def __reduce__(self) -> tuple[Any, ...]:
        return executor_reader, (self._schema,)

    def partitions(self) -> Sequence[InputPartition]:
        return cached_cluster(self._options.cluster).run(_plan, self._options, self._bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return executor_reader(self._schema).read(partition)


@errors_without_traceback
class FilteringReader(LedgerstreamReader):
    """A LedgerstreamReader that accepts the filters of the query.

    Spark refuses such a reader unless `spark.sql.python.filterPushdown.enabled` is set.

    Spark (4.3) keeps the partitions that were planned with filters, and reads them again if the
    next query on the same DataFrame pushes no filters. Rows would be missing, and the reader is
    not called then. So filters are accepted only if the option pushFilters excludes that case.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Returns the filters that Spark must evaluate itself."""
        if not self._options.push_filters:
            return filters
        left = []
        for each in filters:
            comparison = _comparison(each)
            is_exact = False
            if comparison is not None:
                self._bounds, is_exact = narrow(self._bounds, comparison)
            if not is_exact:
                left.append(each)
        return left


def reader_for(options: ReadOptions, schema: StructType) -> LedgerstreamReader:
    """The reader that Spark can use in this process."""
    kind = FilteringReader if _is_pushing() else LedgerstreamReader
    return kind(options, schema)


_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


def _is_pushing() -> bool:
    """Returns whether this is the process in which Spark pushes filters to a reader."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(spec, "name", "") == _PUSHING


def _comparison(each: Filter) -> Comparison | None:
    operator = _OPERATORS.get(type(each))
    column: tuple[str, ...] = getattr(each, "attribute", ())
    if operator is None or len(column) != 1:
        return None
    values = getattr(each, "value", ())
    if operator == "in":
        values = tuple(values)
    elif operator != "not null":
        values = (values,)
    if any(value is None for value in values):
        return None
    return Comparison(column[0], operator, values)


async def _plan(
    client: LedgerClient, options: ReadOptions, bounds: Bounds
) -> list[LedgerPartition]:
    """Plans the batch as the streams are now. Raises what finding streams and offsets raises."""
    for _ in range(_PURGES_MAX):
        try:
            return await _plan_once(client, options, bounds)
        except (NoSuchLedger, NoSuchEntry, PageLost) as error:
            _log.info(
                "segments were purged while a batch was planned; it is planned again cause=%s",
                error,
            )
    return await _plan_once(client, options, bounds)


async def _plan_once(
    client: LedgerClient, options: ReadOptions, bounds: Bounds
) -> list[LedgerPartition]:
    losses = DataLossLog(is_error=options.fail_on_data_loss)
    tasks = plan(
        await batch_ranges(client, options, losses, bounds),
        task_bytes_max=options.max_bytes_per_task,
        tasks_min=options.min_tasks or options.default_tasks,
    )
    partitions = await make_partitions(
        client, options.cluster, tasks, rows_per_batch=options.rows_per_batch, bounds=bounds,
        is_loss_error=options.fail_on_data_loss,
    )  # fmt: skip
    print_plan(options, tasks)
    return partitions


async def batch_ranges(
    client: LedgerClient, options: ReadOptions, losses: DataLossLog, bounds: Bounds = NO_BOUNDS
) -> list[SegmentRange]:
    """Returns the ranges that a batch reads: each stream from its start to its end as of now.

    Ranges that cannot match the bounds are left out. Streams are in the order of their names.
    Raises InvalidArgument for a position after the end, DataLoss, NoSuchStream, NoSuchCursor.
    """
    streams = await open_streams(client, options.selection)

    async def of_one(name: str) -> list[SegmentRange]:
        base, _, partition = name.partition("#")
        if not bounds.may_be_in_stream(base, int(partition or 0)):
            return []
        index = streams[name]
        start = await starting_offset(index, options.starting, losses)
        end = await ending_offset(index, options.ending)
        start, end = await _within(index, start, end, bounds)
        found = ranges_between(name, await index.segments_between(start, end), start, end)
        return [each for each in found if bounds.may_be_in_segment(each.segment)]

    found = await map_bounded(sorted(streams), of_one)
    return [each for ranges in found for each in ranges]


async def _within(
    index: StreamIndex, start: StreamOffset, end: StreamOffset, bounds: Bounds
) -> tuple[StreamOffset, StreamOffset]:
    """Narrows the range to the bounds.

    This reads a few headers of entries, instead of all the records outside the bounds.
    """
    lows: list[Start] = []
    highs: list[Start] = []
    if bounds.sequence.low > start.sequence:
        lows.append(FromSequence(min(bounds.sequence.low, end.sequence)))
    if bounds.sequence.high < end.sequence:
        highs.append(FromSequence(max(bounds.sequence.high + 1, start.sequence)))
    # Event times do not narrow the range: finding one would read every entry before it.
    if 0 < bounds.append_ms.low <= NUMBER_MAX:
        lows.append(FromTime(bounds.append_ms.low))
    if 0 <= bounds.append_ms.high < NUMBER_MAX:
        highs.append(FromTime(bounds.append_ms.high + 1))
    for place in lows:
        start = max(start, await offset_at(index, place), key=_sequence)
    for place in highs:
        end = min(end, await offset_at(index, place), key=_sequence)
    return start, end


def _sequence(offset: StreamOffset) -> int:
    return offset.sequence
