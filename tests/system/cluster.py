"""`ledgerstream` as its users run it, in processes that tests may kill.

`StandaloneCluster` is the `standalone` command with its bookies; `run` and `begin` run any other
sub-command against it.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.effort import IS_NIGHT
from tests.system.warm_interpreter import WarmInterpreter
from tests.tidy.checkout import ROOT

_PYTHON = [sys.executable, "-P", "-X", "dev", "-W", "error"]
COMMAND = [*_PYTHON, "-m", "stream.cli"]
PATIENCE_S = 60.0


def environment(**more: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("LEDGERSTREAM_")}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        ),
        "COLUMNS": "200",
        "XDG_CONFIG_HOME": os.devnull,
        **more,
    }


_STARTED: set[str] = set()
"""Sub-commands of which this process has started a fresh process."""


@cache
def _warm_interpreter() -> WarmInterpreter:
    """Returns the interpreter for all commands of this process, which ends with it."""
    interpreter = WarmInterpreter(_PYTHON, environment())
    atexit.register(interpreter.close)
    return interpreter


def is_running(pid: int) -> bool:
    """Returns whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def memory_bytes(pid: int, name: str = "VmRSS") -> int:
    """Returns the memory of a process now, or with VmHWM the most that it had."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None, f"process {pid} has ended"
    return int(found.group(1)) * 1024


def wait_gone(pids: list[int]) -> None:
    """Returns when none of the processes is left; fails after a minute."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline_s, f"still there: {pids}"
        time.sleep(0.01)  # there is no event for the end of a process that is not a child


def limited_files(soft: int, hard: int) -> list[str]:
    """Returns what begins a command whose processes have these limits of open files."""
    return ["sh", "-c", f'ulimit -S -n {soft} && ulimit -H -n {hard} && exec "$@"', "sh"]


class StandaloneCluster:
    """`ledgerstream standalone` on one directory; it can be restarted after its end."""

    def __init__(
        self,
        directory: Path,
        bookies: int | None,
        options: tuple[str, ...],
        variables: Mapping[str, str] | None = None,
        *,
        umask: int = -1,
        files_max: tuple[int, int] | None = None,
    ) -> None:
        """`variables` are added to its environment. `files_max`: the soft and the hard limit of
        the descriptors of each process."""
        self.directory = directory
        self._umask = umask
        self._limited = [] if files_max is None else limited_files(*files_max)
        self._arguments = ["standalone", "--dir", str(directory), *options]
        if bookies is not None:
            self._arguments += ["--bookies", str(bookies)]
        self._variables = dict(variables or {})
        self._process: subprocess.Popen[str] | None = None
        self._bookies: dict[Path, subprocess.Popen[bytes]] = {}
        self.uri = ""
        self.shown: list[tuple[str, bytes]] = []
        """The commands that were run against it, and what they said."""
        self.said = directory.with_name(f"{directory.name}.stderr")

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the cluster was not started"
        return self._process

    def start(self) -> None:
        """Starts the cluster and returns when it has printed "ready"."""
        with self.said.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._limited + COMMAND + self._arguments,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(**self._variables),
                start_new_session=True,
                umask=self._umask,
            )
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert words[:1] == ["ready"], f"not ready: {self.said.read_text()}\n{self.logs()}"
        self.uri = words[1]

    def start_bookie(self, settings: Path) -> int:
        """Starts a bookie that the supervisor does not know, or leaves alone since it ended
        (`--no-restart`); returns its process id once it is ready. It ends with the cluster."""
        with settings.with_name("bookie.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stream.cli", "bookie", "run", "--config", settings],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
            )
        self._bookies[settings] = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(b"ready "), f"not ready: {settings}\n{self.logs()}"
        return process.pid

    def end_bookies(self) -> None:
        """Ends the bookies that `start_bookie` started."""
        for process in self._bookies.values():
            process.terminate()
        for process in self._bookies.values():
            with process:
                process.wait(PATIENCE_S)
        self._bookies.clear()

    def settings_of(self, number: int) -> Path:
        return self.directory / f"bookie-{number}" / "bookie.toml"

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.directory.glob("bookie-*/bookie.log"))

    def pid_of(self, number: int) -> int:
        """Returns the process id of bookie `number`, counted from 1."""
        return int((self.directory / f"bookie-{number}" / "bookie.pid").read_text())

    def kill_bookie(self, number: int) -> None:
        """Kills a bookie with SIGKILL; returns when the supervisor's next one serves."""

        def starts() -> int:
            lines = self.said.read_text().splitlines()
            again = (line for line in lines if line.endswith("serves again"))
            return sum(f"bookie {number} (" in line for line in again)

        before = starts()
        os.kill(self.pid_of(number), signal.SIGKILL)
        wait_for(lambda: starts() > before)

    def pids(self) -> list[int]:
        files = self.directory.rglob("*.pid")
        return [self.process.pid, *(int(path.read_text()) for path in files)]

    def ports(self) -> list[int]:
        import tomllib

        layout = tomllib.loads((self.directory / "standalone.toml").read_text())
        return list(layout["ports"])

    def kill_all(self) -> None:
        """Kills the supervisor with SIGKILL; returns when its bookies have ended, too."""
        pids = self.pids()
        self.process.kill()
        self.end(signal.SIGKILL)
        wait_gone(pids)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        self.end_bookies()
        process = self.process
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def stop(self) -> None:
        if self._process is not None:
            self.end()

    # Commands against the cluster.

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Returns the stdout of a command that must succeed."""
        done = self.try_run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def try_run(
        self, *arguments: str, stdin: bytes = b"", **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs a command, with more environment variables, and returns its result. The first
        process of each sub-command is started from scratch, at night all of them; the others are
        forked from an interpreter with all imports."""
        variables = environment(**{"LEDGERSTREAM_CLUSTER": self.uri, **more})
        if IS_NIGHT or arguments[0] not in _STARTED:
            _STARTED.add(arguments[0])
            done = subprocess.run(
                COMMAND + list(arguments),
                input=stdin,
                capture_output=True,
                env=variables,
                timeout=2 * PATIENCE_S,
                check=False,
            )
        else:
            done = _warm_interpreter().run(
                arguments, stdin=stdin, environment=variables, timeout_s=2 * PATIENCE_S
            )
        self.shown.append((" ".join(arguments), done.stdout + done.stderr))
        return done

    def run_on_terminal(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Runs a command whose stdout is a terminal of 200 columns, with styles."""
        variables = environment(LEDGERSTREAM_CLUSTER=self.uri, TERM="xterm")
        return _warm_interpreter().run(
            arguments,
            stdin=b"",
            environment=variables,
            timeout_s=2 * PATIENCE_S,
            is_on_terminal=True,
        )

    @contextmanager
    def begin(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Starts a command with pipes on stdin, stdout and stderr; kills it at the end of the
        block."""
        process = subprocess.Popen(
            COMMAND + list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(LEDGERSTREAM_CLUSTER=self.uri),
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def wait_for(is_so: Callable[[], bool]) -> None:
    """Returns when `is_so` does, for changes of other processes that only their files show."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
