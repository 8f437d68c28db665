"""The check of a DataFrame's columns before it is written."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, MapType, NullType, StringType, StructType

from connectors.spark.options.options import WriteOptions
from connectors.spark.sink.schema_check import check_sink_schema
from ledger.errors import InvalidArgument

_OPTIONS = WriteOptions.parse(
    {"cluster": "memory:x", "stream": "demo/clicks", "sortWithinBatch": "key"},
    {}, is_streaming=False,
)  # fmt: skip


def test_columns_are_found_without_regard_to_case() -> None:
    pair = StructType().add("Key", "string").add("VALUE", "binary")
    schema = StructType().add("VALUE", "string").add("Key", "binary").add("Event_Time", "long")
    check_sink_schema(schema.add("HEADERS", ArrayType(pair)), _OPTIONS)


def test_values_may_be_nothing_but_nulls() -> None:
    headers = MapType(StringType(), NullType())
    schema = StructType().add("key", "string").add("value", NullType()).add("headers", headers)
    check_sink_schema(schema, _OPTIONS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": "string", "VALUE": "string"}, "given twice .*value, VALUE"),
        ({"VALUE": "integer"}, r"column 'VALUE' is int; .*Cure: CAST\(value AS STRING\)"),
        ({"value": "string", "Offset": "long"}, "column 'Offset' is not part of a record"),
    ],
)
def test_a_wrong_column_is_named_as_it_was_written(columns: dict[str, str], message: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    with pytest.raises(InvalidArgument, match=message):
        check_sink_schema(schema, _OPTIONS)
