"""A bookie that dies in a given operation of its start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bookie.testing import CrashKind, SimCluster
from tests.crash_counts import AFTERMATH_OF, crashed


async def die_in(
    cluster: SimCluster,
    name: str,
    number: int,
    kind: CrashKind,
    act: Callable[[], Awaitable[object]] | None = None,
) -> bool:
    """Starts the bookie, which dies in its operation `number`; False if it makes fewer. `act`:
    done in place of the start, by the bookie's process."""
    disk, left, is_killed = cluster.disk(name), number, False

    def look(operation: str, path: str) -> None:
        nonlocal left, is_killed
        left -= 1
        if left == 0:
            disk.on_operation = None
            is_killed = True
            crashed(path, operation, AFTERMATH_OF[kind.name])
            cluster.kill_bookie_now(name, kind)

    disk.on_operation = look
    await (act() if act is not None else cluster.begin_bookie(name).started.wait())
    disk.on_operation = None
    await cluster.kill_bookie(name, kind)
    return is_killed
