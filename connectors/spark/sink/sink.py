"""The exactly-once sink: tasks write ledgers of their own, the driver commits all of a batch.

When `commit` has returned, the whole batch is in its streams, once per (sink, batch), by a single
metadata transaction (stream/sinks/sinks.py). The objects are pickled to tasks and back: they hold
options and numbers, never a connection. Each process of Spark that starts imports this module, so
that what only a driver or a task needs is imported where it is used. Must never delete a ledger
without checking that no stream has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from connectors.spark.client.quickack import set_quickack
from connectors.spark.error_messages import errors_without_traceback
from connectors.spark.sink.schema_check import check_sink_schema
from connectors.spark.sink.sink_batch import SinkBatch
from connectors.spark.sink.task_results import SmallResult, TaskLedger
from ledger.errors import InvalidArgument, LedgerError
from stream.core.sink_owner import QUERY_ORIGIN, SinkQuery

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from connectors.spark.core.cluster_access import ClusterAccess
    from connectors.spark.options.options import WriteOptions
    from connectors.spark.sink.routing import Target, TargetStream

_log = logging.getLogger(__name__)

_made_targets: set[tuple[ClusterAccess, str]] = set()
"""Targets of streaming writes with createStreams: Spark makes a writer for every micro-batch."""
_MADE_TARGETS_MAX = 1000

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
RUN_PROPERTY = "spark.jobGroup.id"
"""Local properties of a streaming query's tasks, also of those of a write in `foreachBatch` by the
query's own thread. The id is the same after a restart from the same Spark checkpoint; the job group
of a query is its run id, which is new with each start."""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The message of a task to the driver. `query_id` and `run_id` are None outside of a query,
    `batch_id` in a batch write; `partition` is -1 outside of Spark."""

    ledgers: tuple[TaskLedger, ...]
    partition: int = -1
    query_id: str | None = None
    batch_id: int | None = None
    run_id: str | None = None
    small: tuple[SmallResult, ...] = ()
    """The rows themselves, if they are few: the driver writes them."""

    @property
    def records(self) -> int:
        written = sum(each.ledger.end.records for each in self.ledgers)
        return written + sum(each.records for each in self.small)


@errors_without_traceback
class _Sink:
    """The common part of batch and streaming writers."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Checks on the driver, before any task starts, that the rows can be written.

        Raises InvalidArgument; with `createStreams` what creating a stream raises.
        """
        assert not overwrite, "the data source refuses it"
        check_sink_schema(schema, options)
        self.options = options
        self._known_targets: dict[Target, TargetStream] = {}
        if options.create_streams and options.stream is not None:
            target = (options.cluster, options.stream)
            if options.is_streaming and target in _made_targets:
                return
            from connectors.spark.client.client_cache import cached_cluster
            from connectors.spark.sink.batch_commit import make_target

            make_target(cached_cluster(options.cluster), options.stream)
            if len(_made_targets) < _MADE_TARGETS_MAX:
                _made_targets.add(target)

    def __getstate__(self) -> dict[str, object]:
        """Spark pickles the writer for its tasks."""
        from connectors.spark.sink.task_writer import is_writable_here, known_targets

        options = self.options
        if not self._known_targets or options.is_streaming:
            # A batch write is pickled twice, and all of its tasks must know the same.
            self._known_targets = known_targets(options)
        if not is_writable_here(self._known_targets):
            options = replace(options, small_result_bytes=0)  # the driver could not write them
        return {**self.__dict__, "options": options}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Writes the rows of a task to ledgers of its own, which are then durable and closed; or
        returns the rows, if they are few."""
        set_quickack()
        from connectors.spark.sink.task_writer import TaskWriter

        options = self.options
        context = TaskContext.get()
        query_id = batch_id = run_id = None
        partition = -1
        attempt = ""
        if context is not None:
            partition = context.partitionId()
            attempt = (
                f"stage {context.stageId()} partition {partition} "
                f"attempt {context.attemptNumber()} task {context.taskAttemptId()}"
            )
            query_id = context.getLocalProperty(QUERY_PROPERTY)
            run_id = context.getLocalProperty(RUN_PROPERTY)
            if options.is_streaming:
                number = context.getLocalProperty(BATCH_PROPERTY)
                batch_id = None if number is None else int(number)
        sink_id, sink_batch = self._names(query_id, batch_id)
        batch = SinkBatch(sink_id, sink_batch, attempt)
        writer = TaskWriter(options, batch, max(0, partition), self._known_targets)
        results = writer.write(iterator)
        ledgers = tuple(each for each in results if isinstance(each, TaskLedger))
        small = tuple(each for each in results if isinstance(each, SmallResult))
        return TaskCommit(ledgers, partition, query_id, batch_id, run_id, small)

    def _names(self, query_id: str | None, batch_id: int | None) -> tuple[str | None, int | None]:
        """Returns the ids of sink and batch, or two Nones for a write without an identity."""
        options = self.options
        if not options.is_streaming:
            return options.txn_app_id, options.txn_version
        sink_id = options.sink_id or query_id
        return (None, None) if sink_id is None or batch_id is None else (sink_id, batch_id)

    def _commit(self, commits: Sequence[TaskCommit], batch_id: int | None) -> None:
        sink_id, sink_batch = self._identity(commits, batch_id)
        results = _in_order(commits)
        if not results and sink_id is None:
            return
        from connectors.spark.client.client_cache import cached_cluster
        from connectors.spark.sink.batch_commit import commit_results

        done = cached_cluster(self.options.cluster).run(
            commit_results, results, self.options,
            sink_id=sink_id, batch_id=sink_batch, origin=self._origin(commits),
            query=self._query(commits),
        )  # fmt: skip
        _log.info(
            "sink=%s batch=%s: %d records in %d results of tasks%s",
            sink_id, sink_batch, sum(commit.records for commit in commits), len(results),
            " were committed before" if done.is_repeat else "",
        )  # fmt: skip

    def _origin(self, commits: Sequence[TaskCommit]) -> str:
        """Returns what the sink's id belongs to: a second owner of the id would lose its rows."""
        if not self.options.is_streaming:
            return f"a write to {self.options.stream or 'the streams its rows name'}"
        query = self._query(commits)
        return "" if query is None else f"{QUERY_ORIGIN}{query.query_id}"

    def _query(self, commits: Sequence[TaskCommit]) -> SinkQuery | None:
        """Returns the query whose rows these are, or None if Spark did not name it: a batch write,
        unless it is made in `foreachBatch`, by the thread that called the function."""
        found = next((commit for commit in commits if commit.query_id), None)
        if found is None or found.query_id is None:
            return None
        return SinkQuery(
            query_id=found.query_id,
            run_id=found.run_id or "",
            name=self.options.query_name,
            checkpoint=self.options.checkpoint,
            is_consecutive=self.options.is_streaming,
        )

    def _abort(self, commits: Sequence[TaskCommit], batch_id: int | None) -> None:
        ledgers = [each for each in _in_order(commits) if isinstance(each, TaskLedger)]
        if not ledgers:
            return
        from connectors.spark.client.client_cache import cached_cluster
        from connectors.spark.sink.batch_commit import discard_task_ledgers

        sink_id, sink_batch = self._identity(commits, batch_id)
        try:
            count = cached_cluster(self.options.cluster).run(
                discard_task_ledgers, ledgers, sink_id=sink_id, batch_id=sink_batch
            )
        except LedgerError as error:
            # Spark reports why the batch failed; the janitor finds the remaining ledgers.
            _log.warning(
                "sink=%s batch=%s: ledgers of the failed batch are left to the janitor: %s",
                sink_id, sink_batch, error,
            )  # fmt: skip
        else:
            _log.info("sink=%s batch=%s: %d ledgers deleted", sink_id, sink_batch, count)

    def _identity(
        self, commits: Sequence[TaskCommit], batch_id: int | None
    ) -> tuple[str | None, int | None]:
        query_ids = {commit.query_id for commit in commits if commit.query_id is not None}
        if len(query_ids) > 1:
            raise InvalidArgument(f"the messages of one batch are from the queries {query_ids}")
        sink_id, sink_batch = self._names(next(iter(query_ids), None), batch_id)
        if (
            self.options.is_streaming
            and sink_id is None
            and any(c.ledgers or c.small for c in commits)
        ):
            raise InvalidArgument(
                f"batch {batch_id}: its tasks did not receive the id of the query, so that it "
                "could be committed twice. Cure: the option sinkId, a name of your own for this "
                "sink"
            )
        others = {c.batch_id for c in commits if c.batch_id not in (None, batch_id)}
        if others:
            raise InvalidArgument(f"batch {batch_id} has messages of the batches {others}")
        return sink_id, sink_batch


