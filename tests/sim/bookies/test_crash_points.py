"""A bookie that dies in the middle of its n-th disk operation, for every n, and is restarted.

Power fails at once; or first the process alone dies, which leaves names and bytes that are there
but not durable: the restarted bookie must not rely on them, because then power fails.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
import trio

from bookie.config import KIB, BookieConfig
from bookie.testing import (
    CrashKind,
    SimCluster,
    Simulation,
    run_simulated,
    small_config,
)
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.options import ClientOptions
from tests.crash_counts import AFTERMATH_OF, crashed
from tests.effort import scaled

OPERATIONS = 260
PATIENT = ClientOptions(add_timeout_s=60, ensemble_change_timeout_s=60)


def _busy_config(name: str, chance: random.Random) -> BookieConfig:
    """So small that a second is full of rolls, checkpoints and recycled files."""
    return dataclasses.replace(
        small_config(name, chance),
        frame_bytes_max=8 * KIB,
        journal_file_bytes_max=16 * KIB,
        write_cache_bytes=16 * KIB,
        entry_log_bytes_max=8 * KIB,
        checkpoint_interval_ms=chance.choice((40, 400)),
        garbage_interval_ms=100,
        major_compaction_interval_ms=chance.choice((150, 400)),
        major_compaction_ratio_max=1.0,
    )


def _busy_config_of_several(name: str, chance: random.Random) -> BookieConfig:
    """Two journals and three ledger directories, as busy."""
    config = _busy_config(name, chance)
    return dataclasses.replace(
        config,
        journal_directories=("/journal", "/journal-1"),
        ledger_directories=("/ledgers", "/ledgers-1", "/ledgers-2"),
        write_cache_bytes=3 * config.write_cache_bytes,
        read_cache_bytes=3 * config.read_cache_bytes,
    )


class _Scenario:
    """One bookie, one client; `confirmed` is what must be there in the end."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.confirmed: dict[int, int] = {}

    async def write(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with self.cluster.client(options=PATIENT) as client:
                while True:
                    try:
                        await self._write_ledger(client)
                    except LedgerError:
                        await trio.sleep(0.01)

    async def _write_ledger(self, client: LedgerClient) -> None:
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        for number in range(20):
            await writer.append(bytes([number]) * 700)
            self.confirmed[writer.ledger_id] = number
        writer.abandon()
        if writer.ledger_id % 3 == 1:
            del self.confirmed[writer.ledger_id]
            await client.delete_ledger(writer.ledger_id)

    async def die_in_operation(self, number: int, kind: CrashKind) -> None:
        """Writes until the bookie dies in its `number`-th operation from now."""
        left = number

        def is_it(_kind: str, _path: str) -> bool:
            nonlocal left
            left -= 1
            return left == 0

        await self.die_when(is_it, kind)

    async def die_when(
        self, is_it: Callable[[str, str], bool], kind: CrashKind, *, is_writing: bool = True
    ) -> None:
        """Writes until the bookie dies in the first operation that `is_it` (kind, path)."""
        disk, killed = self.cluster.disk("bookie-0"), trio.Event()

        def look(operation: str, path: str) -> None:
            if is_it(operation, path):
                crashed(path, operation, AFTERMATH_OF[kind.name])
                disk.on_operation = None
                self.cluster.kill_bookie_now("bookie-0", kind)
                killed.set()

        disk.on_operation = look
        async with trio.open_nursery() as nursery:
            if is_writing:
                nursery.start_soon(self.write, 30)
            await killed.wait()
            nursery.cancel_scope.cancel()
        await self.cluster.kill_bookie("bookie-0", kind)

    async def check(self) -> None:
        async with self.cluster.client() as client:
            for ledger_id, last in self.confirmed.items():
                async with client.open_ledger(ledger_id) as reader:
                    assert reader.last_add_confirmed >= last
                    for entry in await reader.read(0, last) if last >= 0 else []:
                        assert bytes(entry.payload) == bytes([entry.entry_id]) * 700


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CrashKind.POWER_LOST_ALL, CrashKind.POWER_LOST_TORN])
@pytest.mark.parametrize("is_killed_before", [False, True])
@pytest.mark.parametrize("config", [_busy_config, _busy_config_of_several])
@pytest.mark.parametrize("first", range(0, OPERATIONS, 20))
def test_crashes_in_any_operation_lose_nothing_acknowledged(
    first: int,
    config: Callable[[str, random.Random], BookieConfig],
    is_killed_before: bool,
    kind: CrashKind,
) -> None:
    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=1, config=config) as cluster:
            scenario = _Scenario(cluster)
            if is_killed_before:
                await scenario.die_in_operation(number, CrashKind.PROCESS_KILLED)
                await cluster.start_bookie("bookie-0")
                await scenario.write(cluster.chance.uniform(0, 0.08))
                await cluster.kill_bookie("bookie-0", kind)
            else:
                await scenario.die_in_operation(number, kind)
            await cluster.start_bookie("bookie-0")
            assert cluster.is_up("bookie-0")
            await scenario.check()

    for number in range(first + 1, first + 21):
        try:
            run_simulated(main, number, time_limit_s=300)
        except Exception as error:
            raise AssertionError(f"crash in operation {number}, {kind.value}") from error


def test_a_mark_that_was_renamed_but_not_synced_is_not_relied_on() -> None:
    """Journal files are removed because the mark has passed them: it must not move backwards."""
    seen: list[tuple[str, str]] = []

    def is_mark_unsynced(operation: str, path: str) -> bool:
        seen.append((operation, path))
        return seen[-2:] == [("rename", "/ledgers/lastmark.tmp"), ("sync", "/ledgers")]

    def is_journal_synced(operation: str, path: str) -> bool:
        seen.append((operation, path))
        return seen[-2] == ("sync", "/journal") and ("rename", "/ledgers/lastmark.tmp") not in seen

    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=1, config=_busy_config) as cluster:
            scenario = _Scenario(cluster)
            await scenario.write(cluster.chance.uniform(0.2, 0.5))
            await scenario.die_when(is_mark_unsynced, CrashKind.PROCESS_KILLED, is_writing=False)
            await cluster.start_bookie("bookie-0")
            seen[:] = [("", "")]
            await scenario.die_when(is_journal_synced, CrashKind.POWER_LOST_ALL)
            await cluster.start_bookie("bookie-0")
            assert cluster.is_up("bookie-0")
            await scenario.check()

    for seed in range(scaled(ci=3, night=40)):
        seen.clear()
        run_simulated(main, seed, time_limit_s=300)
