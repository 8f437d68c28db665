"""A real ZooKeeper server for tests, which they may kill, restart, pause and resume.

Tests that need it carry the marker `zookeeper` and take the fixture `zookeeper_server`; they are
skipped, with the reason, where there is no Java.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bookie.standalone import zookeeper_process
from bookie.standalone.zookeeper_server import ZooKeeperServer, require_zookeeper
from tests.tidy.checkout import ROOT

_START_TIMEOUT_S = 60.0
_CLOSE_SESSION = -11


class RunningZooKeeper:
    """`address` stays the same over restarts, and so does the data."""

    def __init__(self, directory: Path, port: int) -> None:
        self.server = ZooKeeperServer(directory, port)
        self.address = self.server.address
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"zk://{self.address}/ledgers"

    def start(self) -> None:
        """Returns when it answers. It ends with this process, however that ends."""
        assert self._process is None
        self.server.directory.mkdir(parents=True, exist_ok=True)
        log = self.server.directory / "server.log"
        with log.open("ab") as output:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-m", zookeeper_process.__name__, *self._arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], _START_TIMEOUT_S)
        if not readable or not process.stdout.readline().startswith(b"ready "):
            self.kill()
            raise AssertionError(f"ZooKeeper did not start:\n{log.read_text()[-4000:]}")

    def _arguments(self) -> list[str]:
        return [str(self.server.directory), str(self.server.port), "conf", "cons", "mntr"]

    def is_answering(self) -> bool:
        return self.server.is_answering()

    def kill(self) -> None:
        """kill -9; nothing is flushed. Also of one that is paused."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:  # closes the pipes, waits
                pass

    def sessions(self) -> list[int]:
        """Ids of all sessions that have a connection now."""
        answer = self._exchange(b"cons").decode()
        return [int(found, 16) for found in re.findall(r"sid=0x([0-9a-f]+)", answer)]

    def expire_sessions(self) -> int:
        """Ends all sessions, as the server would for want of heartbeats: ephemeral nodes are
        gone, and clients hear of it when they connect again. Returns how many there were."""
        sessions = self.sessions()
        for session_id in sessions:
            self._exchange(
                _frame(struct.pack(">iqiq", 0, 0, 10_000, session_id), _password(session_id))
                + _frame(struct.pack(">ii", 1, _CLOSE_SESSION))
            )
        return len(sessions)

    def _exchange(self, request: bytes) -> bytes:
        with socket.create_connection((self.server.host, self.server.port), 10) as connection:
            connection.sendall(request)
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer

    def pause(self) -> None:
        """The process stands still, its sockets stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _frame(fixed: bytes, password: bytes | None = None) -> bytes:
    """A request of ZooKeeper's protocol."""
    body = fixed
    if password is not None:
        body += struct.pack(">i", len(password)) + password + b"\0"
    return struct.pack(">i", len(body)) + body


def _password(session_id: int) -> bytes:
    """The server's: 16 bytes of Java's generator, seeded with the session id and a constant."""
    state = (session_id ^ 0xB3415C00 ^ 0x5DEECE66D) % (1 << 48)
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) % (1 << 48)
        password += struct.pack("<I", state >> 16)
    return password


@contextmanager
def running_zookeeper(directory: Path) -> Iterator[RunningZooKeeper]:
    """A new server on a free port. Raises ZooKeeperMissing."""
    require_zookeeper()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = RunningZooKeeper(directory, port)
    server.start()
    try:
        yield server
    finally:
        server.kill()
