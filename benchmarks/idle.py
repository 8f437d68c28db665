"""`idle`: what the servers of a system cost while nothing happens: CPU, wake-ups and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from benchmarks.cluster import measured
from benchmarks.report import Measured
from benchmarks.settings import Settings
from benchmarks.systems.system import Running

_SECONDS: Final = 30.0
_SETTLE_S: Final = 5.0


async def idle(
    settings: Settings, servers: Running, report: Callable[[Settings, Measured], None]
) -> None:
    seconds = _SECONDS if settings.seconds is None else settings.seconds
    await trio.sleep(min(_SETTLE_S, seconds))
    before = wakeups(servers.server_pids)
    with measured(servers.server_pids, []) as phase:
        await trio.sleep(seconds)
    more = {
        "cpu_share": round(phase.bookies_cpu_s / phase.wall_s, 5),
        "wakeups_per_s": round(woken(before, wakeups(servers.server_pids)) / phase.wall_s, 1),
        "memory_mib": round(memory_bytes(servers.server_pids) / 2**20, 1),
        "processes": len(servers.server_pids),
    }
    report(settings, Measured(0, 0, phase, more=more))


def wakeups(pids: Sequence[int]) -> dict[Path, int]:
    """Returns how often each thread of processes has waited for something and continued."""
    found = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/status"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
                found[path] = _number(path, "voluntary_ctxt_switches:")
    return found


def woken(before: Mapping[Path, int], after: Mapping[Path, int]) -> int:
    """Returns how often they woke up since; a thread that ended takes its last ones with it."""
    return sum(count - before.get(thread, 0) for thread, count in after.items())


def memory_bytes(pids: Sequence[int]) -> int:
    """Returns the memory of processes; what several of them share counts once (PSS)."""
    return sum(_number(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") for pid in pids) << 10


def _number(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise AssertionError(f"{path} has no {name}")
