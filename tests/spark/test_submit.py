"""A job in several processes on a secure cluster, started by spark-submit as docs/spark.md says.

Nothing that Spark shows or keeps of it may have a secret.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.planted_secrets import PlantedSecrets, recognisable
from tests.spark import secure_job
from tests.spark.conftest import skip_without_spark
from tests.spark.hosts import event_log
from tests.spark.session import spark_home
from tests.system.cluster import StandaloneCluster
from tests.tidy.checkout import ROOT

PATIENCE_S = 900


def test_a_submitted_job_reads_and_writes_on_executors_and_shows_no_secret(
    secure_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    skip_without_spark()
    planted = PlantedSecrets()
    wrongly_given = recognisable("option")
    planted.plant("option", wrongly_given)
    files = distributed_files(secure_cluster, tmp_path / "files")
    for name in ("admin.password", "cluster.secret"):
        planted.plant(name, (tmp_path / "files" / name).read_bytes().strip())
    planted.plant_key("admin.key", tmp_path / "files" / "admin.key")
    home, shown, events = spark_home(tmp_path), tmp_path / "shown", tmp_path / "events"
    events.mkdir()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {
        "spark.ui.port": "0", "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1", "spark.local.dir": str(tmp_path / "local"),
        "spark.executorEnv.PYTHONPATH": path, **event_log(events),
    }  # fmt: skip
    done = subprocess.run(
        [
            home / "bin" / "spark-submit", "--master", "local-cluster[1,2,1024]",
            "--files", ",".join(map(str, files)),
            *(each for name in settings for each in ("--conf", f"{name}={settings[name]}")),
            secure_job.__file__, secure_cluster.uri, shown, wrongly_given,
        ],
        env={
            **os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True, cwd=tmp_path, timeout=PATIENCE_S, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-3:] == [
        "written: 1000", "copied: 1000", "read by the environment: 1000",
    ]  # fmt: skip

    # The test itself gave one of them as an argument.
    arguments = (shown / "processes").read_bytes().replace(wrongly_given.encode(), b"")
    planted.search("processes", arguments)
    planted.search("output", done.stdout + done.stderr)
    planted.search("logs of bookies", secure_cluster.logs())
    logs = [*(home / "work").rglob("stderr"), *(home / "work").rglob("stdout")]
    kept = [shown / name for name in ("plans", "errors", "answers", "checkpoint")]
    assert planted.search_files([*kept, *logs, events]) > len(logs) + len(kept)
    planted.check()
    assert (shown / "plans").read_text().count("ledgerstream") > 5
    assert (shown / "errors").read_text().count("credentialsFile") >= 2
    assert b"spark.files" in (shown / "answers").read_bytes()
    assert len([log for log in logs if log.name == "stderr"]) == 1
    assert b"admin.toml" in arguments


def distributed_files(cluster: StandaloneCluster, directory: Path) -> list[Path]:
    """Makes the files that the job distributes: the credentials of a user, and more."""
    directory.mkdir()
    for name in secure_job.FILES:
        shutil.copy(cluster.directory / "security" / name, directory / name)
    return [directory / name for name in secure_job.FILES]
