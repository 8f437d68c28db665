"""An idle store looks at its file only when another process changed it, or has ended."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from ledger.metastore.base import Node
from ledger.metastore.sqlite import notices
from ledger.metastore.sqlite.notices import Notices, announce
from ledger.metastore.sqlite.store import SqliteStore, open_sqlite

PATIENCE_S = 20


@asynccontextmanager
async def child() -> AsyncIterator[trio.Process]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            assert process.stdin is not None
            await process.stdin.aclose()


def complete(watching: Notices) -> tuple[bool, bool]:
    """Whether nothing has to be polled, before and after processes are named."""
    before = watching.is_complete
    watching.watch_processes([os.getpid()], is_never_gone)
    return before, watching.is_complete


def is_never_gone(_pid: int) -> bool:
    return False


async def test_a_touched_file_and_the_end_of_a_process_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1")
    async with child() as process:
        watching = Notices(str(file))
        assert complete(watching) == (False, True), "no process was named before"
        assert not watching.watch_processes([process.pid], is_never_gone)
        file.write_bytes(b"2")  # not announced: a heartbeat
        with trio.fail_after(PATIENCE_S):
            announce(str(file))
            assert await watching.wait() is False
            process.kill()  # nobody has waited for it yet, so that it is a zombie
            assert await watching.wait() is True
        watching.close()


async def test_a_process_that_has_ended_before_is_reported_at_once(tmp_path: Path) -> None:
    async with child() as process:
        watching = Notices(str(tmp_path))
        process.kill()
        await process.wait()
        assert watching.watch_processes([process.pid], is_never_gone)
        watching.close()
    async with child() as other:
        watching = Notices(str(tmp_path))
        assert watching.watch_processes([other.pid], lambda _: True), "it is another by now"
        watching.close()


async def next_of(nodes: AsyncIterator[Node | None]) -> bytes | None:
    with trio.fail_after(PATIENCE_S):
        node = await anext(nodes)
    return None if node is None else node.data


async def test_heartbeats_of_others_cost_nothing_and_a_change_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as here,
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as there,
    ):
        looks = count_looks(here, monkeypatch)
        async with aclosing(here.watch("/a")) as nodes:
            assert await next_of(nodes) is None
            await there.create("/a", b"0")
            assert await next_of(nodes) == b"0"
            for number in range(1, 21):
                before = len(looks)
                for _ in range(20):
                    assert there._file.beat(there._session)
                await trio.testing.wait_all_tasks_blocked(0.001)
                assert len(looks) == before, "it polls"
                await there.put("/a", b"%d" % number)
                assert await next_of(nodes) == b"%d" % number
                assert len(looks) <= before + 3


def count_looks(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows with each look at the commit counter."""
    looks: list[int] = []
    counter = store._file.commit_counter

    def counting() -> int:
        looks.append(counter())
        return looks[-1]

    monkeypatch.setattr(store._file, "commit_counter", counting)
    return looks


async def test_without_notices_of_the_system_it_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_watched", lambda _: -1)
    async with (
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as here,
        open_sqlite(f"{tmp_path}/db") as there,
        aclosing(here.watch("/a")) as nodes,
    ):
        assert await next_of(nodes) is None
        await there.create("/a", b"0")
        assert await next_of(nodes) == b"0"


async def test_without_descriptors_of_processes_it_polls_for_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    watching = Notices(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", none_left)
        assert complete(watching) == (False, False)
    assert complete(watching) == (False, True)
    watching.close()


async def test_a_change_that_nothing_announced_is_seen_with_the_next_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an older version, or of a process that was killed right after its commit."""
    monkeypatch.setattr("ledger.metastore.sqlite.tree.announce", lambda _: None)
    async with (
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=400) as here,
        open_sqlite(f"{tmp_path}/db") as there,
        aclosing(here.watch("/a")) as nodes,
    ):
        assert await next_of(nodes) is None
        await there.create("/a", b"0")
        assert await next_of(nodes) == b"0"
