"""`format("ledgerstream")`: what Spark asks for, handed on to the readers and the sink.

Spark pickles this class by its name: whoever plans or executes must be able to import it. It opens
no connection and imports the heavy parts only when they are asked for.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from connectors.spark.options import ReadOptions, WriteOptions
from connectors.spark.schema import read_schema
from ledger.errors import InvalidArgument

if TYPE_CHECKING:
    from connectors.spark.batch_reader import LedgerstreamReader
    from connectors.spark.sink import LedgerstreamStreamWriter, LedgerstreamWriter
    from connectors.spark.stream_reader import LedgerstreamStreamReader


class LedgerstreamDataSource(DataSource):
    """Streams of ledgerstream as a source and a sink of Spark."""

    @classmethod
    def name(cls) -> str:
        return "ledgerstream"

    def schema(self) -> StructType:
        """The columns of the option `columns`, or all; asked for if the user gave no schema."""
        columns = self.options.get("columns")
        if columns is None:
            return read_schema(None)
        return read_schema(None, ReadOptions.columns_of(columns))

    def reader(self, schema: StructType) -> LedgerstreamReader:
        from connectors.spark.batch_reader import LedgerstreamReader

        options = ReadOptions.parse(self.options, os.environ, is_streaming=False)
        return LedgerstreamReader(options, read_schema(schema))

    def streamReader(self, schema: StructType) -> LedgerstreamStreamReader:
        from connectors.spark.stream_reader import LedgerstreamStreamReader

        options = ReadOptions.parse(self.options, os.environ, is_streaming=True)
        return LedgerstreamStreamReader(options, read_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> LedgerstreamWriter:
        from connectors.spark.sink import LedgerstreamWriter

        if overwrite:
            raise InvalidArgument(
                'mode("overwrite"): a stream is appended to, never overwritten. Use '
                'mode("append"), and truncate or delete the stream if its records are to go'
            )
        options = WriteOptions.parse(self.options, os.environ, is_streaming=False)
        return LedgerstreamWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LedgerstreamStreamWriter:
        from connectors.spark.sink import LedgerstreamStreamWriter

        if overwrite:
            raise InvalidArgument(
                'outputMode("complete"): a stream is appended to, never overwritten. Use '
                'outputMode("append") with a watermark, or "update"'
            )
        options = WriteOptions.parse(self.options, os.environ, is_streaming=True)
        return LedgerstreamStreamWriter(options, schema, overwrite)
