"""`ledger-add`: adds entries to one ledger with the ledger client, as fast as the window allows."""

from __future__ import annotations

import os
import time
from array import array

import trio

from benchmarks.cluster import RunningCluster
from benchmarks.report import Measured
from benchmarks.settings import Settings
from ledger.client import LedgerClient
from ledger.options import ClientOptions
from ledger.writing.writer import LedgerWriter

_SAMPLE_EVERY = 64
_FRAME_OVERHEAD_BYTES = 64


class LatencySample:
    """Measures every 64th entry from append to confirmation, at a negligible cost."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.latencies_ms = array("d")
        self._sent: list[tuple[int, float]] = []
        self._next = 0
        writer.on_confirmed = self._confirmed

    def sent(self, entry_id: int) -> None:
        self._sent.append((entry_id, time.perf_counter()))

    def _confirmed(self, lac: int) -> None:
        now = time.perf_counter()
        while self._next < len(self._sent) and self._sent[self._next][0] <= lac:
            self.latencies_ms.append((now - self._sent[self._next][1]) * 1e3)
            self._next += 1


async def add_entries(writer: LedgerWriter, payload: bytes, count: int) -> array[float]:
    """Adds `count` entries as fast as the window allows; returns the latencies of some of them."""
    sample = LatencySample(writer)
    append = writer.append_nowait
    for number in range(count):
        try:
            entry_id = append(payload)
        except trio.WouldBlock:
            await writer.wait_room()
            entry_id = append(payload)
        if not number % _SAMPLE_EVERY:
            sample.sent(entry_id)
    await writer.flush()
    return sample.latencies_ms


async def ledger_add(settings: Settings, cluster: RunningCluster) -> Measured:
    count = settings.count or (1_000_000 if settings.size <= 256 else 300_000)
    payload = os.urandom(settings.size)
    options = ClientOptions(window_entries=settings.window)
    async with (
        LedgerClient.connect(cluster.uri, options=options) as client,
        client.create_ledger(**settings.replication) as writer,
    ):
        warmup = settings.warmup_count(_FRAME_OVERHEAD_BYTES)
        await add_entries(writer, payload, warmup)
        await cluster.wait_idle()
        with cluster.measured() as phase:
            latencies_ms = await add_entries(writer, payload, count)
    return Measured(count, count * settings.size, phase, latencies_ms)
