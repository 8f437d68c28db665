"""Runs a ZooKeeper server as a supervisor's child.

`python -m bookie.standalone.zookeeper_process DIR PORT [COMMAND ...]` becomes the Java server, so
that process id, signals and exit code are those of the server; it answers these four-letter
commands, and all its files are its owner's alone. Before that it forks a small guard, which prints
"ready ..." once the server answers, and kills the server when the pipe on stdin is closed: then the
supervisor is dead.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bookie.standalone.zookeeper_server import ZooKeeperServer
from ledger.errors import LedgerError
from ledger.shown_text import shown_text

_ASK_AGAIN_MS = 50
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class ZooKeeperPortTaken(LedgerError):
    """Another process listens on the server's port."""


def run_zookeeper_process(server: ZooKeeperServer) -> None:
    """Becomes the server; never returns. Raises ZooKeeperMissing, ZooKeeperPortTaken."""
    os.umask(0o077)  # Java gives a mode to no file
    command = server.command()
    _check_port(server)
    this_process = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        try:
            _guard(server, this_process)
        finally:
            os._exit(0)
    # The output of the server goes to the log; the pipes belong to the guard.
    os.dup2(_STDERR, _STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STDIN)
    os.close(nothing)
    # Java finds files by names in the locale's encoding.
    os.execve(command[0], command, {**os.environ, "LC_ALL": "C.UTF-8"})


def _check_port(server: ZooKeeperServer) -> None:
    """Checks the port in advance: Java would report the error in forty lines."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except OSError as error:
            raise ZooKeeperPortTaken(
                f"cannot listen on {server.address}: {error.strerror}. Cure: stop the process "
                "that uses the port; clients and bookies know the cluster by it"
            ) from error


def _guard(server: ZooKeeperServer, process: int) -> None:
    """Returns when the server has ended. `process` is its pidfd, so no other process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ends = select.poll()
    ends.register(process, select.POLLIN)
    ends.register(_STDIN, select.POLLIN | select.POLLHUP)
    is_ready = False
    while True:
        ended = [fd for fd, _ in ends.poll(None if is_ready else _ASK_AGAIN_MS)]
        if process in ended:
            return
        if _STDIN in ended and not os.read(_STDIN, 4096):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            return
        if not is_ready and server.is_answering():
            is_ready = True
            with suppress(BrokenPipeError):
                os.write(_STDOUT, f"ready zookeeper {server.address}\n".encode())


if __name__ == "__main__":
    try:
        _, directory, port, *commands = sys.argv
        server = ZooKeeperServer(Path(directory), int(port))
        run_zookeeper_process(replace(server, commands=(*commands,) or server.commands))
    except LedgerError as error:
        sys.exit(shown_text(f"zookeeper: {error}"))
