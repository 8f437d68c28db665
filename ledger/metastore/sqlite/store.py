"""The metadata store on one SQLite file, shared by the processes of one machine.

The trio half of `tree.py`: it moves calls to threads, many at a time (`batching.py`), keeps the
session alive, and turns commits of other processes into watch events. It uses threads, so it must
never be used in the simulator.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, TypeVar, overload

import trio

from ledger.errors import InvalidArgument, MetadataUnavailable, NodeExists, SessionLost
from ledger.metastore.base import ANY_VERSION, Change, Create, Delete, Node, Put
from ledger.metastore.paths import TRANSACTION_CHANGES_MAX, check_node, check_path, numbered
from ledger.metastore.sqlite.batching import CallBatcher, Work
from ledger.metastore.sqlite.connection import BUSY_TIMEOUT_S
from ledger.metastore.sqlite.liveness import identity_of
from ledger.metastore.sqlite.snapshot import Watched, WatchKey, WatchValue
from ledger.metastore.sqlite.tree import Ephemeral, SqliteTree
from ledger.runtime.background import open_background

log = logging.getLogger(__name__)

T = TypeVar("T")

SESSION_TIMEOUT_MS_MIN = 100
POLL_INTERVAL_S = 0.02
"""How late a change of another process is noticed. A poll reads shared memory only."""

IDLE_AFTER_S = 10.0
IDLE_POLL_INTERVAL_S = 0.05
"""The same after a while without changes: waking an idle process has a cost."""

EXPIRY_INTERVAL_S = 0.25
"""How often a store looks for sessions of dead processes, while it watches or lists."""

RENEWALS_MAX = 10
OPEN_RETRY_INTERVAL_S = 0.02


class _Watch:
    """The latest value for one iterator, and whether the iterator has yielded it."""

    __slots__ = ("changed", "is_fresh", "key", "latest", "sequence")

    def __init__(self, key: WatchKey) -> None:
        self.key = key
        self.sequence = -1
        self.latest = Watched(None, ())
        self.is_fresh = False
        self.changed = trio.Event()

    def offer(self, sequence: int, watched: Watched) -> None:
        """Takes a value read at `sequence`; drops one that is older than the present one."""
        if sequence < self.sequence:
            return
        if self.sequence < 0 or watched != self.latest:
            self.latest = watched
            self.is_fresh = True
            self.changed.set()
        self.sequence = sequence


@asynccontextmanager
async def open_sqlite(
    path: str,
    *,
    session_timeout_ms: int = 5000,
    uri: str = "",
    may_create: bool = True,
) -> AsyncIterator[SqliteStore]:
    """Opens a session on the file `path`; it ends with the block. With `may_create` the file is
    created if it is missing. `uri` is the address that errors name.

    If this process dies, other processes remove its ephemeral nodes as soon as they can see that it
    is gone, or after `session_timeout_ms` without a heartbeat. Raises NoSuchCluster (no file, and
    none may be created), InvalidArgument (missing directory, no permission to write),
    MetadataCorrupt (not our file), MetadataUnavailable.
    """
    if session_timeout_ms < SESSION_TIMEOUT_MS_MIN:
        raise InvalidArgument(
            f"session timeout of {session_timeout_ms} ms, {SESSION_TIMEOUT_MS_MIN} at least"
        )
    limiter = trio.CapacityLimiter(1)
    file = await _open_file(path, uri, may_create, session_timeout_ms, limiter)
    try:
        with trio.CancelScope(shield=True):
            session = await trio.to_thread.run_sync(file.begin_session, limiter=limiter)
        store = SqliteStore(file, limiter, session)
        async with open_background() as nursery:
            nursery.start_soon(store.run_session, session_timeout_ms / 4000)
            nursery.start_soon(store.run_expiry, session_timeout_ms / 4000)
            nursery.start_soon(store.run_watches)
            nursery.start_soon(store.reads.run)
            nursery.start_soon(store.commits.run)
            try:
                yield store
            finally:
                with trio.CancelScope(shield=True):
                    await store.aclose()
    finally:
        file.close()


async def _open_file(
    path: str,
    uri: str,
    may_create: bool,
    session_timeout_ms: int,
    limiter: trio.CapacityLimiter,
) -> SqliteTree:
    opening = partial(
        SqliteTree,
        path,
        session_timeout_ms=session_timeout_ms,
        now_ms=wall_clock_ms,
        shared_clock_ms=lambda: time.monotonic_ns() // 1_000_000,
        identity=identity_of(os.getpid()),
        uri=uri,
        may_create=may_create,
    )
    deadline = trio.current_time() + BUSY_TIMEOUT_S
    while True:
        try:
            return await trio.to_thread.run_sync(opening, limiter=limiter)
        except MetadataUnavailable:
            if trio.current_time() > deadline:
                raise
            await trio.sleep(OPEN_RETRY_INTERVAL_S)


class SqliteStore:
    """A `MetadataStore`; made by `open_sqlite`, which owns its tasks."""

    def __init__(self, file: SqliteTree, limiter: trio.CapacityLimiter, session: int) -> None:
        self._file = file
        self._limiter = limiter
        self._session = session
        self.reads = CallBatcher(self._visit_reader)
        self.commits = CallBatcher(partial(self._call, file.commit_together))
        self._read_limiter = trio.CapacityLimiter(1)
        self._renewal = trio.Lock()
        self._watches: dict[_Watch, None] = {}
        self._is_watched = trio.Event()
        self._has_changed = trio.Event()
        self._next_expiry = 0.0
        self._is_closed = False
        self._stop_beating = threading.Event()

    def bind(self, path: str, data: bytes) -> None:
        self._file.bind(check_path(path), data)

    async def get(self, path: str) -> Node:
        return await self.reads.do(partial(self._file.get, check_path(path)))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        await self._expire_if_due()
        return await self.reads.do(partial(self._file.children, path))

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        await self.transaction([Create(path, data, is_ephemeral)])

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        (new_version,) = await self._apply([Put(path, data, version)])
        return new_version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._apply([Delete(path, version)])

    async def transaction(self, changes: Sequence[Change]) -> None:
        if len(changes) > TRANSACTION_CHANGES_MAX:
            raise InvalidArgument(
                f"a transaction of {len(changes)} changes, {TRANSACTION_CHANGES_MAX} at most"
            )
        try:
            await self._apply(changes)
        except NodeExists:
            # The existing node may belong to a process that has just died.
            if not await self._call(self._file.expire_dead):
                raise
            await self._apply(changes)

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        return await self.commits.do(partial(self._file.take_id, check_path(path), beyond))

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        check_node(numbered(prefix, 0), len(data))
        made = bytes(data)
        return await self._in_session(
            lambda session: partial(self._file.create_numbered, prefix, made, session)
        )

    def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        return self._watch(path, False)

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        return self._watch(path, True)

    async def aclose(self) -> None:
        if self._is_closed:
            await trio.lowlevel.checkpoint()
            return
        self._is_closed = True  # from here on only the next call reaches the file
        self._stop_beating.set()
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(
                    self._file.end_session, self._session, limiter=self._limiter
                )
        except MetadataUnavailable:
            pass  # without heartbeats the session ends by itself
        self._is_watched.set()
        for watch in self._watches:
            watch.changed.set()

    # Tasks, started by `open_sqlite`.

    async def run_session(self, interval_s: float) -> None:
        """Writes heartbeats, and starts a new session when another process ended ours."""
        limiter = trio.CapacityLimiter(1)
        while not self._is_closed:
            session = self._session
            pause = partial(self._stop_beating.wait, interval_s)
            beating = partial(self._file.beat_until_lost, session, pause)
            await trio.to_thread.run_sync(beating, limiter=limiter)
            try:
                if not self._is_closed:
                    await self._renew(session)
            except MetadataUnavailable:
                await trio.sleep(interval_s)

    async def run_expiry(self, interval_s: float) -> None:
        """Expires sessions of dead processes, also while nothing is listed or watched. Logs once
        when the file cannot be used: readers that continue with open ledgers do not ask it."""
        reported = ""
        while not self._is_closed:
            await trio.sleep(interval_s)
            try:
                if await self._expire_if_due():
                    reported = ""
            except MetadataUnavailable as error:
                if not self._is_closed and str(error) != reported:
                    reported = str(error)
                    log.warning("metadata_unavailable cause=%s", error)

    async def run_watches(self) -> None:
        """Notices changes while there are watches, and hands them to the iterators."""
        known_commit = -1
        known_sequence = -1
        changed_at = trio.current_time()
        while not self._is_closed:
            if not self._watches:
                self._is_watched = trio.Event()
                await self._is_watched.wait()
                continue
            is_idle = trio.current_time() - changed_at > IDLE_AFTER_S
            with trio.move_on_after(IDLE_POLL_INTERVAL_S if is_idle else POLL_INTERVAL_S):
                await self._has_changed.wait()
            self._has_changed = trio.Event()
            try:
                await self._expire_if_due()
                commit = self._file.commit_counter()
                if commit != known_commit:
                    sequence = await self._refresh(known_sequence)
                    if sequence != known_sequence:  # otherwise it was a heartbeat
                        changed_at = trio.current_time()
                    known_sequence, known_commit = sequence, commit
            except MetadataUnavailable:
                known_commit = -1  # retry in the next round

    async def _refresh(self, known_sequence: int) -> int:
        watches = list(self._watches)
        known: dict[WatchKey, Watched | None] = {}
        for watch in watches:
            known[watch.key] = watch.latest if watch.sequence >= 0 else known.get(watch.key)
        sequence, values = await self.reads.do(partial(self._file.snapshot, known, known_sequence))
        if values is not None:
            for watch in watches:
                watch.offer(sequence, values[watch.key])
        return sequence

    # Implementation.

    @overload
    def _watch(
        self, path: str, is_children: Literal[False]
    ) -> AsyncGenerator[Node | None, None]: ...
    @overload
    def _watch(self, path: str, is_children: Literal[True]) -> AsyncGenerator[list[str], None]: ...
    async def _watch(self, path: str, is_children: bool) -> AsyncGenerator[WatchValue, None]:
        watch = _Watch((check_path(path), is_children))
        self._watches[watch] = None
        self._is_watched.set()
        try:
            first = {watch.key: None}
            sequence, values = await self.reads.do(partial(self._file.snapshot, first, -1))
            assert values is not None, "no sequence is -1"
            watch.offer(sequence, values[watch.key])
            while True:
                if self._is_closed:
                    raise _closed()
                if watch.is_fresh:
                    watch.is_fresh = False
                    yield watch.latest.value
                else:
                    watch.changed = trio.Event()
                    await watch.changed.wait()
        finally:
            del self._watches[watch]

    async def _apply(self, changes: Sequence[Change]) -> list[int]:
        for change in changes:
            check_path(change.path)
        are_ephemeral = all(isinstance(one, Create) and one.is_ephemeral for one in changes)
        kind = Ephemeral if are_ephemeral and changes else partial
        return await self._in_session(lambda session: kind(self._file.apply, changes, session))

    async def _in_session(self, work_in: Callable[[int], Callable[[], T]]) -> T:
        """Does a work in the present session; again in the next one if it was lost."""
        for _ in range(RENEWALS_MAX):
            session = self._session
            try:
                result = await self.commits.do(work_in(session))
            except SessionLost:
                await self._renew(session)
                continue
            self._has_changed.set()
            return result
        raise SessionLost(
            f"{self._file.path}: the session was lost {RENEWALS_MAX} times in a row: is this"
            " process repeatedly stopped for longer than the session timeout?"
        )

    async def _renew(self, lost: int) -> None:
        async with self._renewal:
            if self._session != lost:
                return  # another task was first
            self._session = await self._call(self._file.begin_session)

    async def _expire_if_due(self) -> bool:
        """Returns whether it was due."""
        if trio.current_time() < self._next_expiry:
            return False
        self._next_expiry = trio.current_time() + EXPIRY_INTERVAL_S
        if await self._call(self._file.expire_dead):
            self._has_changed.set()
        return True

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        # Not abandoned when cancelled: a connection is used by one call at a time.
        return await trio.to_thread.run_sync(
            self._checked, function, arguments, limiter=self._limiter
        )

    async def _visit_reader(self, works: Sequence[Work]) -> list[object]:
        return await trio.to_thread.run_sync(
            self._checked, self._file.read_together, (works,), limiter=self._read_limiter
        )

    def _checked(self, function: Callable[..., T], arguments: tuple[object, ...]) -> T:
        if self._is_closed:
            raise _closed()
        return function(*arguments)


def _closed() -> MetadataUnavailable:
    return MetadataUnavailable("this metadata store is closed")


def wall_clock_ms() -> int:
    """Returns the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
