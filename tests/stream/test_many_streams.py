"""The cost of a client does not grow with idle streams, and a roll needs few metadata calls."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import trio
import trio.testing

from benchmarks.streams import CountedStore, for_each, open_writers, roll_all
from bookie.storage.journal.files import JournalFiles
from bookie.storage.journal.journal import Journal
from ledger.client import LedgerClient
from ledger.metastore.memory import MemoryStore
from ledger.runtime.network import TcpNetwork
from stream import Namespace
from tests.real_cluster import SMALL, now_ms, real_cluster

ROLL_CALLS_MAX = 15  # ten, and some for the ledger that is prepared for the next roll
TAKEOVER_CALLS_MAX = 12
LAST_TASKS = [
    f"{function.__module__}.{function.__qualname__}"
    for function in (Journal._acknowledge, JournalFiles.prepare_spares)
]


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def task_names() -> Counter[str]:
    """Returns the names of all tasks, to see which are new."""
    names: Counter[str] = Counter()
    waiting = [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        assert task is not None
        names[task.name] += 1
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return names


async def bookies_run(count: int) -> None:
    """Reports whether all tasks of the bookies run.

    A bookie is registered before its last task begins.
    """
    with trio.fail_after(60):
        while any(task_names()[name] < count for name in LAST_TASKS):
            await trio.testing.wait_all_tasks_blocked(0.01)


async def test_idle_streams_need_no_task_or_watch_and_rolls_need_few_calls(tmp_path: Path) -> None:
    async with (
        real_cluster(tmp_path, **SMALL) as cluster,
        MemoryStore(cluster.tree, now_ms) as plain,
        LedgerClient(
            store := CountedStore(plain), TcpNetwork(), rng=random.Random(1), now_ms=now_ms
        ) as client,
    ):
        namespace = Namespace(client, "demo")
        await namespace.ensure()
        names = [f"s{number:03d}" for number in range(300)]
        await bookies_run(len(cluster.bookies))
        before, names_before = tasks(), task_names()
        await for_each(names, namespace.create_stream)
        with trio.move_on_after(10):  # a bookie may be running a task of its own
            while tasks() > before:
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert tasks() <= before, task_names() - names_before
        assert store.watches == 0
        asked = store.calls.copy()
        assert await namespace.list_streams() == names
        assert sum((store.calls - asked).values()) <= 4, "a listing reads each stream"

        written = names[::15]
        asked = store.calls.copy()
        async with open_writers(namespace, written) as (writers, _):
            assert sum(store.per(len(written), asked).values()) <= TAKEOVER_CALLS_MAX
            assert store.watches <= 3, "each writer has a watch of its own"
            assert tasks() - before <= 4 * len(written) + 20
            asked = store.calls.copy()
            rolls = await roll_all(list(writers.values()), bytes(100), namespace)
            assert sum(store.per(rolls, asked).values()) <= ROLL_CALLS_MAX
        assert store.watches == 0
        assert tasks() <= before + 30  # connections to bookies stay
