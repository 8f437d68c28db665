"""Checks the columns and types of a DataFrame before a query that writes it begins.

arrow_input.py checks the Arrow columns of each task again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.spark.schema import SINK_COLUMNS
from ledger.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from connectors.spark.options.options import WriteOptions


def check_sink_schema(schema: StructType, options: WriteOptions) -> None:
    """Raises InvalidArgument with the column, its type, the accepted types, and a cure."""
    names = [field.name.lower() for field in schema]
    for field in schema:
        if field.name.lower() not in SINK_COLUMNS:
            raise InvalidArgument(
                f"column {field.name!r} is not part of a record. A sink accepts "
                f"{'; '.join(f'{n} ({kind})' for n, kind in SINK_COLUMNS.items())}. Cure: select "
                "those, e.g. selectExpr('to_json(struct(*)) AS value')"
            )
    if len(set(names)) != len(names):
        raise InvalidArgument(
            f"a column is given twice (names are compared without regard to case): "
            f"{', '.join(field.name for field in schema)}. Cure: select it once"
        )
    if "value" not in names:
        raise InvalidArgument(
            f"there is no column 'value' ({SINK_COLUMNS['value']}), the payload of a record. "
            "Cure: selectExpr('to_json(struct(*)) AS value'), or another encoding"
        )
    for name, field in zip(names, schema, strict=True):
        if not _fits(name, field.dataType):
            raise InvalidArgument(
                f"column {field.name!r} is {field.dataType.simpleString()}; it must be "
                f"{SINK_COLUMNS[name]}. Cure: {_CURES[name]}"
            )
    if options.stream is None and "stream" not in names:
        raise InvalidArgument(
            "no target stream is given. Cure: the option stream (NAMESPACE/STREAM), or a column "
            "'stream'"
        )
    for name in options.sort_within_batch:
        if name not in names:
            raise InvalidArgument(
                f"option sortWithinBatch names column {name!r}, which is not written; the columns "
                f"are {', '.join(names)}"
            )


def _fits(name: str, kind: DataType) -> bool:
    from pyspark.sql import types as t

    is_bytes = isinstance(kind, t.BinaryType | t.StringType | t.CharType | t.VarcharType)
    if isinstance(kind, t.NullType):
        return True
    if name in ("value", "key"):
        return is_bytes
    if name == "event_time":
        return isinstance(kind, t.TimestampType | t.LongType)
    if name == "partition":
        return isinstance(kind, t.IntegerType | t.ShortType | t.ByteType | t.LongType)
    if name == "stream":
        return isinstance(kind, t.StringType | t.CharType | t.VarcharType)
    return _are_headers(kind)


def _are_headers(kind: DataType) -> bool:
    from pyspark.sql import types as t

    text, content = t.StringType, (t.BinaryType, t.StringType, t.NullType)
    if isinstance(kind, t.MapType):
        return isinstance(kind.keyType, text) and isinstance(kind.valueType, content)
    if not isinstance(kind, t.ArrayType) or not isinstance(kind.elementType, t.StructType):
        return False
    fields = kind.elementType.fields
    return (
        len(fields) == 2
        # Headers of Spark's Kafka source have a "key" instead of a "name".
        and fields[0].name.lower() in ("name", "key")
        and fields[1].name.lower() == "value"
        and isinstance(fields[0].dataType, text)
        and isinstance(fields[1].dataType, content)
    )


_CURES = {
    "value": "CAST(value AS STRING), to_json(...), to_avro(...)",
    "key": "CAST(key AS STRING)",
    "event_time": "CAST(event_time AS TIMESTAMP); a timestamp_ntz is not a point in time",
    "headers": "map_entries, transform(...), or leave it out",
    "partition": "CAST(partition AS INT)",
    "stream": "CAST(stream AS STRING)",
}
