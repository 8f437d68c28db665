"""Real processes on one file see each other's changes and deaths."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio

from ledger.metastore.base import MetadataStore
from ledger.metastore.sqlite.store import open_sqlite

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]
PATIENCE_S = 20
FOREVER_MS = 3_600_000
"""A session timeout that never expires in a test, so that only other causes end a session."""


class SessionProcess:
    """A running `session_process` and the lines that it prints."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = b""

    async def line(self) -> str:
        """Returns its next line, or "" when it has ended."""
        assert self.process.stdout is not None
        with trio.fail_after(PATIENCE_S):
            while b"\n" not in self._buffer:
                received = await self.process.stdout.receive_some()
                if not received:
                    return ""
                self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


@asynccontextmanager
async def process(file: Path, timeout_ms: int, *command: str) -> AsyncIterator[SessionProcess]:
    started = await trio.lowlevel.open_process(
        [
            sys.executable,
            "-m",
            f"{__package__}.session_process",
            str(file),
            str(timeout_ms),
            *command,
        ],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        yield SessionProcess(started)
    finally:
        if started.returncode is None:
            started.kill()
        with trio.CancelScope(shield=True):
            await started.wait()
        assert started.stdout is not None
        await started.stdout.aclose()


async def wait_for_children(store: MetadataStore, path: str, wanted: list[str]) -> None:
    with trio.fail_after(PATIENCE_S):
        async with aclosing(store.watch_children(path)) as names:
            async for present in names:
                if present == wanted:
                    return


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.db"


async def test_a_watch_sees_what_another_process_changes(file: Path) -> None:
    async with (
        open_sqlite(str(file)) as store,
        process(file, FOREVER_MS, "watch", "/a") as other,
    ):
        assert await other.line() == "none"
        await store.create("/a", b"one")
        assert await other.line() == "one"
        await store.put("/a", b"two")
        assert await other.line() == "two"
        await store.delete("/a")
        assert await other.line() == "none"
        await store.create("/a", b"done")
        assert await other.line() == "done"
        assert await other.line() == ""


async def test_the_nodes_of_a_killed_process_vanish_before_any_timeout(file: Path) -> None:
    async with (
        open_sqlite(str(file)) as store,
        process(file, FOREVER_MS, "hold", "/e/x") as other,
    ):
        assert await other.line() == "held"
        await wait_for_children(store, "/e", ["x"])
        other.process.kill()  # its parent has not waited for it yet, so it is a zombie
        await wait_for_children(store, "/e", [])


async def test_a_successor_takes_the_place_of_a_killed_process_at_once(file: Path) -> None:
    async with (
        open_sqlite(str(file)) as store,
        process(file, FOREVER_MS, "hold", "/e/x") as other,
    ):
        assert await other.line() == "held"
        other.process.kill()
        await other.process.wait()
        await store.create("/e/x", b"mine", is_ephemeral=True)
        assert (await store.get("/e/x")).data == b"mine"


async def test_a_store_opened_after_a_kill_shows_no_dead_nodes(file: Path) -> None:
    async with process(file, FOREVER_MS, "hold", "/e/x") as other:
        assert await other.line() == "held"
        other.process.kill()
        await other.process.wait()
    async with open_sqlite(str(file)) as store:
        assert await store.children("/e") == []


async def test_a_silent_process_loses_its_session_and_notices(file: Path) -> None:
    async with open_sqlite(str(file)) as store, process(file, 400, "hold", "/e/x") as other:
        assert await other.line() == "held"
        other.process.send_signal(signal.SIGSTOP)
        await wait_for_children(store, "/e", [])
        other.process.send_signal(signal.SIGCONT)
        assert await other.line() == "lost"
        assert await other.line() == "held"
        await wait_for_children(store, "/e", ["x"])


@pytest.mark.slow
async def test_a_living_process_outlasts_many_timeouts(file: Path) -> None:
    async with open_sqlite(str(file)) as store, process(file, 1000, "hold", "/e/x") as other:
        assert await other.line() == "held"
        held = await store.get("/e/x")
        await trio.sleep(3)  # three timeouts of real time, which the session must survive
        assert await store.get("/e/x") == held


async def test_counters_of_several_processes_lose_nothing(file: Path) -> None:
    # They also create the file, all at the same time.
    async with (
        process(file, FOREVER_MS, "count", "/n", "30") as one,
        process(file, FOREVER_MS, "count", "/n", "30") as two,
        process(file, FOREVER_MS, "count", "/n", "30") as three,
    ):
        for each in (one, two, three):
            assert await each.line() == "counted"
    async with open_sqlite(str(file)) as store:
        node = await store.get("/n")
        assert (node.data, node.version) == (b"90", 90)


async def test_ids_of_several_processes_are_all_different(file: Path) -> None:
    taken: list[int] = []
    async with (
        process(file, FOREVER_MS, "ids", "/x", "30") as one,
        process(file, FOREVER_MS, "ids", "/x", "30") as two,
    ):
        for each in (one, two):
            while line := await each.line():
                taken.append(int(line))
    assert sorted(taken) == list(range(60))


async def test_changes_acknowledged_by_a_killed_process_are_durable(file: Path) -> None:
    async with process(file, FOREVER_MS, "put_forever", "/a") as other:
        acknowledged = 0
        while acknowledged < 20:
            acknowledged = int(await other.line())
        other.process.kill()
        while line := await other.line():
            acknowledged = int(line)
    async with open_sqlite(str(file)) as store:
        node = await store.get("/a")
        assert int(node.data) in (acknowledged, acknowledged + 1)
        assert node.version == int(node.data)
