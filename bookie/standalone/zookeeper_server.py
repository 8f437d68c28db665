"""A real ZooKeeper server from the jars that PySpark ships: how to find, start and query it.

For a cluster on one machine and for tests; larger clusters use an ensemble of their own. This
module writes the command line and the configuration file; the caller owns the process.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from ledger.errors import InvalidArgument
from ledger.runtime.private_files import DIRECTORY_MODE

MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
CONNECTIONS_MAX = 1_000
"""Connections in all, and of one address: on one machine all are of one. A bookie and a client have
one each."""
_JARS = (
    "zookeeper-*.jar",
    "netty-*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "jline-*.jar",
    "commons-io-*.jar",
    "commons-cli-*.jar",
)


class ZooKeeperMissing(InvalidArgument):
    """There is no Java, or there are no jars of a ZooKeeper server, on this machine."""


@dataclass(frozen=True, slots=True)
class ZooKeeperServer:
    """A server that keeps its data in `directory` and listens on `host`:`port`."""

    directory: Path
    port: int
    host: str = "127.0.0.1"
    tick_ms: int = 500
    heap_mb: int = 256
    commands: tuple[str, ...] = ("conf", "srvr")
    """The four-letter commands it answers: `is_answering` needs conf, and srvr has counters only.
    Others would list sessions, watches and their paths to everybody who can connect."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def is_answering(self, timeout_s: float = 1.0) -> bool:
        """Returns whether *this* server, with its own data, serves: another may use the port."""
        try:
            with socket.create_connection((self.host, self.port), timeout_s) as connection:
                connection.settimeout(timeout_s)
                connection.sendall(b"conf")
                answer = b""
                while chunk := connection.recv(4096):
                    answer += chunk
        except OSError:
            return False
        return f"dataDir={self._data_directory}/".encode() in answer

    @property
    def _data_directory(self) -> Path:
        return self.directory / "data"

    def command(self) -> list[str]:
        """Writes the configuration; returns the command to execute. Raises ZooKeeperMissing."""
        java, jars = find_java(), find_jars()
        self.directory.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        configuration = self.directory / "zoo.cfg"
        configuration.write_text(
            f"dataDir={property_value(str(self._data_directory))}\n"
            f"clientPortAddress={property_value(self.host)}\n"
            f"clientPort={self.port}\n"
            f"tickTime={self.tick_ms}\n"
            # A session may be as short as a test wants and as long as a slow machine needs.
            f"minSessionTimeout={self.tick_ms * 2}\n"
            "maxSessionTimeout=60000\n"
            f"maxClientCnxns={CONNECTIONS_MAX}\n"
            f"maxCnxns={CONNECTIONS_MAX}\n"
            "admin.enableServer=false\n"
            f"4lw.commands.whitelist={','.join(self.commands)}\n"
            "autopurge.purgeInterval=1\n"
        )
        logging = self.directory / "log4j2.properties"
        logging.write_text(
            "appenders = out\n"
            "appender.out.type = Console\n"
            "appender.out.name = out\n"
            "appender.out.layout.type = PatternLayout\n"
            "appender.out.layout.pattern = %d{ISO8601} %p %c{1} %m%n\n"
            "rootLogger.level = warn\n"
            "rootLogger.appenderRefs = out\n"
            "rootLogger.appenderRef.out.ref = out\n"
        )
        return [
            java,
            f"-Xmx{self.heap_mb}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.jmx.log4j.disable=true",
            f"-Dlog4j2.configurationFile={logging.absolute().as_uri()}",
            "-Dfile.encoding=UTF-8",
            "-cp",
            os.pathsep.join(map(str, jars)),
            MAIN_CLASS,
            str(configuration),
        ]


def property_value(text: str) -> str:
    """Returns `text` as the value of a Java properties file, which is ASCII with escapes.

    ZooKeeper strips white space at both ends of a value.
    """
    data = text.encode("utf-16-be")
    units = (int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    plain = {ord(mark): mark for mark in map(chr, range(0x21, 0x7F))} | {ord("\\"): "\\\\"}
    return "".join(plain.get(unit, f"\\u{unit:04x}") for unit in units)


def require_zookeeper() -> None:
    """Raises ZooKeeperMissing, with the cure, if no server can be started here."""
    find_java()
    find_jars()


def find_java() -> str:
    """Returns the path of `java`, from JAVA_HOME or else PATH. Raises ZooKeeperMissing."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    java = shutil.which("java")
    if java is None:
        raise ZooKeeperMissing(
            "ZooKeeper needs Java, and there is no `java` in PATH or JAVA_HOME. Cure: install "
            "Java 17 or newer, or keep the metadata in SQLite (the default)"
        )
    return java


def find_jars() -> list[Path]:
    """Returns the jars of a ZooKeeper server that PySpark ships. Raises ZooKeeperMissing."""
    spec = importlib.util.find_spec("pyspark")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        found = [jar for pattern in _JARS for jar in sorted(Path(folder, "jars").glob(pattern))]
        if any(jar.name.startswith("zookeeper-jute") for jar in found):
            return found
    raise ZooKeeperMissing(
        "the ZooKeeper server comes with PySpark, which is not installed. Cure: "
        "pip install 'ledgerstream[spark]', or give --metadata zk://HOST:2181/ledgers of a "
        "running ZooKeeper"
    )
