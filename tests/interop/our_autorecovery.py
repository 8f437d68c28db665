"""`ledgerstream autorecovery run` as a process that a test may kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.interop.timeouts import PATIENCE_S
from tests.interop.znodes import forget_healer
from tests.system.cluster import environment

QUICK: dict[str, Any] = {"lost_bookie_recovery_delay_s": 0, "open_ledger_grace_s": 1}
"""Settings for tests: nothing is waited for."""


class OurAutoRecovery:
    """A replication worker of ours that is also a candidate for the auditor.

    Args:
        directory: for its log.
        settings: options of the command, by their names with underscores.
    """

    def __init__(self, directory: Path, uri: str, *, name: str, **settings: Any) -> None:
        self.name = name
        self.uri = uri
        self.log = directory / f"{name}.log"
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Starts the process; returns when it is connected."""
        assert self._process is None, f"{self.name} runs"
        command = [sys.executable, "-m", "stream.cli", "autorecovery", "run"]
        for name, value in {"name": self.name, "cluster": self.uri, **self._settings}.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith("ready "):
            self.kill()
            raise AssertionError(f"our auto-recovery did not start:\n{self.said()}")

    def kill(self) -> None:
        """Kills the process with -9, and deletes its vote and locks, as the end of its session
        would."""
        if self._process is not None:
            self._process.kill()
            self._reap()
            forget_healer(self.uri, self.name)

    def stop(self) -> int:
        """Terminates the process; returns its exit code."""
        assert self._process is not None, f"{self.name} does not run"
        self._process.terminate()
        return self._reap()

    def said(self) -> str:
        """Returns the end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    def _reap(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        code = process.wait(PATIENCE_S)
        process.stdout.close()
        return code
