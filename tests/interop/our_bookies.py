"""Bookies of ledgerstream as processes that a test may kill and restart.

A bookie keeps its id, port and data when it is restarted.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from tests.interop.apache_bookie import free_port
from tests.interop.timeouts import PATIENCE_S, SESSION_TIMEOUT_MS
from tests.system.cluster import environment

SETTINGS: dict[str, object] = {
    "session_timeout_ms": SESSION_TIMEOUT_MS,
    "checkpoint_interval_ms": 1000,
    "garbage_interval_ms": 1000,
    "entry_log_bytes_max": 32 << 20,
}


class OurBookies:
    """Bookies 0, 1, 2 ... of one cluster."""

    def __init__(self, directory: Path, uri: str, **settings: Any) -> None:
        self.directory = directory
        self.uri = uri
        self._settings = {**SETTINGS, **settings}
        self._ports: dict[int, int] = {}
        self._processes: dict[int, subprocess.Popen[str]] = {}

    def bookie_id(self, number: int) -> str:
        return f"127.0.0.1:{self._ports.setdefault(number, free_port())}"

    def number_of(self, bookie_id: str) -> int:
        """Returns the number of a bookie by its id."""
        return next(n for n in self._ports if self.bookie_id(n) == bookie_id)

    @property
    def running(self) -> list[int]:
        return [n for n, process in self._processes.items() if process.poll() is None]

    def start(self, *numbers: int) -> None:
        """Starts bookies concurrently; returns when all are registered."""
        for number in numbers:
            self.begin(number)
        for number in numbers:
            self.wait_ready(number)

    def change(self, **settings: Any) -> None:
        """Changes settings of all bookies; those that run keep what they have until a restart."""
        self._settings |= settings

    def configure(self, number: int) -> Path:
        """Writes the settings of a bookie; returns their file."""
        port = self._ports.setdefault(number, free_port())
        at = self.directory / f"ours-{number}"
        at.mkdir(parents=True, exist_ok=True)
        lines = {
            "metadata_uri": self.uri,
            "port": port,
            "journal_directories": [f"{at}/journal"],
            "ledger_directories": [f"{at}/ledgers"],
            **self._settings,
        }
        config = at / "bookie.toml"
        config.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in lines.items()))
        return config

    def begin(self, number: int) -> None:
        """Starts a bookie. Does not wait."""
        assert number not in self.running, f"bookie {number} runs"
        config = self.configure(number)
        with (config.parent / "bookie.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [sys.executable, "-m", "bookie.process", str(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )

    def wait_ready(self, number: int) -> None:
        """Waits until a bookie that was started is registered."""
        output = self._processes[number].stdout
        assert output is not None
        if not output.readline().startswith("ready "):
            self.kill(number)
            raise AssertionError(f"our bookie {number} did not start:\n{self.log(number)}")

    def log(self, number: int) -> str:
        """Returns the end of its output."""
        path = self.directory / f"ours-{number}" / "bookie.log"
        return path.read_text(errors="replace")[-4000:]

    def kill(self, number: int) -> None:
        """Kills a bookie with -9; returns when it has ended."""
        process = self._processes.pop(number)
        process.kill()
        self._reap(process)

    def stop(self, number: int) -> int:
        """Terminates a bookie with SIGTERM; returns its exit code."""
        process = self._processes.pop(number)
        process.terminate()
        return self._reap(process)

    def wait_end(self, number: int) -> int:
        """Waits until a bookie ends by itself; returns its exit code."""
        return self._reap(self._processes.pop(number))

    def pause(self, number: int) -> None:
        """Stops the process; its sockets stay open."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def kill_all(self) -> None:
        for number in list(self._processes):
            self.kill(number)

    @staticmethod
    def _reap(process: subprocess.Popen[str]) -> int:
        code = process.wait(PATIENCE_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def start_missing(self, count: int) -> None:
        """Restarts those of the first `count` bookies that do not run."""
        self.start(*(number for number in range(count) if number not in self.running))


def bytes_on_disk(directory: Path, pattern: str) -> int:
    """Returns the size of the matching files, without those that disappear in the meantime."""
    total = 0
    for path in directory.glob(pattern):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


async def wait_until_async(
    holds: Callable[[], bool], *, what: str, timeout_s: float = PATIENCE_S
) -> None:
    """Waits until `holds()`; for states of other processes, which send no notification."""
    with trio.move_on_after(timeout_s):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {timeout_s} s: {what}")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if isinstance(value, int | float) else f'"{value}"'
