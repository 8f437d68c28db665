"""`copy`: copies a ledger of two bookies to the third, as auto-recovery does, without a rate.

With `--rate`, then also: appends of users at that rate to all three bookies, alone and beside a
copy by another process, with what the copy still reaches. CPU time is that of all processes, and of
each part of the way.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from benchmarks.children import child
from benchmarks.cluster import RunningCluster, cpu_s
from benchmarks.fixed_rate import at_fixed_rate
from benchmarks.report import Measured, percentiles
from benchmarks.settings import Settings
from ledger.autorecovery.copier import Copier, CopierOptions, CopyReport
from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata

_COUNT: Final = 200_000
_USERS_S: Final = 8
_ENTRY_OVERHEAD_BYTES: Final = 64
_REPORT_S: Final = 0.25


async def _written(client: LedgerClient, value: bytes, count: int, copies: int) -> LedgerMetadata:
    async with client.create_ledger(
        ensemble_size=copies, write_quorum=copies, ack_quorum=copies
    ) as writer:
        await writer.append_many(value for _ in range(count))
    return await client.ledger_metadata(writer.ledger_id)


async def _target_of(client: LedgerClient, metadata: LedgerMetadata) -> str:
    bookies = await client.bookies.available()
    return next(one for one in bookies if one not in metadata.last_fragment.bookies)


async def _copy(copier: Copier, target: str, metadata: LedgerMetadata) -> CopyReport:
    report = await copier.copy(metadata, target, [(0, metadata.last_entry_id)])
    if not report.is_complete:
        raise SystemExit(f"benchmark copy: the copy is not complete: {report}")
    return report


def _pids(cluster: RunningCluster) -> dict[str, int]:
    """Returns the process of each bookie by its port."""
    found: dict[str, int] = {}
    for path in cluster.directory.glob("bookie-*/bookie.toml"):
        with path.open("rb") as file:
            port = tomllib.load(file)["port"]
        found[str(port)] = cluster.bookie_pid(int(path.parent.name.split("-")[1]))
    return found


@contextmanager
def _cpu_of_parts(
    pids: dict[str, int], target: str, count: int, found: dict[str, Any]
) -> Iterator[None]:
    before = {port: cpu_s(pid) for port, pid in pids.items()}
    yield
    spent = {port: cpu_s(pid) - before[port] for port, pid in pids.items()}
    of_target = spent.pop(target.split(":")[1])
    found["cpu_us_per_record_target"] = round(of_target * 1e6 / count, 2)
    found["cpu_us_per_record_sources"] = round(sum(spent.values()) * 1e6 / count, 2)


class _Copies:
    """A process that copies a ledger again and again; `copied` is what it reported last."""

    def __init__(self) -> None:
        self.copied = 0

    async def run(self, uri: str, ledger_id: int, task_status: trio.TaskStatus[None]) -> None:
        async with child("copy", uri, ledger_id) as copier:
            while True:
                self.copied = int((await copier.line()).split()[-1])
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED


async def _beside(
    client: LedgerClient, uri: str, metadata: LedgerMetadata, settings: Settings
) -> dict[str, float]:
    """Returns latencies of appends at the fixed rate, alone and beside copies."""
    value = os.urandom(settings.size)
    count = settings.rate * _USERS_S
    async with client.create_ledger(**settings.replication) as writer:
        await at_fixed_rate(writer.append, value, settings.rate, settings.rate)
        alone = percentiles(await at_fixed_rate(writer.append, value, count, settings.rate))
        found = {f"alone_{name}": value for name, value in alone.items()}
        copies = _Copies()
        async with trio.open_nursery() as nursery:
            await nursery.start(copies.run, uri, metadata.ledger_id)
            before, began_s = copies.copied, time.perf_counter()
            beside = percentiles(await at_fixed_rate(writer.append, value, count, settings.rate))
            nbytes, seconds = copies.copied - before, time.perf_counter() - began_s
            nursery.cancel_scope.cancel()
    found |= {f"beside_{name}": value for name, value in beside.items()}
    found["beside_copied_mb_per_s"] = round(nbytes / seconds / 1e6, 2)
    return found


async def copy(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or _COUNT
    value = os.urandom(settings.size)
    more: dict[str, Any] = {}
    async with LedgerClient.connect(cluster.uri) as client:
        # Journal files that are written for the first time cost more than recycled ones.
        await _written(client, value, settings.warmup_count(_ENTRY_OVERHEAD_BYTES), 3)
        metadata = await _written(client, value, count, 2)
        target = await _target_of(client, metadata)
        pids = _pids(cluster)
        async with Copier(client, CopierOptions(bytes_per_s=0)) as copier:
            await cluster.wait_idle()
            with cluster.measured() as phase, _cpu_of_parts(pids, target, count, more):
                report = await _copy(copier, target, metadata)
            statistics = copier.pool.statistics()
        of_target = statistics.pop((target, 2))
        per_1000 = 1000 / count
        more["sends_per_1000"] = round(of_target.sends * per_1000, 2)
        more["requests_per_1000"] = round(sum(s.sends for s in statistics.values()) * per_1000, 2)
        more["acks_received_per_1000"] = round(of_target.bytes_received / 32 * per_1000, 2)
        if settings.rate:
            await cluster.wait_idle()
            more |= await _beside(client, cluster.uri, metadata, settings)
    return Measured(count, report.payload_bytes, phase, more=more)


async def _copy_again_and_again(uri: str, ledger_id: int) -> None:
    """Reports the bytes copied, in lines, until it is killed."""
    async with (
        LedgerClient.connect(uri) as client,
        Copier(client, CopierOptions(bytes_per_s=0)) as copier,
    ):
        metadata = await client.ledger_metadata(ledger_id)
        reported_s = 0.0

        def report() -> bool:
            nonlocal reported_s
            if time.monotonic() - reported_s > _REPORT_S:
                reported_s = time.monotonic()
                sys.stdout.write(f"{copier.payload_bytes}\n")
                sys.stdout.flush()
            return True

        target = await _target_of(client, metadata)
        while True:
            await copier.copy(metadata, target, [(0, metadata.last_entry_id)], is_wanted=report)


if __name__ == "__main__":
    trio.run(_copy_again_and_again, sys.argv[1], int(sys.argv[2]))
