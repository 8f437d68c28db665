"""`rate`: appends at fixed rates, alone and followed by a reader, of ours and of its peers.

Each result is of one system at one rate: CPU of all processes per record and the latency of appends
alone; then the same with a reader in another process, with the latency from just before the append
until that process has the record. The servers and both clients stay the same for all rates. A
system that does not reach a rate alone is not measured any further.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from benchmarks.children import Child, report_of, running
from benchmarks.cluster import Phase, measured
from benchmarks.report import Measured, percentiles
from benchmarks.settings import Settings
from benchmarks.systems.system import Running

RATES: Final = (10, 50, 500, 5_000, 20_000)
_SECONDS: Final = 10.0
_RECORDS_MIN: Final = 300
"""At low rates it takes longer, so that there are as many records as a p99 needs."""
_WARMUP_RATE: Final = 1000
_WARMUP_RECORDS: Final = 4000
REACHED: Final = 0.9
"""The share of a rate that counts as having reached it."""


async def rate(
    settings: Settings, servers: Running, report: Callable[[Settings, Measured], None]
) -> None:
    """Reports a result for each rate, or for `settings.rate` alone."""
    alone, tailed = (f"{name}-{os.urandom(4).hex()}" for name in ("alone", "tailed"))
    command = servers.client("append", [alone, tailed])
    async with running("the client that appends", command, obeys=True) as writer:
        await writer.line()  # it is ready
        warmup = max(1, int(_WARMUP_RECORDS * min(1.0, 10 * settings.warmup)))
        for stream in (alone, tailed):
            await writer.order(stream, _WARMUP_RATE, warmup, settings.size)
            warmed = int((await writer.line()).split()[1])
        command = servers.client("follow", [tailed])
        async with running("the client that follows", command, obeys=True) as reader:
            await reader.line()
            await reader.order(warmed)
            await reader.line()
            for each in [settings.rate] if settings.rate else RATES:
                chosen = replace(settings, rate=each)
                found = await _alone(chosen, servers, writer, alone)
                if found.count >= each * found.phase.wall_s * REACHED:
                    more = await _tailed(found.count, chosen, servers, (writer, reader), tailed)
                    found = replace(found, more=more)
                report(chosen, found)
                if not found.more:
                    break


async def _alone(settings: Settings, servers: Running, writer: Child, stream: str) -> Measured:
    rate = settings.rate
    seconds = _SECONDS if settings.seconds is None else settings.seconds
    count = settings.count or max(int(rate * seconds), _RECORDS_MIN)
    phase: Phase
    with measured(servers.server_pids, [writer.pid]) as phase:
        await writer.order(stream, rate, count, settings.size)
        await writer.line()  # all is durable
    latencies_ms = await report_of(writer)
    return Measured(len(latencies_ms), len(latencies_ms) * settings.size, phase, latencies_ms)


async def _tailed(
    count: int, settings: Settings, servers: Running, clients: tuple[Child, Child], stream: str
) -> dict[str, Any]:
    """Returns what a reader adds; nothing if the writer fell behind, for which it waits then."""
    writer, reader = clients
    await reader.order(count)
    phase: Phase
    with measured(servers.server_pids, [writer.pid, reader.pid]) as phase:
        await writer.order(stream, settings.rate, count, settings.size)
        done = await writer.line()
        if int(done.split()[1]) < count:
            return {}
        await reader.line()
    seen_ms = await report_of(reader)
    cpu_s = phase.client_cpu_s + phase.bookies_cpu_s
    tail = {f"tail_{name}": value for name, value in percentiles(seen_ms).items()}
    return {"tailed_cpu_us_per_record": float(f"{cpu_s * 1e6 / count:.3g}"), **tail}
