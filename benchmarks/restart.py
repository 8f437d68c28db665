"""`restart`: kills a bookie with a full journal and measures how fast the replay is.

While the journal is filled, the write cache is so large that no checkpoint is made. The bookie is
killed (SIGKILL) and started with the default settings, so that the measurement includes the
checkpoints that a replay makes when the cache is full.
"""

from __future__ import annotations

import os
import re
from typing import Final

import trio

from benchmarks.cluster import Phase, cpu_s, temporary_directory
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.single_bookie import free_port, start_bookie, write_config
from ledger.client import LedgerClient
from ledger.options import ClientOptions

JOURNAL_BYTES: Final = 1 << 30
_FRAME_OVERHEAD_BYTES: Final = 64
_LEDGERS: Final = 4
_PASSWORD: Final = b"restart"
# The write cache is never flushed, neither by size nor by time.
_HELD: Final = {"write_cache_bytes": 8 << 30, "checkpoint_interval_ms": 86_400_000}
_REPLAYED: Final = re.compile(r"storage ready .*replay_s=([0-9.]+)")


async def _fill(uri: str, size: int, count: int, window: int) -> list[int]:
    """Appends `count` entries in total to a few ledgers concurrently; returns their ids."""
    ledgers: list[int] = []
    payload = os.urandom(size)

    async def append(client: LedgerClient) -> None:
        async with client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, password=_PASSWORD
        ) as writer:
            ledgers.append(writer.ledger_id)
            for _ in range(count // _LEDGERS):
                try:
                    writer.append_nowait(payload)
                except trio.WouldBlock:
                    await writer.wait_room()
                    writer.append_nowait(payload)
            await writer.flush()

    async with (
        LedgerClient.connect(uri, options=ClientOptions(window_entries=window)) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(_LEDGERS):
            nursery.start_soon(append, client)
    return ledgers


async def _check(uri: str, ledgers: list[int], count: int) -> None:
    """Checks the first and last entry of each ledger: acknowledged entries must be replayed."""
    async with LedgerClient.connect(uri) as client:
        for ledger_id in ledgers:
            async with client.open_ledger(ledger_id, password=_PASSWORD) as reader:
                last = count // _LEDGERS - 1
                assert [entry.entry_id for entry in await reader.read(0, 0)] == [0]
                assert [entry.entry_id for entry in await reader.read(last, last)] == [last]


def restart(settings: Settings) -> Measured:
    """Measures one start with `count` entries in the journal, by default 1 GiB of them."""
    count = settings.count or JOURNAL_BYTES // (settings.size + _FRAME_OVERHEAD_BYTES)
    count -= count % _LEDGERS
    with temporary_directory(settings.dir) as directory:
        port, log = free_port(), directory / "bookie.log"
        uri = f"sqlite://{directory}/cluster.db"
        bookie = start_bookie(write_config(directory, port, _HELD), log)
        ready_empty_s = bookie.ready_s
        try:
            ledgers = trio.run(_fill, uri, settings.size, count, settings.window)
        finally:
            bookie.kill()
        journal_bytes = sum(path.stat().st_size for path in directory.glob("journal/0*.journal"))
        bookie = start_bookie(write_config(directory, port, {}), log)
        try:
            cpu_used_s = cpu_s(bookie.process.pid)
            trio.run(_check, uri, ledgers, count)
        finally:
            bookie.kill()
        replay_s = float(_REPLAYED.findall(log.read_text())[-1])
    more = {
        "ready_s": round(bookie.ready_s, 3),
        "ready_empty_s": round(ready_empty_s, 3),
        "replay_s": replay_s,
        "journal_bytes": journal_bytes,
        "journal_mb_per_s": round(journal_bytes / replay_s / 1e6, 1),
    }
    phase = Phase(wall_s=replay_s, bookies_cpu_s=cpu_used_s)
    return Measured(count, count * settings.size, phase, None, more)
