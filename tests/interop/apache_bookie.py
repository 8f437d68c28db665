"""A released Apache bookie in a separate process, which a test may kill and start again.

It has its own directories and port, allows loopback, and has a small heap and small caches. Its
default storage is that of Pulsar. `AutoRecovery` is Apache's auditor and replication worker.
"""

from __future__ import annotations

import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bookie.standalone import cluster
from tests.interop.build import build
from tests.interop.java_client import TIMEOUTS, java_uri
from tests.interop.timeouts import PATIENCE_S
from tests.interop.znodes import forget_registration

DB_LEDGER_STORAGE = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
SORTED_LEDGER_STORAGE = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
_SERVER = "org.apache.bookkeeper.server.Main"
_AUTO_RECOVERY = "org.apache.bookkeeper.replication.AutoRecoveryMain"
# A v2 read (opcode 2) of entry 0 of a ledger that does not exist: answered once the bookie serves.
_PROBE = struct.pack(">iiqq", 20, 2 << 24 | 2 << 16, (1 << 62) + 1, 0)

SMALL: dict[str, object] = {
    "allowLoopback": True,
    "advertisedAddress": "127.0.0.1",
    "httpServerEnabled": False,
    "dbStorage_writeCacheMaxSizeMb": 16,
    "dbStorage_readAheadCacheMaxSizeMb": 8,
    "dbStorage_rocksDB_blockCacheSize": 4 << 20,
    "dbStorage_rocksDB_writeBufferSizeMB": 4,
    "skipListSizeLimit": 8 << 20,
    "entryLogFilePreallocationEnabled": False,
    "logSizeLimit": 64 << 20,
    "journalMaxSizeMB": 64,
    "journalPreAllocSizeMB": 4,
    "journalMaxBackups": 0,
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
    "minUsableSizeForEntryLogCreation": 1,
    "minUsableSizeForIndexFileCreation": 1,
    "serverNumIOThreads": 1,
    "numAddWorkerThreads": 1,
    "numReadWorkerThreads": 1,
    "numLongPollWorkerThreads": 1,
    "numHighPriorityWorkerThreads": 1,
    "numJournalCallbackThreads": 1,
    "flushInterval": 2000,
    **TIMEOUTS,
}

_given: set[int] = set()


def free_port() -> int:
    """Returns a free port that was not returned before, because a stopped bookie may own it.

    It is in this test process's range, and below the range of outgoing connections: a client that
    tries a dead bookie's port must not get that port as its own, and so connect to itself.
    """
    shuffled = random.SystemRandom().sample(cluster.PORTS, len(cluster.PORTS))
    for port in shuffled:
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise AssertionError(f"no free port between {cluster.PORTS[0]} and {cluster.PORTS[-1]}")


def write_settings(file: Path, settings: dict[str, object]) -> None:
    """Writes a properties file for Apache's commands."""
    lines = []
    for name, value in settings.items():
        lines.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}\n")
    file.write_text("".join(lines))


class JavaProgram:
    """A Java main class with a configuration file; its output goes to a log."""

    def __init__(
        self,
        version: str,
        directory: Path,
        main_class: str,
        settings: dict[str, object],
        java_options: Sequence[str] = (),
    ) -> None:
        self.version = version
        self._java_options = java_options
        self.directory = directory
        self.log = directory / "java.log"
        self.settings = settings
        self._main_class = main_class
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def configuration(self) -> Path:
        return self.directory / "server.conf"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Starts the process. Does not wait."""
        assert not self.is_running
        write_settings(self.configuration, self.settings)
        command = build(self.version).command(
            self._main_class, "--conf", str(self.configuration), heap_mb=160
        )
        command[1:1] = self._java_options
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def kill(self) -> None:
        """Kills the process with -9; returns when it has ended."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Terminates the process; kills it after `timeout_s`."""
        self._end(signal.SIGTERM, timeout_s)

    def _end(self, how: signal.Signals, timeout_s: float | None = None) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stops the process; its sockets stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        """Returns the end of its log."""
        return self.log.read_text(errors="replace")[-4000:]


class ApacheBookie(JavaProgram):
    """One Apache bookie, which keeps its `bookie_id` and data over restarts.

    Args:
        version: of Apache BookKeeper.
        directory: the bookie's own directory for journal, ledgers, configuration and log.
        zookeeper_uri: `zk://host:port/path/ledgers` of an initialised cluster.
        storage: class of the ledger storage.
        java_options: of its JVM.
        settings: additional settings, by the names of Apache's ServerConfiguration.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        zookeeper_uri: str,
        *,
        storage: str = DB_LEDGER_STORAGE,
        port: int | None = None,
        java_options: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.port = free_port() if port is None else port
        self._uri = zookeeper_uri
        super().__init__(
            version,
            directory,
            _SERVER,
            bookie_settings(directory, zookeeper_uri, self.port, storage, settings),
            java_options,
        )

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Waits until the bookie is registered and serves."""
        self.begin()
        self.wait_ready()

    def begin(self) -> None:
        """Starts the process, after ending its last session, for which it would wait otherwise."""
        if self.log.exists():
            forget_registration(self._uri, self.bookie_id)
        super().begin()

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.is_answering():
            if not self.is_running or time.monotonic() > deadline_s:
                self.kill()
                raise AssertionError(f"bookie {self.bookie_id} did not start:\n{self.said()}")
            time.sleep(0.05)  # it sends no notification

    def is_answering(self) -> bool:
        """Returns whether it answers a read; before that it accepts connections and closes them."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
                connection.settimeout(10)
                connection.sendall(_PROBE)
                return len(connection.recv(4)) == 4
        except OSError:
            return False


class AutoRecovery(JavaProgram):
    """Apache's auditor and replication worker in a process."""

    def __init__(self, version: str, directory: Path, zookeeper_uri: str, **settings: Any) -> None:
        self.uri = zookeeper_uri
        port = free_port()
        self.bookie_id = f"127.0.0.1:{port}"
        super().__init__(
            version,
            directory,
            _AUTO_RECOVERY,
            {
                **bookie_settings(directory, zookeeper_uri, port, DB_LEDGER_STORAGE, {}),
                "lostBookieRecoveryDelay": 0,
                "rwRereplicateBackoffMs": 500,
                "openLedgerRereplicationGracePeriod": 1000,
                "auditorPeriodicBookieCheckInterval": 5,
                "auditorPeriodicCheckInterval": 0,
                **settings,
            },
        )

    def start(self) -> None:
        self.begin()


def bookie_settings(
    directory: Path,
    zookeeper_uri: str,
    port: int,
    storage: str = DB_LEDGER_STORAGE,
    more: dict[str, object] | None = None,
) -> dict[str, object]:
    """Returns a ServerConfiguration, by Apache's names."""
    return {
        "metadataServiceUri": java_uri(zookeeper_uri),
        "bookiePort": port,
        "journalDirectories": directory / "journal",
        "ledgerDirectories": directory / "ledgers",
        "ledgerStorageClass": storage,
        **SMALL,
        **(more or {}),
    }


def start_all(bookies: list[ApacheBookie]) -> None:
    """Starts the bookies concurrently."""
    for bookie in bookies:
        bookie.begin()
    for bookie in bookies:
        bookie.wait_ready()


def start_autorecovery(
    version: str, directory: Path, zookeeper_uri: str, **settings: Any
) -> AutoRecovery:
    program = AutoRecovery(version, directory, zookeeper_uri, **settings)
    program.start()
    return program
