"""Executors on two hosts of one machine: 127.0.0.1 and 127.0.0.2.

Spark runs the copy of a slow task on another host than the first attempt. All executors of its own
`local-cluster[...]` are on one host, so that it never speculates there, whatever the settings are.
This is the same cluster, a master and workers in the driver's JVM, but with two hosts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOSTS = ("127.0.0.1", "127.0.0.2")
_CORES = 1
_MEMORY_MB = 1024


def start_two_hosts(gateway: Any, directory: Path) -> str:
    """Starts a master and a worker on each host in the gateway's JVM; they end with the JVM.

    Args:
        directory: working directory of the executors, which keeps their logs.

    Returns:
        The URL of the master.
    """
    jvm = gateway.jvm
    deploy = jvm.org.apache.spark.deploy
    conf = jvm.org.apache.spark.SparkConf(False)
    conf.set("spark.master.rest.enabled", "false")
    # Executors are killed on purpose; their hosts must not be excluded.
    conf.set("spark.deploy.maxExecutorRetries", "-1")
    master = deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)
    url: str = master._1().address().toSparkURL()
    urls = gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url
    for number, host in enumerate(HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, _CORES, _MEMORY_MB, urls, str(directory / "work"),
            jvm.scala.Option.apply(number + 1), conf, jvm.scala.Option.empty(),
        )  # fmt: skip
    return url


def event_log(directory: Path) -> dict[str, str]:
    """Returns settings for Spark's event log of all tasks, in a directory that must exist."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def speculative_tasks(directory: Path) -> tuple[int, int]:
    """Returns how many speculative tasks Spark has started, and how many of them finished first.

    Reads the event logs of drivers; that of a running driver is about a second late.
    """
    started = won = 0
    for event in _events(directory):
        if not event.get("Task Info", {}).get("Speculative"):
            continue
        if event["Event"] == "SparkListenerTaskStart":
            started += 1
        elif event["Event"] == "SparkListenerTaskEnd":
            won += event["Task End Reason"]["Reason"] == "Success"
    return started, won


def _events(directory: Path) -> Iterator[dict[str, Any]]:
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        with path.open() as lines:
            for line in lines:
                if line.endswith("\n"):  # else it is being written
                    yield json.loads(line)
