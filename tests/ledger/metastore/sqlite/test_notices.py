"""An idle store looks at its file only when another process changed it, or has ended."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from ledger.metastore.base import Node
from ledger.metastore.sqlite import notices, store, watches
from ledger.metastore.sqlite.liveness import identity_of
from ledger.metastore.sqlite.notices import Notices, announce
from ledger.metastore.sqlite.snapshot import Watched, WatchKey
from ledger.metastore.sqlite.store import SqliteStore, open_sqlite
from ledger.metastore.sqlite.tree import SqliteTree
from ledger.metastore.sqlite.watches import POLL_INTERVAL_S
from tests.conftest import skip_here

PATIENCE_S = 20
INSTANCES = 8
"""More than a test needs."""


@pytest.fixture(autouse=True)
def inotify_instances() -> None:
    """All processes of a user share a limit (128); where it is used up, stores poll."""
    libc = ctypes.CDLL(None, use_errno=True)
    opened = [libc.inotify_init1(os.O_CLOEXEC) for _ in range(INSTANCES)]
    code = ctypes.get_errno()
    for fd in opened:
        if fd >= 0:
            os.close(fd)
    if opened[-1] < 0 and code == errno.EMFILE:
        skip_here("inotify instances are used up: raise fs.inotify.max_user_instances")


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


def reports(watching: Notices) -> tuple[bool, bool]:
    """Whether changes and ends of a process are reported."""
    watching.watch_processes([os.getpid()], is_never_gone)
    return watching.reports_changes, watching.reports_ends


def has_news(watching: Notices) -> bool:
    assert watching._epoll is not None
    return bool(watching._epoll.poll(0))


def descriptors() -> int:
    """Returns how many descriptors of the kinds that notices have are open in this process."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # one of another kind, which was closed just now
            target = os.readlink(f"/proc/self/fd/{fd}")
            found += any(kind in target for kind in ("inotify", "eventpoll", "pidfd"))
    return found


def is_never_gone(_pid: int) -> bool:
    return False


async def test_a_touched_file_and_the_end_of_a_process_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1")
    async with child() as process:
        watching = Notices(str(file))
        assert not watching.reports_ends, "no process was named yet"
        assert reports(watching) == (True, True)
        assert not watching.watch_processes([process.pid], is_never_gone)
        file.write_bytes(b"2")
        assert not has_news(watching), "a change that is not announced is a heartbeat"
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


async def test_a_change_is_announced_and_a_heartbeat_is_not(tmp_path: Path) -> None:
    async with open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as store:
        await store.create("/a", b"0")
        watching = Notices(f"{tmp_path}/db")
        for _ in range(20):
            assert store._file.beat(store._session)
        assert not has_news(watching)
        await store.put("/a", b"1")
        assert has_news(watching)
        watching.close()


async def test_heartbeats_of_others_cost_nothing_and_a_change_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as here,
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as there,
    ):
        looks, refreshes = count_looks(here, monkeypatch), Refreshes(here, monkeypatch)
        async with aclosing(here.watch("/a")) as nodes:
            assert await next_of(nodes) is None
            await there.create("/a", b"0")
            assert await next_of(nodes) == b"0"
            for number in range(1, 6):
                with trio.fail_after(PATIENCE_S):  # it is never over if it polls
                    await refreshes.wait_over()
                before = len(looks)
                for _ in range(20):
                    assert there._file.beat(there._session)
                await trio.sleep(2 * POLL_INTERVAL_S)
                assert len(looks) == before, "it polls, or heartbeats are reported"
                await there.put("/a", b"%d" % number)
                assert await next_of(nodes) == b"%d" % number
                assert len(looks) <= before + 3


async def test_a_burst_of_changes_is_read_as_often_as_polls_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read is one of all watches, in each process of the cluster."""
    async with (
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as here,
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as there,
        aclosing(here.watch("/a")) as nodes,
    ):
        assert await next_of(nodes) is None
        await there.create("/a", b"0")
        assert await next_of(nodes) == b"0"
        reads: list[int] = []
        snapshot = here._file.snapshot

        def counting(
            known: Mapping[WatchKey, Watched | None], known_sequence: int
        ) -> tuple[int, dict[WatchKey, Watched] | None]:
            reads.append(known_sequence)
            return snapshot(known, known_sequence)

        monkeypatch.setattr(here._file, "snapshot", counting)
        began_s = trio.current_time()
        for number in range(100):
            await there.put("/a", b"%d" % number)
        with trio.fail_after(PATIENCE_S):
            while await next_of(nodes) != b"99":
                pass
        assert len(reads) <= 2 + (trio.current_time() - began_s) / POLL_INTERVAL_S


def count_looks(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows with each look at the commit counter."""
    looks: list[int] = []
    counter = store._file.commit_counter

    def counting() -> int:
        looks.append(counter())
        return looks[-1]

    monkeypatch.setattr(store._file, "commit_counter", counting)
    return looks


