"""The columns of a stream in Spark, their Spark and Arrow types, and the columns of a sink.

Names and types must never change: they are the connector's interface. Opens no connection and
reads no data. PySpark is imported only to build a schema, so that options can be read without it.
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
NULLABLE = frozenset({"event_time", "key", "value"})
SPARK_TIME_MS_MAX = ((1 << 63) - 1) // 1000
"""The last time that a timestamp of Spark can hold, ms since 1970; the first is its negative."""
SORT_COLUMNS = ("event_time", "key", "value")
"""The columns by which the sink can sort the rows of a batch."""

SINK_COLUMNS: dict[str, str] = {
    "value": "binary or string; null with a key: a tombstone",
    "key": "binary or string",
    "event_time": "timestamp, or long: milliseconds since 1970",
    "headers": "array<struct<name: string, value: binary>> or map<string, binary>",
    "partition": "int: the partition of the target",
    "stream": "string: the target, NAMESPACE/STREAM",
}
"""The columns that a sink accepts, with their types."""


def spark_schema(columns: tuple[str, ...] | None = None) -> StructType:
    """Returns the schema of these columns, in this order; None means all columns."""
    from pyspark.sql import types as t

    header = t.StructType(
        [
            t.StructField("name", t.StringType(), False),
            t.StructField("value", t.BinaryType(), True),
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
    """Returns the exact Arrow schema, nullability included, of batches with this Spark schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def read_schema(wanted: StructType | None, columns: tuple[str, ...] | None = None) -> StructType:
    """Returns the schema of a read: that of the option `columns`, or the user's own schema.

    Column names are compared without regard to case and keep the user's spelling. Raises
    InvalidArgument for a schema with columns or types that streams do not have.
    """
    if wanted is None:
        return spark_schema(columns)
    ours = {field.name: field for field in spark_schema()}
    for field in wanted:
        own = ours.get(field.name.lower())
        if own is None:
            raise InvalidArgument(
                f"schema: streams have no column {field.name!r}. Columns are {', '.join(COLUMNS)}; "
                f"leave out those that are not needed, and compute others with select"
            )
        if _plain(field.dataType) != _plain(own.dataType):
            cast = field.dataType.simpleString()
            raise InvalidArgument(
                f"schema: column {field.name} is {own.dataType.simpleString()}, not {cast}; read "
                f"it with its own type and cast it: col({field.name!r}).cast({cast!r})"
            )
        # A value may be declared NOT NULL, as it was before there were null values.
        if not field.nullable and own.nullable and own.name != "value":
            raise InvalidArgument(
                f"schema: column {field.name} may be null; the schema must declare it nullable"
            )
    if len({name.lower() for name in wanted.names}) != len(wanted.names) or not wanted.names:
        raise InvalidArgument(
            "schema: name at least one column, and each once, without regard to case"
        )
    return wanted


def _plain(kind: DataType) -> Any:
    """Returns a type without its nullability."""
    return kind.simpleString()
