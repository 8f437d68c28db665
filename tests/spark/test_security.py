"""Sources and sinks on a secure cluster, by users with and without the right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.secure_users import credentials_file, new_user
from tests.spark.streams import Streams
from tests.system.cluster import StandaloneCluster

VALUES = [b"%d" % number for number in range(100)]


def test_the_right_to_read_does_not_admit_to_writing(
    spark: SparkSession,
    secure_cluster: StandaloneCluster,
    secure_streams: Streams,
    new_checkpoint: Callable[[], str],
    tmp_path: Path,
) -> None:
    source, target = secure_streams.written(VALUES), secure_streams.create("refused")
    rita = new_user(secure_cluster, tmp_path, "rita", "tests:read")
    options = {"cluster": secure_cluster.uri, "credentialsFile": str(rita)}
    frame = spark.read.format("ledgerstream").options(**options).load(source)
    rows = frame.select("value")
    assert sorted(bytes(row.value) for row in rows.collect()) == sorted(VALUES)
    with pytest.raises(PySparkException) as by_batch:
        rows.write.format("ledgerstream").mode("append").options(**options, stream=target).save()
    moving = spark.readStream.format("ledgerstream").option("startingPosition", "earliest")
    query = (
        moving.options(**options)
        .load(source)
        .select("value")
        .writeStream.format("ledgerstream")
        .options(**options, stream=target, checkpointLocation=new_checkpoint())
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException) as by_query:
        query.awaitTermination()
    for error in (by_batch.value, by_query.value):
        assert "User 'rita' needs the role write on namespace 'tests'" in str(error)
        assert "permission grant rita tests --role write" in str(error)
    assert secure_streams.values(target) == []


def test_a_wrong_password_is_named_and_not_shown(
    spark: SparkSession,
    secure_cluster: StandaloneCluster,
    secure_streams: Streams,
    tmp_path: Path,
) -> None:
    source = secure_streams.written(VALUES)
    wrong = credentials_file(secure_cluster, tmp_path / "wrong.toml", "nobody", "not-its-p4ss")
    options = {"cluster": secure_cluster.uri, "credentialsFile": str(wrong)}
    with pytest.raises(PySparkException, match="refused to authenticate user 'nobody'") as refused:
        spark.read.format("ledgerstream").options(**options).load(source).collect()
    assert "not-its-p4ss" not in str(refused.value)
    missing = {**options, "credentialsFile": "not-distributed.toml"}
    with pytest.raises(PySparkException, match="not among the files that Spark has distributed"):
        spark.read.format("ledgerstream").options(**missing).load(source)
