"""A driver process (pipeline.py) as its tormentor sees it: starts, is told, reports, is killed."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.spark.kills import pipeline
from tests.spark.kills.pipeline import QuerySpec, line_of
from tests.spark.kills.spark_processes import kill_tree, send
from tests.spark.session import spark_environment

START_TIMEOUT_S = 300.0


class DriverDied(Exception):
    """Without having been killed."""


class Driver:
    """Started at once; `wait_ready` before it is used.

    Args:
        directory: of its own; its logs stay there.
        warm_up: a query it runs before it is ready; its Spark checkpoint is the driver's own.
    """

    def __init__(
        self, directory: Path, master: str, settings: Mapping[str, str], warm_up: QuerySpec
    ) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.jvm = 0
        self.took_queries = False
        self._jvm_gone_s: float | None = None
        self._telling = threading.Lock()
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """What it reported; the last one is "gone"."""
        warm_up = replace(warm_up, checkpoint=str(directory / "warm-up"))
        with (directory / "driver.stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", pipeline.__name__, str(directory),
                    "--master", master, "--settings", json.dumps(dict(settings)),
                    "--warm-up", json.dumps(asdict(warm_up)),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
                env=spark_environment(), start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events.put(json.loads(line))
        self.events.put({"event": "gone"})

    def wait_ready(self) -> None:
        """Its JVM and session are there."""
        try:
            event = self.events.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            event = {"event": f"nothing for {START_TIMEOUT_S} s"}
        if event["event"] != "ready":
            said = (self.directory / "driver.stderr").read_text()[-4000:]
            self.kill()
            raise DriverDied(f"{self.directory.name} did not start ({event}):\n{said}")
        self.jvm = event["jvm"]
        threading.Thread(target=self._see_jvm_go, daemon=True).start()

    def _see_jvm_go(self) -> None:
        try:
            handle = os.pidfd_open(self.jvm)
        except ProcessLookupError:
            pass
        else:
            # It can be read from when the process has ended.
            select.select([handle], [], [])
            os.close(handle)
        self._jvm_gone_s = time.monotonic()

    def ran_after(self, at_s: float) -> bool:
        """Whether its JVM may have worked on queries after this moment of the monotonic clock."""
        return self.took_queries and (self._jvm_gone_s is None or self._jvm_gone_s >= at_s)

    def take(self, specs: list[QuerySpec]) -> None:
        """Runs these queries from now on."""
        self.took_queries = True
        self._tell(line_of(specs))

    def restart(self, query: str) -> None:
        """Ends a query, which begins again. Nothing happens if the driver is not there."""
        self._tell(json.dumps({"restart": query}) + "\n")

    def finish(self) -> None:
        """Queries read what is left and end, and so does the process."""
        self._tell(json.dumps({"finish": True}) + "\n")

    def _tell(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with self._telling:
            if stdin.closed:
                return  # it has been killed, and whoever tells it something has not heard
            try:
                stdin.write(line)
                stdin.flush()
            except BrokenPipeError:
                pass  # it has been killed

    # Deaths.

    def kill_jvm(self) -> None:
        """kill -9 of the JVM; what it started sees it go. The Python side can only follow."""
        send(self.jvm, signal.SIGKILL)
        self._process.kill()
        self._wait()

    def kill_python(self) -> None:
        """kill -9 of the driver's Python program; the JVM sees it go, and ends a little later."""
        self._process.kill()
        self._wait()

    def freeze(self) -> None:
        """The program and its JVM stand still; Python workers go on."""
        os.kill(self.pid, signal.SIGSTOP)
        send(self.jvm, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on as if nothing had happened, though another may have its queries."""
        send(self.jvm, signal.SIGCONT)
        send(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """And all below it."""
        kill_tree(self._process.pid)
        if self.jvm:
            kill_tree(self.jvm)
        self._process.kill()
        self._wait()

    def wait_end(self) -> None:
        self._process.wait(START_TIMEOUT_S)
        self._wait()

    def _wait(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            try:
                with self._telling:
                    self._process.stdin.close()
            except BrokenPipeError:
                pass
