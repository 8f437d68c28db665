"""The columns of a stream in Spark, their Spark and Arrow types, and what a sink takes.

Names and types are fixed: they are the connector's interface. No connection, no data.
PySpark is imported when a schema is asked for, so that options can be read without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

COLUMNS = (
    "stream", "partition", "segment", "entry", "slot", "sequence", "event_time", "append_time",
    "key", "value", "headers",
)  # fmt: skip
NULLABLE = frozenset({"event_time", "key"})
SORT_COLUMNS = ("event_time", "key", "value")
"""What the rows of a batch can be ordered by in the sink."""

SINK_COLUMNS: dict[str, str] = {
    "value": "binary or string",
    "key": "binary or string",
    "event_time": "timestamp, or long: milliseconds since 1970",
    "headers": "array<struct<name: string, value: binary>> or map<string, binary>",
    "partition": "int: the partition of the target",
    "stream": "string: the target, NAMESPACE/STREAM",
}
"""Columns a sink takes, with their types."""


def spark_schema(columns: tuple[str, ...] | None = None) -> StructType:
    """The schema of these columns, in this order; None: all."""
    from pyspark.sql import types as t

    header = t.StructType(
        [
            t.StructField("name", t.StringType(), False),
            t.StructField("value", t.BinaryType(), False),
        ]
    )
    kinds: dict[str, DataType] = {
        "stream": t.StringType(),
        "partition": t.IntegerType(),
        "segment": t.LongType(),
        "entry": t.LongType(),
        "slot": t.IntegerType(),
        "sequence": t.LongType(),
        "event_time": t.TimestampType(),
        "append_time": t.TimestampType(),
        "key": t.BinaryType(),
        "value": t.BinaryType(),
        "headers": t.ArrayType(header, False),
    }
    return t.StructType(
        [t.StructField(name, kinds[name], name in NULLABLE) for name in columns or COLUMNS]
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that batches read under this Spark schema must have, to the flag."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def read_schema(wanted: StructType | None, columns: tuple[str, ...] | None = None) -> StructType:
    """The schema of a read: as the option `columns` says, or as the user's schema wants.

    Raises InvalidArgument for a schema with columns or types that streams do not have.
    """
    if wanted is None:
        return spark_schema(columns)
    ours = {field.name: field for field in spark_schema()}
    for field in wanted:
        own = ours.get(field.name)
        if own is None:
            raise InvalidArgument(
                f"schema: streams have no column {field.name!r}. Columns are {', '.join(COLUMNS)}; "
                f"leave out the ones you do not need, and make others with select"
            )
        if _plain(field.dataType) != _plain(own.dataType):
            cast = field.dataType.simpleString()
            raise InvalidArgument(
                f"schema: column {field.name} is {own.dataType.simpleString()}, not {cast}; read "
                f"it so, and cast: col({field.name!r}).cast({cast!r})"
            )
        if not field.nullable and own.nullable:
            raise InvalidArgument(f"schema: column {field.name} may be null, not so in the schema")
    if len(set(wanted.names)) != len(wanted.names) or not wanted.names:
        raise InvalidArgument("schema: name each column once, and at least one")
    return wanted


def _plain(kind: DataType) -> Any:
    """A type without what it says of nulls."""
    return kind.simpleString()
