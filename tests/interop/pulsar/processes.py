"""A released Apache Pulsar under the control of tests: its managed ledger, its broker, its client.

Java programs of this suite (`java-pulsar/`) read requests as lines of JSON and respond in the same
way, one request at a time. The broker is Pulsar's own program with its own configuration file.
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import time
import urllib.request
from functools import cache, partial
from pathlib import Path
from typing import Any

import trio

from tests.interop.apache_bookie import free_port, write_settings
from tests.interop.build import Build, build_project
from tests.interop.timeouts import PATIENCE_S, REQUEST_TIMEOUT_S

VERSION = "4.0.7"
BOOKKEEPER = "4.17.2"
"""The BookKeeper client inside."""
PROGRAM = f"Pulsar {VERSION}"

_SOURCES = Path(__file__).resolve().parents[1] / "java-pulsar"
_PORT_ATTEMPTS = 3
_PORT_TAKEN = "Address already in use"

Answer = dict[str, Any]


class PulsarError(Exception):
    """An operation failed in Java; `name` is the class of the exception."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class PulsarGone(Exception):
    """The process ended before it responded."""


@cache
def pulsar() -> Build:
    """Returns Pulsar's classpath; builds it if necessary. Skips the test without Maven."""
    return build_project(f"pulsar-{VERSION}", _SOURCES, f"-Dpulsar.version={VERSION}")


def payload(number: int, size: int) -> bytes:
    """Returns the payload of message or entry `number`: the number, then bytes derived from it.

    `Lines.payload` in Java computes the same.
    """
    # The bytes repeat after 256.
    start = (number * 31) & 0xFF
    block = bytes((start + at * 7) & 0xFF for at in range(256))
    filled = block * (size // len(block) + 1)
    return struct.pack(">q", number) + filled[8:size]


def digest_of(first: int, count: int, size: int) -> str:
    """Returns the SHA-256 of the payloads of `count` messages."""
    digest = hashlib.sha256()
    for number in range(first, first + count):
        digest.update(payload(number, size))
    return digest.hexdigest()


class Driver:
    """A Java program of this suite: `ManagedLedgerDriver` or `PulsarClientDriver`."""

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self.log = log
        command = pulsar().command(f"ledgerstream.pulsar.{name}", *arguments, heap_mb=256)
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise AssertionError(f"{name} did not start:\n{tail_of(log)}")

    async def call(self, op: str, **arguments: Any) -> Answer:
        """Sends a request and returns its response. Raises PulsarError, PulsarGone."""
        request = partial(self._call, {"op": op, **arguments})
        return await trio.to_thread.run_sync(request, abandon_on_cancel=True)

    def _call(self, request: Answer) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            raise PulsarGone(f"the process ended; it said:\n{tail_of(self.log)}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise PulsarError(answer["error"], answer["message"])
        ok: Answer = answer["ok"]
        return ok

    def kill(self) -> None:
        """Kills the process with -9."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process. No request may be in flight."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class Broker:
    """Pulsar's broker as a process, which stores everything in ZooKeeper and in bookies.

    Args:
        zookeeper: host:port and a path, below which Pulsar has all of its nodes and the ledgers
            root `ledgers`.
        settings: overrides for `broker.conf`.
    """

    def __init__(self, directory: Path, zookeeper: str, **settings: object) -> None:
        self.directory = directory
        self.settings = settings
        self.log = directory / "broker.log"
        self.store = f"zk:{zookeeper}"
        self._port, self._web_port = 0, 0
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """The URL for clients of the started broker."""
        return f"pulsar://127.0.0.1:{self._port}"

    def init_cluster(self) -> None:
        """Creates Pulsar's metadata and the ledgers root with Pulsar's own program."""
        arguments = {
            "--cluster": "test",
            "--metadata-store": self.store,
            "--configuration-metadata-store": self.store,
            # Only for brokers of other clusters.
            "--web-service-url": "http://127.0.0.1:1",
            "--broker-service-url": "pulsar://127.0.0.1:1",
        }
        words = [word for pair in arguments.items() for word in pair]
        command = pulsar().command("org.apache.pulsar.PulsarClusterMetadataSetup", *words)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]

    def start(self) -> None:
        """Starts the broker, and waits until it serves. A restart uses the same address."""
        if self._port:
            self._start()
            return
        for attempt in range(_PORT_ATTEMPTS):
            self._port, self._web_port = free_port(), free_port()
            try:
                self._start()
            except AssertionError:
                if attempt + 1 == _PORT_ATTEMPTS or _PORT_TAKEN not in self.log.read_text():
                    raise
                self.log.rename(f"{self.log}.{attempt}")
            else:
                return

    def _start(self) -> None:
        configuration = self.directory / "broker.conf"
        write_settings(configuration, {**self._settings(), **self.settings})
        command = pulsar().command(
            "org.apache.pulsar.PulsarBrokerStarter",
            "--broker-conf",
            str(configuration),
            heap_mb=400,
        )
        command[1:1] = [
            "-Dlog.level=info",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "--add-opens=java.base/sun.net=ALL-UNNAMED",
        ]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        deadline_s = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise AssertionError(f"the broker did not start:\n{tail_of(self.log)}")
            time.sleep(0.1)

    def _settings(self) -> dict[str, object]:
        return {
            "clusterName": "test",
            "metadataStoreUrl": self.store,
            "configurationMetadataStoreUrl": self.store,
            "brokerServicePort": self._port,
            "webServicePort": self._web_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "functionsWorkerEnabled": False,
            "loadBalancerEnabled": False,
            "brokerDeleteInactiveTopicsEnabled": False,
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 3,
            "managedLedgerDefaultAckQuorum": 2,
            "managedLedgerMaxEntriesPerLedger": 500,
            "managedLedgerMinLedgerRolloverTimeMinutes": 0,
            # Consumers read from bookies, not from a cache.
            "managedLedgerCacheSizeMB": 0,
            "numIOThreads": 2,
            "numHttpServerThreads": 4,
            "numExecutorThreadPoolSize": 2,
            "bookkeeperNumberOfChannelsPerBookie": 2,
            "bookkeeperClientTimeoutInSeconds": REQUEST_TIMEOUT_S,
            # Otherwise it would exclude a bookie for half an hour after five late responses.
            "bookkeeperClientHealthCheckEnabled": False,
        }

    def _is_ready(self) -> bool:
        try:
            return self._request("GET", "brokers/ready") == "ok"
        except OSError:
            return False

    def kill(self) -> None:
        """Kills the broker with -9; returns when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def admin(self, method: str, path: str) -> Any:
        """Returns the response of Pulsar's administration, e.g. to "persistent/a/b/c/stats"."""
        text = await trio.to_thread.run_sync(partial(self._request, method, path))
        return json.loads(text) if text else None

    def _request(self, method: str, path: str) -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._web_port}/admin/v2/{path}", method=method
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            text: str = response.read().decode()
            return text


def tail_of(log: Path) -> str:
    """Returns the end of a process's output."""
    return log.read_text(errors="replace")[-4000:]
