"""`format("ledgerstream")`: the entry point for Spark, which creates the readers and the sink.

Spark pickles this class by name, so that every process that plans or executes must be able to
import it. Errors in options and names are found here, on the driver, before any task starts. The
readers and the sink are imported only when they are needed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from connectors.spark.core.cluster_access import ClusterAccess
from connectors.spark.error_messages import errors_without_traceback
from connectors.spark.options.options import ReadOptions, Selection, WriteOptions
from connectors.spark.schema import read_schema
from connectors.spark.version import check_pyarrow, check_pyspark
from ledger.errors import InvalidArgument, LedgerError

if TYPE_CHECKING:
    from connectors.spark.sink.sink import LedgerstreamStreamWriter, LedgerstreamWriter
    from connectors.spark.source.batch_reader import LedgerstreamReader

_known_targets: set[tuple[ClusterAccess, str]] = set()
"""Targets of streaming writes that exist: Spark asks again for every micro-batch."""
_KNOWN_TARGETS_MAX = 1000


@errors_without_traceback
class LedgerstreamDataSource(DataSource):
    """Makes streams of ledgerstream a source and a sink of Spark."""

    @classmethod
    def name(cls) -> str:
        return "ledgerstream"

    def schema(self) -> StructType:
        """Returns the columns of the option `columns`, or all, if the user gave no schema."""
        _check_here()
        options = ReadOptions.parse(self.options, os.environ, is_streaming=None)
        # A query that may lose records continues without a deleted stream. A new query and a
        # batch are refused later.
        may_be_gone = not options.fail_on_data_loss
        _check_exist(options.cluster, options.selection, may_be_gone=may_be_gone)
        return read_schema(None, options.columns)

    def reader(self, schema: StructType) -> LedgerstreamReader:
        _check_here()
        from connectors.spark.source.batch_reader import reader_for

        options = ReadOptions.parse(self.options, os.environ, is_streaming=False)
        wanted = read_schema(schema)
        _check_exist(options.cluster, options.selection, may_be_none=False)
        return reader_for(options, wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            _check_here()
            from connectors.spark.source.stream_reader import LedgerstreamStreamReader

            options = ReadOptions.parse(self.options, os.environ, is_streaming=True)
            return LedgerstreamStreamReader(options, read_schema(schema))
        except LedgerError as error:
            return _FailingReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> LedgerstreamWriter:
        _check_here()
        from connectors.spark.sink.sink import LedgerstreamWriter

        if overwrite:
            raise InvalidArgument(
                'mode("overwrite"): a stream is appended to, never overwritten. Use '
                'mode("append"), and truncate or delete the stream to remove its records'
            )
        options = WriteOptions.parse(self.options, os.environ, is_streaming=False)
        _check_target(options)
        return LedgerstreamWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LedgerstreamStreamWriter:
        _check_here()
        from connectors.spark.sink.sink import LedgerstreamStreamWriter

        if overwrite:
            raise InvalidArgument(
                'outputMode("complete"): a stream is appended to, never overwritten. Use '
                'outputMode("append"), with a watermark if rows are aggregated'
            )
        options = WriteOptions.parse(self.options, os.environ, is_streaming=True)
        _check_target(options)
        return LedgerstreamStreamWriter(options, schema, overwrite)


@errors_without_traceback
class _FailingReader(DataSourceStreamReader):
    """A reader whose methods all raise one error.

    PySpark loses an error that is raised instead of returning a reader.
    """

    def __init__(self, error: LedgerError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:
        raise self._error

    def latestOffset(self, start: Any, limit: Any) -> NoReturn:
        raise self._error

    def partitions(self, start: Any, end: Any) -> NoReturn:
        raise self._error

    def read(self, partition: Any) -> NoReturn:
        raise self._error


def _check_here() -> None:
    check_pyspark()
    check_pyarrow()


def _check_exist(
    cluster: ClusterAccess,
    selection: Selection,
    *,
    may_be_none: bool = True,
    may_be_gone: bool = False,
) -> None:
    from connectors.spark.existence import check_exist

    check_exist(cluster, selection, may_be_none=may_be_none, may_be_gone=may_be_gone)


def _check_target(options: WriteOptions) -> None:
    """Checks that the default target exists or will be created. Raises NoSuchStream."""
    if options.stream is None or options.create_streams:
        return
    target = (options.cluster, options.stream)
    if options.is_streaming and target in _known_targets:
        return
    _check_exist(options.cluster, Selection(streams=(options.stream,)))
    if len(_known_targets) < _KNOWN_TARGETS_MAX:
        _known_targets.add(target)
