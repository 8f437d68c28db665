"""`latency`: appends at a fixed rate, each measured from the time at which it was due.

This includes the wait of appends that queue behind a slow one, which a measurement from the call
would hide.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from benchmarks.append import NAMESPACE, STREAM
from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from ledger.client import LedgerClient
from stream import Namespace

_DEFAULT_SECONDS = 10

Append = Callable[[bytes], Awaitable[object]]


@asynccontextmanager
async def _appender(settings: Settings, cluster: RunningCluster) -> AsyncIterator[Append]:
    if settings.layer == "ledger":
        async with (
            LedgerClient.connect(cluster.uri) as client,
            client.create_ledger(**settings.replication) as ledger,
        ):
            yield ledger.append
        return
    async with Namespace.connect(cluster.uri, NAMESPACE) as namespace:
        await namespace.ensure(**settings.replication)
        async with namespace.writer(STREAM, create=True) as writer:
            yield writer.append


async def at_fixed_rate(append: Append, value: bytes, count: int, rate: int) -> array[float]:
    """Returns the latencies (ms) of `count` appends at a constant `rate` per second."""
    latencies_ms = array("d")

    async def append_one(due_s: float) -> None:
        await append(value)
        latencies_ms.append((time.perf_counter() - due_s) * 1e3)

    async with trio.open_nursery() as nursery:
        started_s = time.perf_counter()
        sent = 0
        while sent < count:
            due = min(count, int((time.perf_counter() - started_s) * rate) + 1)
            for number in range(sent, due):
                nursery.start_soon(append_one, started_s + number / rate)
            sent = due
            await trio.sleep(max(0.0, started_s + sent / rate - time.perf_counter()))
    return latencies_ms


async def latency(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or settings.rate * _DEFAULT_SECONDS
    value = os.urandom(settings.size)
    async with _appender(settings, cluster) as append:
        await at_fixed_rate(append, value, max(1, int(count * settings.warmup)), settings.rate)
        with cluster.measured() as phase:
            latencies_ms = await at_fixed_rate(append, value, count, settings.rate)
    return Measured(count, count * settings.size, phase, latencies_ms)
