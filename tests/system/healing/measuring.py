"""What healing costs, measured from outside: CPU of processes, metadata operations, latencies."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import tomllib
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_TICKS = os.sysconf("SC_CLK_TCK")
_TIMEOUT_S = 30.0


@dataclass
class Appends:
    """Latencies of appends to a stream, in seconds, by phase."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    phase: str = "before"
    failures: list[str] = field(default_factory=list)

    def add(self, latency_s: float) -> None:
        self.latencies.setdefault(self.phase, []).append(latency_s)

    def quantile_ms(self, phase: str, share: float) -> float:
        found = sorted(self.latencies.get(phase, [0.0]))
        return round(found[int(share * (len(found) - 1))] * 1000, 1)


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process; 0 if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class CpuMeter:
    """The CPU of processes since it was made, of each as long as it lived at the last look."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._before = {pid: cpu_s(pid) for pid in pids}

    def seconds(self) -> float:
        found = {pid: cpu_s(pid) for pid in self._before}
        return sum(max(0.0, found[pid] - self._before[pid]) for pid in found)


@dataclass(frozen=True)
class MetadataCount:
    """How often the metadata store was changed, and how many requests it received; a store in a
    file does not count those."""

    changes: int
    requests: int | None

    def since(self, before: MetadataCount) -> MetadataCount:
        requests = None
        if self.requests is not None and before.requests is not None:
            requests = self.requests - before.requests
        return MetadataCount(self.changes - before.changes, requests)


def metadata_count(directory: Path) -> MetadataCount:
    """Reads the counters of the store of a standalone cluster: of SQLite its number of changes, of
    ZooKeeper its last transaction and the packets it received (four-letter word `srvr`)."""
    with (directory / "standalone.toml").open("rb") as file:
        uri = urlsplit(tomllib.load(file)["metadata"])
    if uri.scheme == "sqlite":
        with closing(sqlite3.connect(f"file:{uri.path}?mode=ro", uri=True)) as db:
            return MetadataCount(db.execute("SELECT sequence FROM changes").fetchone()[0], None)
    assert uri.hostname is not None
    with socket.create_connection((uri.hostname, uri.port or 2181), _TIMEOUT_S) as connection:
        connection.sendall(b"srvr")
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    said = dict(re.findall(r"(?m)^(Zxid|Received): (\w+)", answer.decode()))
    # The upper half of a transaction's number counts leaders.
    return MetadataCount(int(said["Zxid"], 16) & 0xFFFF_FFFF, int(said["Received"]))
