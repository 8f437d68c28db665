"""Supervises a child process: starts it, waits for it, restarts it, stops it.

Must leave no process behind: the stdin of a child is a pipe whose other end only the supervisor
holds, and the child ends when it is closed (docs/adr/0007-processes.md).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import trio

from bookie.standalone.forks import ForkedProcess
from ledger.errors import LedgerError
from ledger.runtime.logs import FILE_VARIABLE
from ledger.runtime.private_files import private_opener

# A child of a supervisor that was just killed may still hold port and directory.
_START_ATTEMPTS = 3
_BACKOFF_FIRST_S = 0.2
_BACKOFF_MAX_S = 10.0
_STABLE_S = 30.0
_STOP_GRACE_S = 10.0
_BEGIN_LATER_S = 5.0
_START_TIMEOUT_S = 60.0

_Process = trio.Process | ForkedProcess


class ClusterStartFailed(LedgerError):
    """A process of the local cluster did not start."""


class Child:
    """One process under supervision.

    Args:
        name: its name in messages.
        arguments: a module with a function `main`, which `python -m` calls, and its arguments; it
            prints a line that begins with "ready" when it serves.
        files: path of its log and of the file with its process id, without ".log" and ".pid".
        say: prints a line of text for each change.
        reopens_log: whether it opens its log again on SIGHUP, as our own processes do.
        forked: the process to begin with; later ones are started from scratch.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        files: Path,
        say: Callable[[str], None],
        *,
        reopens_log: bool = True,
        forked: ForkedProcess | None = None,
    ) -> None:
        self.name = name
        self.is_ready = trio.Event()
        self._arguments = arguments
        self.log = files.with_name(f"{files.name}.log")
        self._pid_file = files.with_name(f"{files.name}.pid")
        self._say = say
        self._reopens_log = reopens_log
        self._forked = forked
        self._serving: _Process | None = None

    async def begin_later(self) -> None:
        """Supervises from a time at which the other processes have started; they do not need it."""
        await trio.sleep(_BEGIN_LATER_S)
        await self.supervise(is_restarted=True, is_vital=False)

    async def supervise(self, *, is_restarted: bool, is_vital: bool = True) -> None:
        """Keeps the process running until cancelled; then stops it.

        Raises ClusterStartFailed if it `is_vital` and ends again and again before it was ever
        ready.
        """
        backoff_s = _BACKOFF_FIRST_S
        attempts = 0
        while True:
            started_s = trio.current_time()
            code = await self._run_once()
            attempts += 1
            ended = f"{self.name} ended with {_ending(code)}"
            if is_vital and not self.is_ready.is_set() and attempts >= _START_ATTEMPTS:
                raise ClusterStartFailed(
                    f"{ended} before it was ready: {self.last_output()} (see {self.log})"
                )
            if not is_restarted and self.is_ready.is_set():
                self._say(f"{ended}; it stays down (--no-restart)")
                await trio.sleep_forever()
            if trio.current_time() - started_s > _STABLE_S:
                backoff_s = _BACKOFF_FIRST_S
            self._say(f"{ended}; started again in {backoff_s:.1f} s (see {self.log})")
            await trio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    async def _run_once(self) -> int:
        """Starts the process and waits for its end. Stops it when cancelled."""
        process = await self._start()
        try:
            self._record_pid(process.pid)
            await self._wait_ready(process)
            self._serving = process
            return await process.wait()
        finally:
            self._serving = None
            with trio.CancelScope(shield=True):
                await _stop(process)
            self._pid_file.unlink(missing_ok=True)

    async def _start(self) -> _Process:
        with self._opened_log() as log:
            forked, self._forked = self._forked, None
            if forked is not None:
                variables = {FILE_VARIABLE: str(self.log)}
                try:
                    forked.start(self.name, self._arguments, log.fileno(), variables)
                except OSError:  # it was killed before it was needed
                    forked.discard()
                else:
                    return forked
            return await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(self.log if self._reopens_log else None),
                start_new_session=True,  # the supervisor handles Ctrl-C and stops them in order
            )

    def _opened_log(self) -> BinaryIO:
        return open(self.log, "ab", opener=private_opener)

    def _record_pid(self, pid: int) -> None:
        """Writes the file atomically: scripts read it as soon as it exists."""
        written = self._pid_file.with_suffix(".pid.tmp")
        written.unlink(missing_ok=True)  # left by a process that was killed, with a mode of its own
        with open(written, "x", opener=private_opener) as file:
            file.write(f"{pid}\n")
        written.replace(self._pid_file)

    async def _wait_ready(self, process: _Process) -> None:
        assert process.stdout is not None
        output = b""
        async for chunk in process.stdout:
            output += chunk
            if output.startswith(b"ready ") and b"\n" in output:
                if self.is_ready.is_set():
                    self._say(f"{self.name} serves again")
                self.is_ready.set()
                return

    def reopen_log(self) -> None:
        """Has the process open its log again, after it was renamed."""
        process = self._serving
        if self._reopens_log and process is not None and process.returncode is None:
            process.send_signal(signal.SIGHUP)

    def last_output(self) -> str:
        """Returns the last line of the log, for a message."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
        for line in reversed(lines):
            if line.strip() and not line.startswith("\tat "):  # of a Java stack trace
                return line.strip()
        return "no output"


async def wait_ready(children: Sequence[Child]) -> None:
    """Returns when all of them serve. Raises ClusterStartFailed if that takes too long."""
    with trio.move_on_after(_START_TIMEOUT_S):
        for child in children:
            await child.is_ready.wait()
        return
    late = [child for child in children if not child.is_ready.is_set()]
    raise ClusterStartFailed(
        f"not ready after {_START_TIMEOUT_S:.0f} s: {', '.join(child.name for child in late)}; "
        f"last output of the first: {late[0].last_output()} (see {late[0].log})"
    )


async def _stop(process: _Process) -> None:
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(_STOP_GRACE_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            await pipe.aclose()


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _environment(log: Path | None) -> dict[str, str]:
    """Returns the environment of a child, which logs to `log`. This checkout or installation is
    first on its path, whatever the current directory is."""
    here = str(Path(__file__).resolve().parents[2])
    earlier = os.environ.get("PYTHONPATH")
    found = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{earlier}" if earlier else here}
    found.pop(FILE_VARIABLE, None)
    return found if log is None else {**found, FILE_VARIABLE: str(log)}
