"""An interpreter that has imported the modules of the commands, and forks a process for each run.

A start of Python and the imports take ten times the CPU of most commands. A forked process has
pipes, an environment, arguments, an exit code and an end of its own, like one that was started from
scratch; only the imports are shared. Nothing but imports may happen before the fork, and no thread
may run then.

`python -m tests.system.warm_interpreter FD` serves requests on a socket until that is closed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fcntl import ioctl

_MODULE = "stream.cli"
_PRELOADED = (
    "bookie.cli.check",
    "ledger.cli.http_client",
    "bookie.cli.inspect",
    "bookie.standalone.cluster",
    "cyclopts.help",
    "ledger.client",
    "ledger.metastore.sqlite",
    "ledger.metastore.zookeeper",
    "ledger.verify",
    "rich.console",
    "rich.table",
    "rich.text",
    "stream",
    "stream.cli.streams",
    "stream.cli.trash",
)


class WarmInterpreter:
    """`command` is an interpreter with its options; processes inherit those."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*command, "-m", __name__, str(theirs.fileno())],
                # Pipes, as the forked processes get: the standard streams are created for pipes.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        if not self._requests.recv(64):
            stderr = self._process.communicate()[1].decode()
            raise RuntimeError(f"the interpreter ended before it was ready:\n{stderr}")

    def run(
        self,
        arguments: Sequence[str],
        *,
        stdin: bytes,
        environment: Mapping[str, str],
        timeout_s: float,
        is_on_terminal: bool = False,
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs the module with `arguments` in a new process until its end. `is_on_terminal`: its
        stdout is one of 200 columns."""
        request = json.dumps({"arguments": list(arguments), "environment": dict(environment)})
        ends = [os.pipe() for _ in range(3)]
        if is_on_terminal:
            for descriptor in ends[1]:
                os.close(descriptor)
            ends[1] = os.openpty()
            ioctl(ends[1][1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
        theirs = [ends[0][0], ends[1][1], ends[2][1]]
        write, *reads = ends[0][1], ends[1][0], ends[2][0]
        socket.send_fds(self._requests, [request.encode()], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        with ThreadPoolExecutor(3) as pool:
            pool.submit(_write_all, write, stdin)
            outputs = [pool.submit(_read_all, descriptor) for descriptor in reads]
            if not select.select([self._requests], [], [], timeout_s)[0]:
                self.close()  # and with it the process, so that the pipes end
                raise subprocess.TimeoutExpired(list(arguments), timeout_s)
            code = int(self._requests.recv(64))
            stdout, stderr = (output.result() for output in outputs)
        return subprocess.CompletedProcess(list(arguments), code, stdout, stderr)

    def close(self) -> None:
        self._requests.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes the pipes, waits
            pass


def _write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb") as pipe, suppress(BrokenPipeError):
        pipe.write(data)
        pipe.flush()


def _read_all(descriptor: int) -> bytes:
    data = b""
    with suppress(OSError):  # EIO: the process at a terminal has ended
        while chunk := os.read(descriptor, 65536):
            data += chunk
    os.close(descriptor)
    return data


def _serve(requests: socket.socket) -> list[str] | None:
    """Forks a process for each request and reports its exit code. Returns the arguments in such
    a process, and None when there is nothing more to serve."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not message:
            return None
        process = os.fork()
        if process == 0:
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        if process == 0:
            request = json.loads(message)
            os.environ.clear()
            os.environ.update(request["environment"])
            arguments: list[str] = request["arguments"]
            return arguments
        _, status = os.waitpid(process, 0)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))


def main() -> None:
    commands = importlib.import_module(f"{_MODULE}.command").COMMANDS
    for name in (*_PRELOADED, *(place.partition(":")[0] for _, _, place, _ in commands)):
        importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        requests.send(b"ready")
        arguments = _serve(requests)
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
