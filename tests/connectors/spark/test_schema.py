"""The columns of streams in Spark and Arrow, and the schemas that users may give."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from connectors.spark.schema import COLUMNS, arrow_schema, read_schema, spark_schema
from ledger.errors import InvalidArgument


def test_the_types_are_these() -> None:
    header = pa.struct(
        [pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())]
    )
    times = pa.timestamp("us", tz="UTC")
    assert arrow_schema(spark_schema()) == pa.schema(
        [
            pa.field("stream", pa.string(), nullable=False),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("segment", pa.int64(), nullable=False),
            pa.field("entry", pa.int64(), nullable=False),
            pa.field("slot", pa.int32(), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("event_time", times),
            pa.field("append_time", times, nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(pa.field("element", header, False)), nullable=False),
        ]
    )
    assert tuple(spark_schema().names) == COLUMNS


def test_a_schema_may_have_some_columns_in_any_order() -> None:
    wanted = StructType([StructField("value", BinaryType()), StructField("sequence", LongType())])
    assert read_schema(wanted) is wanted
    assert read_schema(None) == spark_schema()
    assert read_schema(None, ("key", "stream")).names == ["key", "stream"]


def test_a_schema_from_before_there_were_null_values_is_accepted() -> None:
    header = StructType().add("name", "string", False).add("value", "binary", False)
    wanted = StructType().add("value", "binary", False)
    wanted.add("headers", ArrayType(header, False), False)
    assert read_schema(wanted) is wanted


def test_the_names_of_a_schema_keep_their_case() -> None:
    wanted = StructType([StructField("Value", BinaryType()), StructField("KEY", BinaryType())])
    assert read_schema(wanted).names == ["Value", "KEY"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ([StructField("valu", BinaryType())], ["no column 'valu'", "append_time"]),
        (
            [StructField("value", StringType())],
            ["value is binary, not string", "col('value').cast('string')"],
        ),
        ([StructField("partition", LongType())], ["partition is int, not bigint"]),
        ([StructField("slot", IntegerType()), StructField("slot", IntegerType())], ["once"]),
        ([StructField("slot", IntegerType()), StructField("SLOT", IntegerType())], ["once"]),
        ([StructField("VALUE", StringType())], ["VALUE is binary", "col('VALUE')"]),
        ([StructField("event_time", TimestampType(), False)], ["event_time may be null"]),
        ([], ["at least one"]),
    ],
)
def test_a_schema_with_unknown_columns_is_refused(
    wanted: list[StructField], words: list[str]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_schema(StructType(wanted))
    assert [word for word in words if word not in str(caught.value)] == []
