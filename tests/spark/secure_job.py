"""A job on a secure cluster that keeps what Spark shows of it, for test_submit.py.

`spark-submit --files admin.toml,... secure_job.py CLUSTER DIRECTORY PLANTED`: everything that is
shown goes into files of DIRECTORY. PLANTED is a secret that is wrongly given as an option.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from examples import spark_job
from ledgerstream.spark import register

FILES = ("admin.toml", "admin.password", "admin.pem", "admin.key", "ca.pem", "cluster.secret")
OPTIONS = {
    "credentialsFile": "admin.toml", "tlsCertificateFile": "admin.pem", "tlsKeyFile": "admin.key",
    "clusterSecretFile": "cluster.secret",
}  # fmt: skip


def main(cluster: str, directory: str, planted: str) -> None:
    shown = Path(directory)
    shown.mkdir()
    spark = SparkSession.builder.appName("secure job").getOrCreate()
    register(spark)
    options = {"cluster": cluster, **OPTIONS}
    spark_job.run(spark, options)
    read_by_the_environment(spark, cluster)
    keep_plans(spark, options, shown)
    keep_errors(spark, options, planted, shown)
    keep_answers(spark, shown)
    spark.stop()


def read_by_the_environment(spark: SparkSession, cluster: str) -> None:
    os.environ["LEDGERSTREAM_CREDENTIALS"] = SparkFiles.get("admin.toml")
    register(spark)
    rows = spark.read.format("ledgerstream").option("cluster", cluster).load("jobs/numbers")
    print("read by the environment:", rows.count())


def keep_plans(spark: SparkSession, options: dict[str, str], shown: Path) -> None:
    follow = spark.readStream.format("ledgerstream").options(**options)
    rows = follow.option("startingPosition", "earliest").load("jobs/numbers").select("value")
    write = rows.writeStream.format("ledgerstream").options(**options).queryName("kept")
    write = write.option("checkpointLocation", str(shown / "checkpoint"))
    query = write.option("stream", "jobs/copies").start()
    query.processAllAvailable()
    keep_processes(shown)
    frame = spark.read.format("ledgerstream").options(**options).load("jobs/copies")
    with redirect_stdout(StringIO()) as plans:
        for mode in ("extended", "formatted", "codegen", "cost"):
            frame.explain(mode)
        query.explain(extended=True)
    progress = [str(each) for each in query.recentProgress]
    query.stop()
    texts = [plans.getvalue(), *progress, str(query.status), repr(frame), str(frame.schema)]
    (shown / "plans").write_text("\n".join(texts))


def keep_processes(shown: Path) -> None:
    """Keeps arguments and environments of all processes while executors run."""
    found = []
    for process in Path("/proc").iterdir():
        for name in ("cmdline", "environ") if process.name.isdigit() else ():
            try:
                found.append((process / name).read_bytes())
            except OSError:
                continue  # it ended
    (shown / "processes").write_bytes(b"\n".join(found))


def keep_errors(spark: SparkSession, options: dict[str, str], planted: str, shown: Path) -> None:
    found = []
    for more in ({"password": planted}, {"credentialsFile": f"password = {planted}\nuser = 'a'"}):
        try:
            spark.read.format("ledgerstream").options(**{**options, **more}).load("jobs/copies")
        except PySparkException as error:
            found.append(str(error))
    (shown / "errors").write_text("\n".join(found))


def keep_answers(spark: SparkSession, shown: Path) -> None:
    """Keeps what the user interface says over HTTP."""
    context = spark.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    pages = [f"{base}/{name}" for name in ("environment", "sql?details=true", "jobs", "stages")]
    pages += [f"{base}/allexecutors", f"{context.uiWebUrl}/StreamingQuery/"]
    pages += [f"{context.uiWebUrl}/environment/", f"{context.uiWebUrl}/SQL/"]
    answers = []
    for page in pages:
        with urllib.request.urlopen(page) as answer:
            answers.append(answer.read())
    (shown / "answers").write_bytes(b"\n".join(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
