"""A driver process (pipeline.py): starts it, sends commands, reads its events, kills it."""

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
    """A driver has ended without having been killed."""


class Driver:
    """A driver, which starts immediately; `wait_ready` must be called before it is used.

    Args:
        directory: the driver's own directory, which keeps its logs.
        warm_up: a query that it runs before it is ready, with a Spark checkpoint of its own.
    """

    def __init__(
        self, directory: Path, master: str, settings: Mapping[str, str], warm_up: QuerySpec
    ) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.jvm = 0
        self.took_queries = False
        self._jvm_gone_s: float | None = None
        self._send_lock = threading.Lock()
        self.events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        """The events of the driver; the last one is "gone"."""
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
        """Waits until the JVM and the session have started."""
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
            # The handle becomes readable when the process has ended.
            select.select([handle], [], [])
            os.close(handle)
        self._jvm_gone_s = time.monotonic()

    def ran_after(self, at_s: float) -> bool:
        """Returns whether its JVM may have run queries after this time of the monotonic clock."""
        return self.took_queries and (self._jvm_gone_s is None or self._jvm_gone_s >= at_s)

    def take(self, specs: list[QuerySpec]) -> None:
        """Runs these queries from now on."""
        self.took_queries = True
        self._send(line_of(specs))

    def restart(self, query: str) -> None:
        """Stops a query, which starts again. Does nothing if the driver has ended."""
        self._send(json.dumps({"restart": query}) + "\n")

    def finish(self) -> None:
        """Lets the queries read the rest and end; the process ends then, too."""
        self._send(json.dumps({"finish": True}) + "\n")

    def _send(self, line: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with self._send_lock:
            if stdin.closed:
                return  # it has been killed, and the caller does not know yet
            try:
                stdin.write(line)
                stdin.flush()
            except BrokenPipeError:
                pass  # it has been killed

    # Kills

    def kill_jvm(self) -> None:
        """Kills the JVM with -9; its children notice. The Python program is killed, too."""
        send(self.jvm, signal.SIGKILL)
        self._process.kill()
        self._wait()

    def kill_python(self) -> None:
        """Kills the driver's Python program with -9; the JVM notices and ends a little later."""
        self._process.kill()
        self._wait()

    def freeze(self) -> None:
        """Stops the program and its JVM; the Python workers continue."""
        os.kill(self.pid, signal.SIGSTOP)
        send(self.jvm, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continues the driver, though another one may have its queries by then."""
        send(self.jvm, signal.SIGCONT)
        send(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills the driver and all its descendants."""
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
                with self._send_lock:
                    self._process.stdin.close()
            except BrokenPipeError:
                pass