def _task_commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    """Returns the messages of the tasks that have not failed."""
    return [message for message in messages if isinstance(message, TaskCommit)]


def _all_commits(messages: Sequence[WriterCommitMessage | None]) -> list[TaskCommit]:
    """Returns the messages of all tasks. Raises InvalidArgument if one is missing, foreign or there
    twice: they may hold rows."""
    commits = _task_commits(messages)
    if len(commits) < len(messages):
        number = next(n for n, one in enumerate(messages) if not isinstance(one, TaskCommit))
        raise InvalidArgument(
            f"{len(messages) - len(commits)} of the {len(messages)} messages of the tasks are "
            f"missing or unknown, like that of task {number}: {str(messages[number])[:200]}; "
            "nothing of the batch is committed. Cure: run it again, with the same release of "
            "ledgerstream on executors and driver"
        )
    partitions = [commit.partition for commit in commits if commit.partition >= 0]
    if len(set(partitions)) < len(partitions):
        twice = next(one for one in partitions if partitions.count(one) > 1)
        raise InvalidArgument(
            f"the task of partition {twice} has more than one message among the {len(messages)} of "
            "this batch: its rows would be there twice; nothing of the batch is committed. Cure: "
            "run it again"
        )
    return commits


def _in_order(commits: Sequence[TaskCommit]) -> list[TaskLedger | SmallResult]:
    """Returns what tasks wrote or returned, ordered by partition, to keep the order of rows that
    Spark has sorted."""
    found: list[TaskLedger | SmallResult] = []
    for commit in sorted(commits, key=lambda commit: commit.partition):
        found += commit.ledgers
        found += commit.small
    return found


@errors_without_traceback
class LedgerstreamWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("ledgerstream").mode("append")`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Adds all rows to their streams.

        With txnAppId and txnVersion, only if neither this version nor a later one is committed.
        """
        self._commit(_all_commits(messages), None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes the ledgers of the tasks that are in no stream.

        Some may be: a commit can fail after it has taken effect.
        """
        self._abort(_task_commits(messages), None)


@errors_without_traceback
class LedgerstreamStreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("ledgerstream")`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Adds the batch to its streams; has no effect if it is committed already.

        Raises CommitOutOfOrder for a batch before the last one.
        """
        self._commit(_all_commits(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes the ledgers of the tasks that are in no stream, as for a batch write."""
        self._abort(_task_commits(messages), batchId)
