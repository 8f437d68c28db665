"""A client of Spark Connect that copies a stream twice, by a batch and by a streaming query.

`python -m tests.spark.connect_client CLUSTER CREDENTIALS SOURCE TARGET TARGET CHECKPOINT
DIRECTORY`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.spark.session import quiet_log, settings, spark_home


def main(
    cluster: str,
    credentials: str,
    source: str,
    by_batch: str,
    by_stream: str,
    checkpoint: str,
    directory: str,
) -> None:
    Path(directory).mkdir(parents=True)
    quiet_log(Path(directory))
    # The server is started by PySpark with the settings of spark-submit, and no others.
    given = [f"--conf {key}='{value}'" for key, value in settings(Path(directory)).items()]
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*given, "pyspark-shell"])
    os.environ["SPARK_HOME"] = str(spark_home(Path(directory)))
    from pyspark.sql import SparkSession

    from connectors.spark import register

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    print(f"{type(spark).__name__} of {type(spark).__module__}")
    try:
        register(spark)
        access = {"cluster": cluster, "credentialsFile": credentials}
        rows = spark.read.format("ledgerstream").options(**access, stream=source).load()
        print(rows.count(), "rows")
        written = rows.select("value").write.format("ledgerstream").mode("append")
        written.options(**access, stream=by_batch).save()

        moving = spark.readStream.format("ledgerstream").options(**access, stream=source)
        moving = moving.option("startingPosition", "earliest")
        query = (
            moving.load()
            .select("value")
            .writeStream.format("ledgerstream")
            .options(**access, stream=by_stream, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
