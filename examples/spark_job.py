"""A job for `spark-submit`: writes records, counts them, and copies them to another stream.

spark-submit --master spark://host:7077 spark_job.py CLUSTER

Ledgerstream is installed in the Python that PYSPARK_PYTHON names on all machines; or it is in an
archive of a virtual environment (docs/spark.md).
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import SparkSession

from ledgerstream import blocking
from ledgerstream.spark import register


def main(cluster: str) -> None:
    with blocking.Namespace.connect(cluster, "jobs", create=True) as namespace:
        for stream in ("numbers", "copies"):
            namespace.ensure_stream(stream)
    spark = SparkSession.builder.appName("ledgerstream job").getOrCreate()
    register(spark)
    source = spark.read.format("ledgerstream").option("cluster", cluster)
    numbers = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    write = numbers.write.format("ledgerstream").mode("append").option("cluster", cluster)
    write.option("stream", "jobs/numbers").save()
    print("written:", source.load("jobs/numbers").count())
    follow = spark.readStream.format("ledgerstream").option("cluster", cluster)
    follow = follow.option("startingPosition", "earliest")
    with tempfile.TemporaryDirectory() as checkpoint:
        copy = follow.load("jobs/numbers").select("value").writeStream.format("ledgerstream")
        copy = copy.option("cluster", cluster).option("stream", "jobs/copies")
        copy = copy.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        copy.start().awaitTermination()
    print("copied:", source.load("jobs/copies").count())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
