"""The source, the batch reader and the sink on ZooKeeper metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import skip_without_zookeeper
from tests.spark.kills.injection import EXPECTED
from tests.spark.kills.killable_source import KillableDataSource
from tests.spark.kills.orders import KillOrder, KillOrders
from tests.spark.streams import Streams, connected
from tests.system.cluster import StandaloneCluster

pytestmark = pytest.mark.zookeeper

VALUES = [b"%d" % number for number in range(300)]


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    """Streams of a cluster with a ZooKeeper server of its own."""
    skip_without_zookeeper()
    directory = tmp_path_factory.mktemp("zookeeper-cluster") / "cluster"
    cluster = StandaloneCluster(directory, None, ("--metadata", "zookeeper"))
    try:
        cluster.start()
        with connected(cluster.uri) as streams:
            yield streams
    finally:
        cluster.stop()


def test_batches_are_read_and_written(spark: SparkSession, streams: Streams) -> None:
    assert streams.cluster.startswith("zk://")
    source, target = streams.written(VALUES, segments=3), streams.create("batch")
    rows = spark.read.format("ledgerstream").options(cluster=streams.cluster, stream=source).load()
    assert rows.count() == len(VALUES)
    write = rows.select("value").write.format("ledgerstream").mode("append")
    write.options(cluster=streams.cluster, stream=target).save()
    assert streams.values(target) == VALUES


@pytest.mark.parametrize("point", ["source.partitions, after", "transaction, after"])
def test_a_killed_query_continues(
    spark: SparkSession,
    streams: Streams,
    tmp_path: Path,
    new_checkpoint: Callable[[], str],
    point: str,
) -> None:
    spark.dataSource.register(KillableDataSource)
    source, target, checkpoint = streams.written(VALUES), streams.create("copy"), new_checkpoint()
    both = {"cluster": streams.cluster, "orders": str(tmp_path)}
    orders = KillOrders(tmp_path)

    def run() -> None:
        read = spark.readStream.format("killable").options(
            **both, stream=source, startingPosition="earliest", maxRecordsPerTrigger="100"
        )
        write = read.load().select("value").writeStream.format("killable")
        write = write.options(**both, stream=target, checkpointLocation=checkpoint)
        write.trigger(availableNow=True).start().awaitTermination()

    orders.give(KillOrder(point, "kill", skip=1))
    with pytest.raises(Exception, match="|".join(EXPECTED)):
        run()
    assert orders.taken() is not None
    run()
    assert streams.values(target) == VALUES