class Refreshes:
    """The reads of all watches of a store, which a thread does."""

    def __init__(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._under_way = 0
        refresh = store.watches._refresh

        async def noted(known_sequence: int) -> int:
            self._under_way += 1
            try:
                return await refresh(known_sequence)
            finally:
                self._under_way -= 1

        monkeypatch.setattr(store.watches, "_refresh", noted)

    async def wait_over(self) -> None:
        """Returns when none is in progress, and no look is due: one follows a notice within
        `POLL_INTERVAL_S`, and until then its task has a deadline."""
        await trio.testing.wait_all_tasks_blocked(2 * POLL_INTERVAL_S)
        while self._under_way:
            await trio.testing.wait_all_tasks_blocked(2 * POLL_INTERVAL_S)


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


def none_left(*_: object) -> int:
    raise OSError(errno.EMFILE, "too many open files")


class FullEpoll:
    """An epoll that takes `room` descriptors."""

    def __init__(self, room: int) -> None:
        self._epoll = select.epoll()
        self._room = room

    def register(self, fd: int, mask: int) -> None:
        self._room -= 1
        if self._room < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._epoll.register(fd, mask)

    def unregister(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def closed(self) -> bool:
        return self._epoll.closed

    def close(self) -> None:
        self._epoll.close()


def select_with(epoll: Callable[[], object]) -> SimpleNamespace:
    """The module, with another epoll for notices alone: trio has one of its own."""
    return SimpleNamespace(epoll=epoll, EPOLLIN=select.EPOLLIN)


async def test_without_descriptors_of_processes_it_polls_for_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Notices(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", none_left)
        assert reports(watching) == (True, False)
    assert reports(watching) == (True, True)
    watching.close()


@pytest.mark.parametrize(("room", "found"), [(0, (False, False)), (1, (True, False))])
async def test_an_epoll_that_takes_no_more_descriptors_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, found: tuple[bool, bool]
) -> None:
    before = descriptors()
    full = FullEpoll(room)
    monkeypatch.setattr(notices, "select", select_with(lambda: full))
    watching = Notices(str(tmp_path))
    assert reports(watching) == found
    watching.close()
    full.close()
    assert descriptors() == before


async def test_without_a_descriptor_for_notices_it_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "select", select_with(none_left))
    async with (
        open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as here,
        open_sqlite(f"{tmp_path}/db") as there,
        aclosing(here.watch("/a")) as nodes,
    ):
        assert await next_of(nodes) is None
        await there.create("/a", b"0")
        assert await next_of(nodes) == b"0"


async def test_silent_sessions_are_looked_for_while_there_is_one_in_another_pid_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of containers that share a file no system reports the end."""
    monkeypatch.setattr(watches, "EXPIRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(store, "EXPIRY_INTERVAL_S", 0.01)
    async with open_sqlite(f"{tmp_path}/db", session_timeout_ms=3_600_000) as here:
        expire_dead = here._file.expire_dead
        looked_often = trio.Event()
        looks: list[int] = []

        def counting() -> int:
            looks.append(1)
            if len(looks) == 5:
                trio.from_thread.run_sync(looked_often.set)
            return expire_dead()

        async with aclosing(here.watch("/a")) as nodes:
            assert await next_of(nodes) is None
            await here.create("/a", b"0")
            assert await next_of(nodes) == b"0"
            assert here.watches._hears_of_ends
            monkeypatch.setattr(here._file, "expire_dead", counting)
            container = SqliteTree(
                f"{tmp_path}/db",
                session_timeout_ms=3_600_000,
                now_ms=lambda: 0,
                shared_clock_ms=lambda: time.monotonic_ns() // 1_000_000,
                identity=replace(identity_of(os.getpid()), pid_space="pid:[1]"),
            )
            container.begin_session()
            with trio.fail_after(PATIENCE_S):
                await looked_often.wait()
            container.close()


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
        assert here.watches._poll_interval_s(trio.current_time()) == math.inf, "it polls"
