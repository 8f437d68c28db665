"""What a system is for a benchmark, and the processes of its servers."""

from __future__ import annotations

import importlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol, cast, get_args

from benchmarks.children import environment

Name = Literal["ledgerstream", "redis", "nats", "kafka", "bookkeeper"]
OURS: Final[Name] = "ledgerstream"
PEERS: Final[tuple[Name, ...]] = tuple(name for name in get_args(Name) if name != OURS)
_READY_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.05


@dataclass(slots=True)
class Running:
    """The servers of a system that is ready. A benchmark may ask for their CPU time."""

    address: str
    client: Callable[[str, Sequence[str]], list[str]]
    """Returns the command of a client: by its role, append or follow, and its streams."""
    server_pids: list[int]


class System(Protocol):
    """A module of this package."""

    ABOUT: str
    """The version, its copies, and when it acknowledges."""

    def missing(self) -> str:
        """Returns why the system cannot be run on this machine, or nothing."""

    def running(self, directory: Path) -> AbstractContextManager[Running]:
        """Runs the servers with all files in `directory` during the block."""


def system(name: Name) -> System:
    return cast("System", importlib.import_module(f"benchmarks.systems.{name}"))


@dataclass(slots=True)
class Servers:
    """Processes that are ended together. Their output goes to files in `directory`."""

    directory: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def start(self, name: str, command: Sequence[str], more: Mapping[str, str]) -> None:
        """Starts a server. `more`: variables of its environment."""
        with self._log(name).open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**environment(), **more},
                )
            )

    def run(self, name: str, command: Sequence[str]) -> None:
        """Runs a program to its end, which must be a good one."""
        with self._log(name).open("ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        if done.returncode:
            raise SystemExit(f"{name} ended with exit code {done.returncode}:\n{self._said(name)}")

    def wait_ready(self, what: str, is_ready: Callable[[], bool]) -> None:
        """Asks until it is; gives up when a process has ended."""
        end_s = time.monotonic() + _READY_TIMEOUT_S
        while not is_ready():
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > end_s:
                said = "\n".join(self._said(path.stem) for path in self.directory.glob("*.log"))
                raise SystemExit(f"{what} did not become ready:\n{said}")
            time.sleep(_POLL_S)

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _said(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")[-2000:]


@contextmanager
def servers(directory: Path) -> Iterator[Servers]:
    started = Servers(directory)
    try:
        yield started
    finally:
        started.end()


def is_listening(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Returns ports that are free at the moment, all of them different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
