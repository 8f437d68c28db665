"""The connector with points at which its processes can be ordered to die: `format("mortal")`.

Wraps what Spark calls, and the metadata store under it; the product's own code does all of the
work and knows of nothing. Points are named after the process and the step.
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
from tests.spark.kills.orders import OrderedFailure, Orders

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_POINTS = ("source.initialOffset, before", "source.initialOffset, after")
"""Passed only by a query that has no Spark checkpoint yet."""
START_POINTS = ("source.begin", "plan.read")
"""Passed once by each run of a query."""
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


class MortalDataSource(LedgerstreamDataSource):
    """With the option `orders`, a directory; `bug`: see MortalWriter."""

    def __init__(self, options: dict[str, str]) -> None:
        ours = {k.lower(): v for k, v in options.items() if k.lower() in ("orders", "bug")}
        super().__init__({k: v for k, v in options.items() if k.lower() not in ours})
        self.orders = Orders(Path(ours["orders"]))
        self.bug = ours.get("bug", "")

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamReader(self, schema: StructType) -> Any:
        self.orders.passes("plan.read" if _is_planner("plan_data_source_read") else "source.begin")
        return MortalReader(super().streamReader(schema), self.orders)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        if _is_planner("write_into_data_source"):
            self.orders.passes("plan.write")
        return MortalWriter(super().streamWriter(schema, overwrite), self.orders, self.bug)


def _is_planner(module: str) -> bool:
    """Whether this process is the one that runs that module of PySpark's."""
    return any(module in word for word in sys.argv)


class MortalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, inner: Any, orders: Orders) -> None:
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


class MortalWriter(DataSourceStreamArrowWriter):
    """`bug`: what is wrong with it, for tests that must find it. "forgets": takes each attempt at a
    batch for another batch. "loses": the first rows of a task are not written."""

    def __init__(self, inner: Any, orders: Orders, bug: str = "") -> None:
        self.inner = inner
        self.orders = orders
        self.bug = bug

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self.orders.passes("write.begin")
        message: WriterCommitMessage = self.inner.write(self._mortal(iterator))
        self.orders.passes("write.end")
        return message

    def _mortal(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(iterator):
            if not (self.bug == "loses" and number == 0):
                yield batch
            self.orders.passes("write.middle")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.bug == "forgets":
            messages = [replace(message, batch_id=None) for message in messages]  # type: ignore[type-var]
            batchId = time.time_ns()
        with self.orders.around("commit"), _MortalStore(self.orders):
            self.inner.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with self.orders.around("abort"):
            self.inner.abort(messages, batchId)


class _MortalStore:
    """The transaction that decides about a batch can kill, or fail before or after it was done."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def __enter__(self) -> None:
        orders, transaction = self._orders, LazyStore.transaction
        self._transaction = transaction

        async def mortal(store: LazyStore, changes: Sequence[Change]) -> None:
            if not any(change.path.startswith(_SINK_NODES) for change in changes):
                return await transaction(store, changes)
            try:
                orders.passes("transaction, before")
                await transaction(store, changes)
                orders.passes("transaction, after")
            except OrderedFailure as failure:
                raise MetadataUnavailable(str(failure)) from None

        LazyStore.transaction = mortal  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        LazyStore.transaction = self._transaction  # type: ignore[method-assign]
