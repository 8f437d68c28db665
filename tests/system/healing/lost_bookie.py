"""Loses bookies of a cluster with many ledgers, under load, and measures how it heals.

`python -m tests.system.healing.lost_bookie --ledgers 50000 --case disk`. Real processes: five
bookies with auto-recovery, ledgers of three sizes with write quorum 3, and a stream that is
appended to. A bookie is killed with -9 and its directories are deleted; in the end every ledger
must have three copies again, each bookie must hold all entries that the metadata names it for, the
stream must be whole, and no append may have failed.

Cases: `disk`: one bookie; `two`: another one inside the delay; `returns`: the lost one returns,
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
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import trio

from ledger.autorecovery.published import WorkerReport, read_audit, read_workers
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.metastore.election import AuditorElection
from stream import Namespace
from tests.system.healing.clusters import (
    bookie_of,
    copies_lacking,
    new_cluster,
    status_of,
    until,
)
from tests.system.healing.measuring import Appends, CpuMeter, MetadataCount, metadata_count

BOOKIES = 5
CASES = ("disk", "two", "returns", "auditor")
_SIZES = ((5, 0.9), (100, 0.09), (1000, 0.01))
"""Entries of 1 KiB of a ledger, and the share of such ledgers."""
_ENTRY_BYTES = 1024
_WRITERS = 48
_DELAY_S = 20
_PACE_S = 0.01
_PATIENCE_S = 1800.0
_IN_PEACE_S = 10.0


class Loss:
    """One run.

    Args:
        delay_s: how long a single lost bookie is waited for.
        in_peace_s: how long the load is measured before the loss.
        settings: of all bookies.
    """

    def __init__(
        self,
        directory: Path,
        *,
        ledgers: int,
        metadata: str | None = None,
        seed: int = 1,
        delay_s: int = _DELAY_S,
        in_peace_s: float = _IN_PEACE_S,
        **settings: Any,
    ) -> None:
        self.cluster = new_cluster(
            directory / "c",
            BOOKIES,
            "--no-restart",
            metadata=metadata,
            lost_bookie_recovery_delay_s=delay_s,
            **settings,
        )
        self.chance = random.Random(seed)
        self.ledgers = ledgers
        self.appends = Appends()
        self.figures: dict[str, Any] = {"ledgers": ledgers, "metadata": metadata or "sqlite"}
        self._delay_s, self._in_peace_s = delay_s, in_peace_s
        self._cpu_share_before = 0.0
        self._is_stopping = False

    async def run(self, case: str) -> dict[str, Any]:
        await trio.to_thread.run_sync(self.cluster.start)
        try:
            async with LedgerClient.connect(self.cluster.uri) as client:
                await self._write(client)
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._append)
                    meter, begun_s = self._cpu(), time.monotonic()
                    await trio.sleep(self._in_peace_s)
                    self._cpu_share_before = meter.seconds() / (time.monotonic() - begun_s)
                    await self._lose(client, case)
                    self._is_stopping = True
                lacking = await copies_lacking(client)
                assert not lacking, f"{len(lacking)} copies: {lacking[:3]}"
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
                    await writer.append_many([b"e" * _ENTRY_BYTES] * entries)

        async with trio.open_nursery() as nursery:
            for _ in range(_WRITERS):
                nursery.start_soon(write_some)
        self.figures["write_s"] = round(time.monotonic() - begun_s, 1)

    async def _append(self, task_status: trio.TaskStatus[None]) -> None:
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
                self.appends.add(time.monotonic() - begun_s)
                if len(self.appends.latencies["before"]) == 1:
                    task_status.started()  # the stream exists, and imports are done
                await trio.sleep(_PACE_S)

    def _kill(self, number: int, *, with_disks: bool = True) -> None:
        os.kill(self.cluster.pid_of(number), signal.SIGKILL)
        if with_disks:
            for name in ("journal", "ledgers"):
                shutil.rmtree(self.cluster.directory / f"bookie-{number}" / name)

    async def _lose(self, client: LedgerClient, case: str) -> None:
        metadata_before = metadata_count(self.cluster.directory)
        self.appends.phase = "waiting"
        lost, also = await self._chosen(client, case)
        self._kill(lost, with_disks=case != "returns")
        killed_s = time.monotonic()
        if case == "two":
            await trio.sleep(self._delay_s / 2)
        if case in ("two", "auditor"):
            self._kill(also)
        await until(partial(self._is_healing, client), patience_s=_PATIENCE_S)
        self.appends.phase = "healing"
        meter, begun_s = self._cpu(), time.monotonic()
        if case == "returns":
            await until(partial(self._is_half_way, client), patience_s=_PATIENCE_S)
            settings = self.cluster.settings_of(lost)
            await trio.to_thread.run_sync(self.cluster.start_bookie, settings)
        await self._wait_unmarked(client)
        healed_s, metadata = time.monotonic(), metadata_count(self.cluster.directory)
        cpu = meter.seconds() - self._cpu_share_before * (healed_s - begun_s)
        status = await self._wait_healed(client)
        self.figures |= {
            "case": case,
            "seconds_from_loss": round(healed_s - killed_s, 1),
            "seconds_healing": round(healed_s - begun_s, 1),
            "status": status["verdict"],
            "exit_code": status["exit_code"],
            "reasons": [one["reason"] for one in status["reasons"]],
        }
        self._record(
            await read_workers(client.store),
            cpu,
            metadata.since(metadata_before),
            healed_s - begun_s,
        )

    async def _chosen(self, client: LedgerClient, case: str) -> tuple[int, int]:
        """Returns the numbers of the bookie that is lost, and of another one that may be; that is
        the auditor's if this `case` wants it."""
        auditor = await AuditorElection(client.store, client.ledgers.root).auditor()
        numbers = [*range(1, BOOKIES + 1)]
        numbers.sort(key=lambda n: bookie_of(self.cluster, n) == auditor)
        assert auditor == bookie_of(self.cluster, numbers[-1])
        return numbers[0], numbers[-1] if case == "auditor" else numbers[1]

    async def _is_healing(self, client: LedgerClient) -> bool:
        """Whether an audit has found a bookie lost: the stream's open ledger is marked before."""
        audit, marked = await read_audit(client.store), await client.underreplication.list()
        return len(marked) > BOOKIES or (audit is not None and bool(audit.bookies_lost))

    async def _is_half_way(self, client: LedgerClient) -> bool:
        return await self._healed(client) >= self.ledgers * 3 / BOOKIES / 2

    async def _healed(self, client: LedgerClient) -> int:
        return sum(one.ledgers_healed for one in await read_workers(client.store))

    async def _wait_unmarked(self, client: LedgerClient) -> None:
        """Returns once there are no marks. Nothing is polled: that takes CPU and time of the
        metadata store, which the appends would show."""
        with trio.fail_after(_PATIENCE_S):
            async with aclosing(client.underreplication.watch_any()) as changes:
                async for is_any in changes:
                    if not is_any:
                        return

    async def _wait_healed(self, client: LedgerClient) -> dict[str, Any]:
        """Returns what `status` says once no ledger lacks copies."""
        found: dict[str, Any] = {}

        async def is_healed() -> bool:
            await self._wait_unmarked(client)
            found.update(await trio.to_thread.run_sync(status_of, self.cluster))
            assert found["exit_code"] < 5, f"loss was reported: {found['reasons']}"
            is_doubt = found["exit_code"] not in (0, 3)
            return not (is_doubt or found["ledgers_marked"] or found["ledgers_below_write_quorum"])

        await until(is_healed, patience_s=_PATIENCE_S, poll_s=2, what=lambda: found["reasons"])
        return found

    def _cpu(self) -> CpuMeter:
        return CpuMeter(int(path.read_text()) for path in self.cluster.directory.rglob("*.pid"))

    def _record(
        self, workers: list[WorkerReport], cpu: float, metadata: MetadataCount, seconds: float
    ) -> None:
        copied = sum(one.bytes_copied for one in workers)
        entries = sum(one.entries_copied for one in workers)
        healed = sum(one.ledgers_healed for one in workers)
        assert copied > 0 < healed, "nothing was copied"
        self.figures |= {
            "mb_copied": round(copied / 1e6, 1),
            "entries_copied": entries,
            "ledgers_healed": healed,
            "mb_per_s_and_worker": round(copied / 1e6 / seconds / len(workers), 3),
            "cpu_s_beyond_load": round(cpu, 1),
            "cpu_ms_per_mb": round(cpu * 1e3 / (copied / 1e6), 1),
            "cpu_us_per_entry": round(cpu * 1e6 / entries, 1),
            "metadata_changes_per_ledger": round(metadata.changes / healed, 2),
        }
        if metadata.requests is not None:
            self.figures["metadata_requests_per_ledger"] = round(metadata.requests / healed, 2)

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
            "load_average": round(os.getloadavg()[0], 1),
        }


def lose(directory: Path, case: str, *, ledgers: int, **more: Any) -> dict[str, Any]:
    """Runs one case, and returns its figures. `more`: as of `Loss`."""
    return trio.run(Loss(directory, ledgers=ledgers, **more).run, case)


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
