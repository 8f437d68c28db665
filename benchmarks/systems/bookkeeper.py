"""Apache BookKeeper: three bookies and a ZooKeeper server, each a process, and its Java client."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.systems import programs
from benchmarks.systems.system import Running, free_ports, servers

ABOUT = "Apache BookKeeper {version}: 3 copies, each synced, acknowledged by 2"
_BOOKIES = 3
_DRIVER: Final = Path(__file__).with_name("BookKeeperDriver.java")
_STORAGE = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
_CONFIG = f"""\
metadataServiceUri={{uri}}
bookiePort={{port}}
journalDirectories={{directory}}/journal
ledgerDirectories={{directory}}/ledgers
ledgerStorageClass={_STORAGE}
allowLoopback=true
advertisedAddress=127.0.0.1
httpServerEnabled=false
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
minUsableSizeForEntryLogCreation=1
minUsableSizeForIndexFileCreation=1
"""


def missing() -> str:
    if shutil.which("javac") is None:
        return "there is no `javac` in PATH: install a JDK 17 or newer"
    return programs.missing("bookkeeper")


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    zookeeper, *ports = free_ports(1 + _BOOKIES)
    uri = f"zk+hierarchical://127.0.0.1:{zookeeper}/ledgers"
    with servers(directory) as started:
        main = ["org.apache.zookeeper.server.ZooKeeperServerMain", str(zookeeper)]
        command = programs.java("bookkeeper", *main, str(directory / "zookeeper"))
        command[1:1] = ["-Dzookeeper.admin.enableServer=false"]
        started.start("zookeeper", command, {})
        started.wait_ready("ZooKeeper", lambda: _is_answering(zookeeper))
        configs = []
        for number, port in enumerate(ports):
            configs.append(directory / f"bookie-{number}.conf")
            text = _CONFIG.format(uri=uri, port=port, directory=directory / f"bookie-{number}")
            configs[-1].write_text(text)
        shell = ["org.apache.bookkeeper.bookie.BookieShell", "-conf", str(configs[0])]
        started.run("shell", programs.java("bookkeeper", *shell, "initnewcluster"))
        for number, config in enumerate(configs):
            command = ["org.apache.bookkeeper.server.Main", "--conf", str(config)]
            started.start(f"bookie-{number}", programs.java("bookkeeper", *command), {})
        started.wait_ready("BookKeeper", lambda: all(map(_serves, ports)))
        classes = _compiled(directory / "classes")

        def client(role: str, streams: Sequence[str]) -> list[str]:
            return programs.java(
                "bookkeeper", "BookKeeperDriver", role, uri, str(directory), *streams,
                classes=classes,
            )  # fmt: skip

        yield Running(uri, client, started.pids)


def _compiled(directory: Path) -> Path:
    """Compiles the client."""
    javac, classpath = shutil.which("javac") or "javac", programs.classpath("bookkeeper")
    with servers(directory.parent) as compiler:
        command = [javac, "-nowarn", "-cp", classpath, "-d", str(directory), str(_DRIVER)]
        compiler.run("javac", command)
    return directory


def _is_answering(port: int) -> bool:
    """Returns whether ZooKeeper answers `srvr`, which its defaults permit."""
    return _answers(port, b"srvr")


def _serves(port: int) -> bool:
    """Returns whether a bookie answers a v2 read of a ledger that does not exist."""
    return _answers(port, b"\0\0\0\x14\x02\x02\0\0" + b"\x40" + bytes(15))


def _answers(port: int, request: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(request)
            return bool(connection.recv(4))
    except OSError:
        return False
