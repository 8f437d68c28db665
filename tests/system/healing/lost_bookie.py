"""Loses bookies of a cluster with many ledgers, under load, and measures how it heals.

`python -m tests.system.healing.lost_bookie --ledgers 50000 --case disk`. Real processes: five
bookies with auto-recovery, ledgers of three sizes with write quorum 3, and a stream that is
appended to. A bookie is killed with -9 and its directories are deleted; in the end every ledger
must have three copies again, the stream must be whole, and no append may have failed.

Cases: `disk`: one bookie; `two`: another one inside the delay; `returns`: the lost one is back,
with its disks, half way; `auditor`: the auditor is killed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream import Namespace
from tests.system.cluster import StandaloneCluster

BOOKIES = 5
CASES = ("disk", "two", "returns", "auditor")
_SIZES = ((5, 0.9), (100, 0.09), (1000, 0.01))
"""Entries of 1 KiB of a ledger, and the share of such ledgers."""
_ENTRY = b"e" * 1024
_WRITERS = 48
_DELAY_S = 20
_PACE_S = 0.01
_PATIENCE_S = 1800.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Appends:
    """Latencies of appends to a stream, in seconds, by phase."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    phase: str = "before"
    failures: list[str] = field(default_factory=list)

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


class Loss:
    """One run."""

    def __init__(self, directory: Path, *, ledgers: int, metadata: str | None, seed: int) -> None:
        options = () if metadata is None else ("--metadata", metadata)
        self.cluster = StandaloneCluster(directory / "c", BOOKIES, ("--no-restart", *options))
        self.chance = random.Random(seed)
        self.ledgers = ledgers
        self.appends = Appends()
        self.figures: dict[str, Any] = {"ledgers": ledgers}
        self._is_stopping = False

    async def run(self, case: str) -> dict[str, Any]:
        await trio.to_thread.run_sync(self.cluster.start)
        try:
            await trio.to_thread.run_sync(self.cluster.run, "autorecovery", "delay", str(_DELAY_S))
            async with LedgerClient.connect(self.cluster.uri) as client:
                await self._write(client)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._append)
                    await trio.sleep(10)
                    await self._lose(case)
                    self._is_stopping = True
            self._judge()
        finally:
            self.cluster.end()
        return self.figures

    async def _write(self, client: LedgerClient) -> None:
        begun_s = time.monotonic()
        counts = [count for count, _ in _SIZES]
        weights = [weight for _, weight in _SIZES]
        waiting = iter(range(self.ledgers))

        async def write_some() -> None:
            for _ in waiting:
                entries = self.chance.choices(counts, weights)[0]
                async with client.create_ledger() as writer:
                    await writer.append_many([_ENTRY] * entries)

        async with trio.open_nursery() as nursery:
            for _ in range(_WRITERS):
                nursery.start_soon(write_some)
        self.figures["write_s"] = round(time.monotonic() - begun_s, 1)

    async def _append(self) -> None:
        async with (
            Namespace.connect(self.cluster.uri, "demo", create=True) as namespace,
            namespace.writer("load", create=True) as writer,
        ):
            while not self._is_stopping:
                begun_s = time.monotonic()
                try:
                    await writer.append(b"x" * 500)
                except LedgerError as error:
                    self.appends.failures.append(str(error))
                latencies = self.appends.latencies.setdefault(self.appends.phase, [])
                latencies.append(time.monotonic() - begun_s)
                await trio.sleep(_PACE_S)

    def _kill(self, number: int, *, with_disks: bool = True) -> None:
        os.kill(self.cluster.pid_of(number), signal.SIGKILL)
        if with_disks:
            for name in ("journal", "ledgers"):
                shutil.rmtree(self.cluster.directory / f"bookie-{number}" / name)

    def _status(self) -> dict[str, Any]:
        done = self.cluster.try_run("status", "--json", "--ledgers-max", str(10**9))
        found: dict[str, Any] = json.loads(done.stdout)
        return found | {"exit_code": done.returncode}

    async def _lose(self, case: str) -> None:
        self.appends.phase = "waiting"
        with_disks = case != "returns"
        self._kill(2, with_disks=with_disks)
        killed_s = time.monotonic()
        if case == "two":
            await trio.sleep(_DELAY_S / 2)
            self._kill(4)
        if case == "auditor":
            await trio.sleep(_DELAY_S)
            auditor = self._status()["auditor"]
            self._kill(1 + self.cluster.ports().index(int(auditor.rpartition(":")[2])))
        await self._until(lambda status: status["ledgers_marked"] > 0, 0.5)
        self.appends.phase = "healing"
        begun_s, cpu_before = time.monotonic(), self._cpu()
        if case == "returns":
            await self._until(lambda s: s["ledgers_below_write_quorum"] < self.ledgers / 4, 1)
            await trio.to_thread.run_sync(self._start_again, 2)
        lowest = await self._until(
            lambda s: not s["ledgers_marked"] and not s["ledgers_below_write_quorum"], 2
        )
        healed_s = time.monotonic()
        self.figures |= {
            "case": case,
            "seconds_from_loss": round(healed_s - killed_s, 1),
            "seconds_healing": round(healed_s - begun_s, 1),
            "cpu_s_of_bookies": round(self._cpu() - cpu_before, 1),
            "status": lowest["verdict"],
        }

    def _start_again(self, number: int) -> None:
        """Starts a bookie of the cluster whose supervisor leaves it alone."""
        import subprocess

        from tests.system.cluster import environment

        settings = self.cluster.directory / f"bookie-{number}" / "bookie.toml"
        process = subprocess.Popen(
            [sys.executable, "-m", "stream.cli", "bookie", "run", "--config", str(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        self._again = process

    async def _until(self, condition: Callable[[dict[str, Any]], bool], pause_s: float) -> Any:
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            status = await trio.to_thread.run_sync(self._status)
            assert status["exit_code"] < 5, f"loss was reported: {status['reasons']}"
            if condition(status):
                return status
            assert time.monotonic() < deadline_s, f"not in {_PATIENCE_S:g} s: {status['reasons']}"
            await trio.sleep(pause_s)

    def _cpu(self) -> float:
        pids = [int(path.read_text()) for path in self.cluster.directory.rglob("*.pid")]
        return sum(map(cpu_s, pids))

    def _judge(self) -> None:
        assert not self.appends.failures, self.appends.failures[:3]
        done = self.cluster.try_run("stream", "verify", "demo/load")
        assert done.returncode == 0, done.stdout.decode()
        lists = [value for value in self.appends.latencies.values() if value]
        self.figures |= {
            "appends": sum(map(len, lists)),
            "append_ms_mean": round(statistics.mean(self.appends.latencies["before"]) * 1000, 2),
            "append_ms_p99_before": self.appends.quantile_ms("before", 0.99),
            "append_ms_p99_healing": self.appends.quantile_ms("healing", 0.99),
            "append_ms_max": round(max(map(max, lists)) * 1000),
        }


def lose(
    directory: Path, case: str, *, ledgers: int, metadata: str | None = None, seed: int = 1
) -> dict[str, Any]:
    """Runs one case, and returns its figures."""
    loss = Loss(directory, ledgers=ledgers, metadata=metadata, seed=seed)
    return trio.run(loss.run, case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledgers", type=int, default=50_000)
    parser.add_argument("--case", choices=CASES, default="disk")
    parser.add_argument("--metadata", choices=("sqlite", "zookeeper"), default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = lose(Path(directory), given.case, ledgers=given.ledgers, metadata=given.metadata)
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
