"""The metadata store on one SQLite file, shared by the processes of one machine.

The trio half of `tree.py`: it moves calls to threads, many at a time (`batching.py`), and keeps the
session alive; `watches.py` turns commits of other processes into watch events. It uses threads, so
it must never be used in the simulator.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar, cast

import trio

from ledger.errors import InvalidArgument, MetadataUnavailable, NodeExists, SessionLost
from ledger.metastore.base import ANY_VERSION, Change, Create, Delete, Node, Put
from ledger.metastore.paths import TRANSACTION_CHANGES_MAX, check_node, check_path, numbered
from ledger.metastore.sqlite.batching import CallBatcher, Work
from ledger.metastore.sqlite.connection import BUSY_TIMEOUT_S
from ledger.metastore.sqlite.liveness import identity_of
from ledger.metastore.sqlite.tree import Ephemeral, Seen, SqliteTree
from ledger.metastore.sqlite.watches import EXPIRY_INTERVAL_S, SqliteWatches, closed
from ledger.runtime.background import open_background

log = logging.getLogger(__name__)

T = TypeVar("T")

SESSION_TIMEOUT_MS_MIN = 100
RENEWALS_MAX = 10
OPEN_RETRY_INTERVAL_S = 0.02


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
            nursery.start_soon(store.run_expiry)
            nursery.start_soon(store.watches.run)
            nursery.start_soon(store.watches.run_notices)
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
        self._expiry_wanted = trio.Event()
        self.watches = SqliteWatches(
            file,
            self.reads,
            expire_if_due=self._expire_if_due,
            wants_expiry=lambda: self._expiry_wanted.set(),
        )
        self._reported = ""
        self._next_expiry = 0.0
        self._is_closed = False
        self._stop_beating = threading.Event()

    def bind(self, path: str, data: bytes) -> None:
        self._file.bind(check_path(path), data)

    def commit_number(self) -> int | None:
        try:
            return None if self._is_closed else self._file.commit_counter()
        except MetadataUnavailable:
            return None

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
        # The values of a node.
        return cast("AsyncGenerator[Node | None, None]", self.watches.watch(path, False))

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        # The names of its children.
        return cast("AsyncGenerator[list[str], None]", self.watches.watch(path, True))

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
        self.watches.close()

    # Tasks, started by `open_sqlite`.

    async def run_session(self, interval_s: float) -> None:
        """Writes heartbeats, and starts a new session when another process ended ours."""
        limiter = trio.CapacityLimiter(1)
        token = trio.lowlevel.current_trio_token()

        def heard(news: Seen | MetadataUnavailable) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._heard, news)

        while not self._is_closed:
            session = self._session
            pause = partial(self._stop_beating.wait, interval_s)
            beating = partial(self._file.beat_until_lost, session, pause, heard)
            await trio.to_thread.run_sync(beating, limiter=limiter)
            try:
                if not self._is_closed:
                    await self._renew(session)
            except MetadataUnavailable:
                await trio.sleep(interval_s)

    def _heard(self, news: Seen | MetadataUnavailable) -> None:
        """Notes what the thread that writes heartbeats has seen. Logs once when the file cannot be
        used: readers that continue with open ledgers do not ask it."""
        if isinstance(news, MetadataUnavailable):
            if not self._is_closed and str(news) != self._reported:
                self._reported = str(news)
                log.warning("metadata_unavailable cause=%s", news)
            return
        self._reported = ""
        if news.has_dead:
            self._expiry_wanted.set()
        self.watches.saw(news.sequence)

    async def run_expiry(self) -> None:
        """Expires sessions of dead processes, also while nothing is listed or watched."""
        while not self._is_closed:
            await self._expiry_wanted.wait()
            self._expiry_wanted = trio.Event()
            with suppress(MetadataUnavailable):  # the next heartbeat reports it
                self._next_expiry = 0.0
                await self._expire_if_due()

    # Implementation.

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
            self.watches.changed()
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
            self.watches.changed()
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
            raise closed()
        return function(*arguments)


def wall_clock_ms() -> int:
    """Returns the wall clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
