"""Processes that are forked from one that has imported what they need (docs/adr/0052-forks.md).

They share the memory of these imports, and begin sooner. They are forked before the supervisor has
a thread, a connection or an event loop that they would inherit, and wait until it starts them. Only
on Linux: elsewhere libraries of the system do not survive a fork.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

import trio

from ledger.cli.output import remark

_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_REQUEST_BYTES_MAX: Final = 64 << 10


class ForkedProcess:
    """A process that waits until it is started; after that it has what a `trio.Process` has."""

    def __init__(self, pid: int, requests: socket.socket, output: int) -> None:
        """`requests` becomes the pipe to its stdin, and `output` is the one from its stdout."""
        self.pid = pid
        self.stdin: trio.lowlevel.FdStream | None = None
        self.stdout: trio.lowlevel.FdStream | None = None
        self.returncode: int | None = None
        self._requests = requests
        self._output = output
        self._handle = os.pidfd_open(pid)

    def start(
        self, name: str, arguments: Sequence[str], log: int, variables: Mapping[str, str]
    ) -> None:
        """Starts it with `log` as its stderr and more environment variables.

        `arguments` are a module that has a function `main`, and what that finds in `sys.argv`;
        `name` is what `ps` shows. Raises OSError if the process has ended.
        """
        request = {"name": name, "arguments": list(arguments), "variables": dict(variables)}
        socket.send_fds(self._requests, [json.dumps(request).encode()], [log])
        self.stdin = trio.lowlevel.FdStream(self._requests.detach())
        self.stdout = trio.lowlevel.FdStream(self._output)

    async def wait(self) -> int:
        """Returns the exit code, or the negative number of the signal that ended the process."""
        if self.returncode is None:
            await trio.lowlevel.wait_readable(self._handle)
        return self._reap()

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def discard(self) -> None:
        """Ends a process that was not started, and does nothing to another one."""
        if self.stdin is None and self.returncode is None:
            self.kill()
            self._reap()
            self._requests.close()
            os.close(self._output)

    def _reap(self) -> int:
        if self.returncode is None:
            try:
                _, status = os.waitpid(self.pid, 0)
            except ChildProcessError:  # who started us ignores SIGCHLD: the system keeps no status
                status = 0
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self._handle)
        return self.returncode


@contextmanager
def forked_processes(count: int, modules: Sequence[str]) -> Iterator[Iterator[ForkedProcess]]:
    """Imports `modules` and forks `count` processes, none where that is not safe. Those that were
    not started are ended after the block. This process must not have a thread yet."""
    if not _is_safe():
        yield iter(())
        return
    for name in modules:
        import_module(name)
    gc.freeze()  # a collection writes to all objects that it examines, and so copies their pages
    processes: list[ForkedProcess] = []
    try:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # their handlers are for us alone
        try:
            with suppress(OSError):  # such as too many open files: the others are not forked
                for _ in range(count):
                    processes.append(_fork(mask))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield iter(processes)
    finally:
        for process in processes:
            process.discard()


def _is_safe() -> bool:
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):  # as in some builds of Python
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # an old kernel, or a container that does not allow it
        return False
    return True


def _fork(mask: set[int]) -> ForkedProcess:
    requests, theirs = socket.socketpair()
    output, their_output = os.pipe()
    pid = os.fork()
    if pid == 0:
        _end_with(partial(_run_when_started, theirs, their_output, mask))
    theirs.close()
    os.close(their_output)
    return ForkedProcess(pid, requests, output)


def _end_with(main: Callable[[], object]) -> NoReturn:
    """Ends this process with `main`, as the interpreter would, but without leaving the blocks of
    the process that it was forked from."""
    code = 1
    try:
        code = _code_of(main)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)  # whatever happens: this process must not act as its supervisor


def _code_of(main: Callable[[], object]) -> int:
    """Returns the exit code of a program, and shows what it ends with as the interpreter would."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        remark(str(end.code))
    except BaseException:  # noqa: BLE001 (the process ends here, whatever it is)
        for line in traceback.format_exc().splitlines():
            remark(line)
    else:
        return 0
    return 1


def _run_when_started(requests: socket.socket, output: int, mask: set[int]) -> None:
    """Makes this process what a new one would be, waits for its task, and runs it."""
    os.setsid()  # the supervisor handles Ctrl-C and stops its children in order
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.SIG_IGN)  # drops one that was meant for the supervisor
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.dup2(requests.fileno(), 0)
    os.dup2(output, 1)
    # Also our copies of the supervisor's ends: with such a copy, a pipe would outlive it.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != requests.fileno():
            with suppress(OSError):  # the one of this list is closed already
                os.close(descriptor)
    message, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 1)
    requests.close()
    if not message:
        return  # the supervisor has ended
    os.dup2(descriptors[0], 2)
    os.close(descriptors[0])
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (for the life of the process)
    request = json.loads(message)
    _show_as(request["name"])
    os.environ.update(request["variables"])
    sys.argv = request["arguments"]
    import_module(sys.argv[0]).main()


def _show_as(name: str) -> None:
    """Shows `ledgerstream: NAME` as the command line of this process, as far as there is room: the
    system reads it from the memory that it was started with."""
    stat = Path("/proc/self/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    shown = f"ledgerstream: {name}".encode()[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)
