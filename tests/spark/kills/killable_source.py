"""The connector with named points at which its processes can be killed: `format("killable")`.

Wraps the methods that Spark calls, and the metadata store. The product's own code does all of the
work, and is not changed. Points are named after the process and the step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from connectors.spark.client.lazy_store import LazyStore
from connectors.spark.datasource import LedgerstreamDataSource
from ledger.errors import MetadataUnavailable
from ledger.metastore.base import Change
from tests.spark.kills.orders import KillOrders, OrderedFailure

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_POINTS = ("source.initialOffset, before", "source.initialOffset, after")
"""Points that only a query without a Spark checkpoint passes."""
START_POINTS = ("source.begin", "plan.read")
"""Points that each run of a query passes once."""
SOURCE_POINTS = (
    "source.latestOffset, before", "source.latestOffset, after",
    "source.partitions, before", "source.partitions, after",
    "source.commit, before", "source.commit, after",
)  # fmt: skip
PLAN_POINTS = ("plan.write",)
TASK_POINTS = (
    "read.begin", "read.middle", "read.end",
    "write.begin", "write.middle", "write.end",
)  # fmt: skip
COMMIT_POINTS = ("commit, before", "transaction, before", "transaction, after", "commit, after")
ABORT_POINTS = ("abort, before", "abort, after")

_SINK_NODES = "/ledgerstream/sinks/"


class KillableDataSource(LedgerstreamDataSource):
    """The data source. Options: `orders`, a directory, and `bug` (see KillableWriter)."""

    def __init__(self, options: dict[str, str]) -> None:
        ours = {k.lower(): v for k, v in options.items() if k.lower() in ("orders", "bug")}
        super().__init__({k: v for k, v in options.items() if k.lower() not in ours})
        self.orders = KillOrders(Path(ours["orders"]))
        self.bug = ours.get("bug", "")

    @classmethod
    def name(cls) -> str:
        return "killable"

    def streamReader(self, schema: StructType) -> Any:
        self.orders.passes("plan.read" if _is_planner("plan_data_source_read") else "source.begin")
        return KillableReader(super().streamReader(schema), self.orders)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        if _is_planner("write_into_data_source"):
            self.orders.passes("plan.write")
        return KillableWriter(super().streamWriter(schema, overwrite), self.orders, self.bug)


def _is_planner(module: str) -> bool:
    """Returns whether this process runs that module of PySpark."""
    return any(module in word for word in sys.argv)


class KillableReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, inner: Any, orders: KillOrders) -> None:
        self.inner = inner
        self.orders = orders

    def initialOffset(self) -> dict[str, Any]:
        with self.orders.around("source.initialOffset"):
            found: dict[str, Any] = self.inner.initialOffset()
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        limit: ReadLimit = self.inner.getDefaultReadLimit()
        return limit

    def prepareForTriggerAvailableNow(self) -> None:
        self.inner.prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.inner.reportLatestOffset()
        return found

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with self.orders.around("source.latestOffset"):
            found: dict[str, Any] = self.inner.latestOffset(start, limit)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with self.orders.around("source.partitions"):
            found: Sequence[InputPartition] = self.inner.partitions(start, end)
        return found

    def commit(self, end: dict[str, Any]) -> None:
        with self.orders.around("source.commit"):
            self.inner.commit(end)

    def stop(self) -> None:
        self.inner.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self.orders.passes("read.begin")
        for batch in self.inner.read(partition):
            yield batch
            self.orders.passes("read.middle")
        self.orders.passes("read.end")


class KillableWriter(DataSourceStreamArrowWriter):
    """The writer, with an optional `bug` that tests must find.

    "forgets": treats each attempt at a batch as the first one of another sink. "loses": does not
    write the first rows of a task.
    """

    def __init__(self, inner: Any, orders: KillOrders, bug: str = "") -> None:
        self.inner = inner
        self.orders = orders
        self.bug = bug

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self.orders.passes("write.begin")
        message: WriterCommitMessage = self.inner.write(self._observed(iterator))
        self.orders.passes("write.end")
        return message

    def _observed(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(iterator):
            if not (self.bug == "loses" and number == 0):
                yield batch
            self.orders.passes("write.middle")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.bug == "forgets":
            messages = [replace(message, batch_id=None) for message in messages]  # type: ignore[type-var]
            # A sink takes only the batches of its query, one by one: it has to be another sink.
            options = self.inner.options
            self.inner.options = replace(options, sink_id=f"attempt-{time.time_ns()}")
            batchId = 0
        with self.orders.around("commit"), _KillableStore(self.orders):
            self.inner.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with self.orders.around("abort"):
            self.inner.abort(messages, batchId)


class _KillableStore:
    """Adds points before and after the transaction that commits a batch."""

    def __init__(self, orders: KillOrders) -> None:
        self._orders = orders

    def __enter__(self) -> None:
        orders, transaction = self._orders, LazyStore.transaction
        self._transaction = transaction

        async def killable_transaction(store: LazyStore, changes: Sequence[Change]) -> None:
            if not any(change.path.startswith(_SINK_NODES) for change in changes):
                return await transaction(store, changes)
            try:
                orders.passes("transaction, before")
                await transaction(store, changes)
                orders.passes("transaction, after")
            except OrderedFailure as failure:
                raise MetadataUnavailable(str(failure)) from None

        LazyStore.transaction = killable_transaction  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        LazyStore.transaction = self._transaction  # type: ignore[method-assign]
