"""A job for `spark-submit`: writes records, counts them, and copies them to another stream.

spark-submit --master spark://host:7077 spark_job.py CLUSTER

On a cluster that authenticates its clients, Spark distributes the credentials and what they name:

spark-submit --master spark://host:7077 --files jobs.toml,jobs.password,ca.pem
    spark_job.py CLUSTER jobs.toml

Ledgerstream is installed in the Python that PYSPARK_PYTHON names on all machines; or it is in an
archive of a virtual environment (docs/spark.md).
"""

from __future__ import annotations

import sys
import tempfile

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from ledgerstream import blocking
from ledgerstream.spark import register


def main(cluster: str, credentials: str = "") -> None:
    spark = SparkSession.builder.appName("ledgerstream job").getOrCreate()
    register(spark)
    options = {"cluster": cluster}
    if credentials:
        options["credentialsFile"] = credentials
    run(spark, options)
    spark.stop()


def run(spark: SparkSession, options: dict[str, str]) -> None:
    """Writes jobs/numbers by a batch, and copies them to jobs/copies by a streaming query."""
    name = options.get("credentialsFile")
    file = SparkFiles.get(name) if name else None  # an absolute path stays as it is
    with blocking.Namespace.connect(
        options["cluster"], "jobs", create=True, credentials=file
    ) as namespace:
        for stream in ("numbers", "copies"):
            namespace.ensure_stream(stream)
    source = spark.read.format("ledgerstream").options(**options)
    numbers = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) AS value")
    write = numbers.write.format("ledgerstream").mode("append").options(**options)
    write.option("stream", "jobs/numbers").save()
    print("written:", source.load("jobs/numbers").count())
    follow = spark.readStream.format("ledgerstream").options(**options)
    follow = follow.option("startingPosition", "earliest")
    with tempfile.TemporaryDirectory() as checkpoint:
        copy = follow.load("jobs/numbers").select("value").writeStream.format("ledgerstream")
        copy = copy.options(**options).option("stream", "jobs/copies")
        copy = copy.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        copy.start().awaitTermination()
    print("copied:", source.load("jobs/copies").count())


if __name__ == "__main__":
    main(*sys.argv[1:])
