"""`spark.read`: plans a batch on the driver's side and reads its pieces in tasks.

Where each stream begins and ends is settled once, when the partitions are asked for: a batch reads
the same rows however long it takes and whatever is appended meanwhile.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark_filters
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from connectors.spark.client.client_cache import kept
from connectors.spark.client.quickack import acknowledge_at_once
from connectors.spark.core.filters import NO_BOUNDS, Bounds, Comparison, bounded
from connectors.spark.core.offsets import StreamOffset
from connectors.spark.core.planner import SegmentRange, plan, ranges_between
from connectors.spark.error_messages import plain_errors
from connectors.spark.monitoring.plan_summary import tell_plan
from connectors.spark.options.options import ReadOptions
from connectors.spark.schema import arrow_schema
from connectors.spark.source.data_loss import LossLog
from connectors.spark.source.discovery import (
    ending_offset,
    open_streams,
    place_of,
    starting_offset,
)
from connectors.spark.source.input_partitions import Piece, make_pieces, read_piece
from connectors.spark.source.stream_offsets import StreamPlaces
from ledger.client import LedgerClient
from ledger.errors import NoSuchEntry, NoSuchLedger
from ledger.runtime.concurrency import map_bounded
from stream.core.position import NUMBER_MAX, FromSequence, FromTime, Start

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_PURGES_MAX = 5
"""So often segments may be purged under the hands of whoever plans."""

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


@plain_errors
class LedgerstreamReader(DataSourceReader):
    """Reads what the options say, as it is when the partitions are asked for."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._bounds = NO_BOUNDS

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        acknowledge_at_once()

    def partitions(self) -> Sequence[InputPartition]:
        return kept(self._options.cluster).run(_plan, self._options, self._bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Piece):
            return iter(())  # Spark makes up a partition where there is nothing to read
        return read_piece(partition, self._schema)


@plain_errors
class FilteringReader(LedgerstreamReader):
    """The same, where Spark hands over the filters of the query. Spark refuses a reader that can
    take them where `spark.sql.python.filterPushdown.enabled` is not set.

    Spark (4.3) keeps the partitions that were planned with filters, and reads them again when the
    next query on the same DataFrame has none to push: rows would be missing, and nothing here is
    asked then. So filters are taken only where the option says that this cannot be.
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
                self._bounds, is_exact = bounded(self._bounds, comparison)
            if not is_exact:
                left.append(each)
        return left


def reader_for(options: ReadOptions, schema: StructType) -> LedgerstreamReader:
    """The reader that Spark can use in this process."""
    kind = FilteringReader if _is_pushing() else LedgerstreamReader
    return kind(options, schema)


_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


def _is_pushing() -> bool:
    """Whether Spark asks for the reader in order to push filters: in a process for just that."""
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


async def _plan(client: LedgerClient, options: ReadOptions, bounds: Bounds) -> list[Piece]:
    """What the batch reads, as it is now. Raises what finding streams and places raises."""
    for _ in range(_PURGES_MAX):
        try:
            return await _plan_once(client, options, bounds)
        except (NoSuchLedger, NoSuchEntry) as error:
            _log.info("purged while a batch was planned, which begins anew: %s", error)
    return await _plan_once(client, options, bounds)


async def _plan_once(client: LedgerClient, options: ReadOptions, bounds: Bounds) -> list[Piece]:
    losses = LossLog(is_error=options.fail_on_data_loss)
    tasks = plan(
        await batch_ranges(client, options, losses, bounds),
        task_bytes_max=options.max_bytes_per_task,
        tasks_min=options.min_tasks or options.default_tasks,
    )
    pieces = await make_pieces(
        client, options.cluster, tasks, rows_per_batch=options.rows_per_batch, bounds=bounds,
        is_loss_error=options.fail_on_data_loss,
    )  # fmt: skip
    tell_plan(options, tasks)
    return pieces


async def batch_ranges(
    client: LedgerClient, options: ReadOptions, losses: LossLog, bounds: Bounds = NO_BOUNDS
) -> list[SegmentRange]:
    """What a batch reads: each stream from where options say it starts to where they say it ends,
    as it is now, without what cannot be within the bounds. Streams in the order of their names.

    Raises InvalidArgument for a place behind the end, DataLoss, NoSuchStream, NoSuchCursor.
    """
    streams = await open_streams(client, options.selection)

    async def of_one(name: str) -> list[SegmentRange]:
        base, _, partition = name.partition("#")
        if not bounds.may_be_in_stream(base, int(partition or 0)):
            return []
        places = streams[name]
        start = await starting_offset(places, options.starting, losses)
        end = await ending_offset(places, options.ending)
        start, end = await _within(places, start, end, bounds)
        found = ranges_between(name, places.metadata, start, end)
        return [each for each in found if bounds.may_be_in_segment(each.segment)]

    found = await map_bounded(sorted(streams), of_one)
    return [each for ranges in found for each in ranges]


async def _within(
    places: StreamPlaces, start: StreamOffset, end: StreamOffset, bounds: Bounds
) -> tuple[StreamOffset, StreamOffset]:
    """The same, nearer to each other where the bounds say that nothing matches beyond: a few
    headers of entries are read then, instead of all that is there."""
    lows: list[Start] = []
    highs: list[Start] = []
    if bounds.sequence.low > start.sequence:
        lows.append(FromSequence(min(bounds.sequence.low, end.sequence)))
    if bounds.sequence.high < end.sequence:
        highs.append(FromSequence(max(bounds.sequence.high + 1, start.sequence)))
    # Not so of event times: to find one here is to read all that is before it, one by one.
    if 0 < bounds.append_ms.low <= NUMBER_MAX:
        lows.append(FromTime(bounds.append_ms.low))
    if 0 <= bounds.append_ms.high < NUMBER_MAX:
        highs.append(FromTime(bounds.append_ms.high + 1))
    for place in lows:
        start = max(start, await place_of(places, place), key=_sequence)
    for place in highs:
        end = min(end, await place_of(places, place), key=_sequence)
    return start, end


def _sequence(offset: StreamOffset) -> int:
    return offset.sequence
