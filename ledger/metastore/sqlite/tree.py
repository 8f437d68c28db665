"""The metadata tree in one SQLite file: the blocking half of `store.py`.

It is called from one thread at a time for reading, one for heartbeats, and one for the rest.
Committed changes survive a power failure (WAL with synchronous=FULL), except for what ends with a
session: all sessions do, in a power failure. Sessions are rows with a heartbeat by the machine's
monotonic clock, which all processes share. Any process may expire a dead session (`liveness.py`),
in the transaction that removes its nodes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
    SessionLost,
)
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, Delete, Node, Put
from ledger.metastore.paths import (
    ancestors_of,
    check_node,
    counter_of,
    name_of,
    numbered,
    parent_of,
)
from ledger.metastore.sqlite.connection import (
    BUSY_TIMEOUT_S,
    check_content,
    check_place,
    connect,
    connect_untouched,
    mapped,
    place_of,
    prepare,
)
from ledger.metastore.sqlite.liveness import HeartbeatMonitor, ProcessIdentity, is_gone
from ledger.metastore.sqlite.notices import announce
from ledger.metastore.sqlite.snapshot import (
    Watched,
    WatchKey,
    check_bound,
    read_node,
    snapshot,
    transaction,
)

T = TypeVar("T")


class Ephemeral(partial[T]):
    """Work for `commit_together` that makes nothing but nodes of a session."""


class Seen(NamedTuple):
    """What the thread that writes heartbeats saw."""

    sequence: int
    """The change sequence."""
    has_dead: bool
    """Sessions of others are dead or silent."""


class Others(NamedTuple):
    """The processes that have sessions, except for this one."""

    observable: dict[int, ProcessIdentity]
    """Those whose end this process can observe, by their pids."""
    are_all_observable: bool


class SqliteTree:
    """One open file, with four connections: one for changes, one for reads, which thus wait for no
    disk, one for heartbeats, and one that only notices commits of other processes."""

    def __init__(
        self,
        path: str,
        *,
        session_timeout_ms: int,
        now_ms: Callable[[], int],
        shared_clock_ms: Callable[[], int],
        identity: ProcessIdentity,
        uri: str = "",
        may_create: bool = True,
    ) -> None:
        """Opens `path`, and creates it if it is missing and `may_create`. `shared_clock_ms` is
        equal in all processes of one boot and cannot be set; `identity` is this process; `uri` is
        the address that errors name.

        Raises NoSuchCluster, InvalidArgument, MetadataCorrupt, and MetadataUnavailable, after which
        a retry makes sense: SQLite does not wait for another process that creates the file at this
        moment.
        """
        self.path = os.path.abspath(path)  # the current directory may change
        self._session_timeout_ms = session_timeout_ms
        self._now_ms = now_ms
        self._shared_clock_ms = shared_clock_ms
        self._identity = identity
        self._own_session = -1
        self._bound: tuple[str, bytes] | None = None
        self._beats = HeartbeatMonitor(session_timeout_ms)
        self._is_synced = True  # a transaction of `_db`: `prepare` leaves it so
        uri = uri or f"sqlite://{path}"
        is_known = check_place(path, uri, may_create=may_create)
        with self._errors():
            if not is_known:
                with (
                    closing(connect_untouched(path, BUSY_TIMEOUT_S)) as untouched,
                    transaction(untouched, "BEGIN"),  # a process may be creating it at this moment
                ):
                    check_content(untouched, self.path, uri, may_create=may_create)
            self._db = connect(path, BUSY_TIMEOUT_S, may_create=may_create)
            try:
                prepare(self._db, self.path, uri, may_create=may_create)
                self._place = place_of(self.path)
                self._reader = connect(path, BUSY_TIMEOUT_S)
                self._pulse = connect(path, BUSY_TIMEOUT_S)
                # A heartbeat need not survive a power failure, so it is not synced.
                self._pulse.execute("PRAGMA synchronous = NORMAL")
                self._notice = connect(path, 0)
                self.check_in_place()  # otherwise the connections may be to different files
            except BaseException:
                self._db.close()
                raise

    def check_in_place(self) -> None:
        """Raises MetadataUnavailable unless the file that is open is the one at its path: the
        changes of this process would be lost in a file that no other process sees."""
        place = place_of(self.path)
        if place != self._place:
            fate = "deleted or moved" if place is None else "replaced by another file"
            raise MetadataUnavailable(
                f"{self.path} was {fate} while this process had it open. Cure: move it back; if it "
                "was replaced on purpose, restart this process"
            )

    def close(self) -> None:
        self._db.close()
        self._reader.close()
        self._pulse.close()
        self._notice.close()

    def bind(self, path: str, data: bytes) -> None:
        self._bound = (path, data)

    # Reading.

    def read_together(self, works: Sequence[Callable[[], object]]) -> list[object]:
        """Does these reads; returns the result of each, or the exception it raised."""
        self.check_in_place()
        outcomes: list[object] = []
        for work in works:
            try:
                outcomes.append(work())
            except Exception as error:  # noqa: BLE001 - one caller's error must not affect others
                outcomes.append(error)
        return outcomes

    # Works for `read_together`.

    def get(self, path: str) -> Node:
        with self._errors():
            node = read_node(self._reader, path)
            if node is None:
                check_bound(self._reader, self._bound)
        if node is None:
            raise NoSuchNode(f"no metadata node {path}")
        return node

    def children(self, path: str) -> list[str]:
        with self._errors():
            rows = self._reader.execute("SELECT path FROM nodes WHERE parent = ?", (path,))
            names = sorted(name_of(child) for (child,) in rows)
            if not names:
                check_bound(self._reader, self._bound)
            return names

    def commit_counter(self) -> int:
        """Returns a number that changes when another connection commits. It never waits."""
        with self._errors():
            row = self._notice.execute("PRAGMA data_version").fetchone()
        return int(row[0])

    def snapshot(
        self, known: Mapping[WatchKey, Watched | None], known_sequence: int
    ) -> tuple[int, dict[WatchKey, Watched] | None]:
        """Returns the change sequence, and the values of these keys at it; None for the values if
        it is `known_sequence`.

        `known` are the last values: those that have not changed are not read again.
        """
        with self._errors(), transaction(self._reader, "BEGIN"):
            sequence, values = snapshot(self._reader, known, known_sequence)
            if values is not None and not all(watched.value for watched in values.values()):
                check_bound(self._reader, self._bound)
            return sequence, values

    def other_processes(self) -> Others:
        """Returns the processes with sessions. Those in other pid namespaces, and those that do not
        know themselves, end by silence as far as this process can see."""
        own = self._identity
        observable: dict[int, ProcessIdentity] = {}
        are_all = True
        with self._errors():
            rows = self._reader.execute(
                "SELECT boot_id, pid_space, pid, start_ticks FROM sessions"
            ).fetchall()
        for row in rows:
            other = ProcessIdentity(*row)
            if other == own:
                continue
            if (
                own.boot_id
                and own.pid_space
                and other.start_ticks
                and (other.boot_id == own.boot_id and other.pid_space == own.pid_space)
            ):
                observable[other.pid] = other
            else:
                are_all = False
        return Others(observable, are_all)

    def is_gone(self, other: ProcessIdentity) -> bool:
        """Returns whether a process has certainly ended."""
        return is_gone(other, self._identity)

    # Changing.

    def commit_together(self, works: Sequence[Callable[[], object]]) -> list[object]:
        """Does all works in one transaction, which is synced once, unless all are `Ephemeral`: the
        next one that is synced includes it. Returns the result of each.

        A work that raises is undone alone, and its result is the exception; but an error of SQLite
        is raised and undoes them all.
        """
        outcomes: list[object] = []
        self.check_in_place()
        is_synced = not all(isinstance(work, Ephemeral) for work in works)
        with self._errors(), self._changes(is_synced=is_synced):
            for work in works:
                self._db.execute("SAVEPOINT work")
                try:
                    outcomes.append(work())
                except sqlite3.Error:
                    raise
                except Exception as error:  # noqa: BLE001 - one caller's error, see above
                    self._db.execute("ROLLBACK TO work")
                    outcomes.append(error)
                self._db.execute("RELEASE work")
        announce(self.path)
        return outcomes

    def _changes(self, *, is_synced: bool) -> AbstractContextManager[None]:
        if is_synced != self._is_synced:  # SQLite accepts that only between transactions
            self._db.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            self._is_synced = is_synced
        return transaction(self._db, "BEGIN IMMEDIATE")

    # Works for `commit_together`.

    def apply(self, changes: Sequence[Change], session: int) -> list[int]:
        """Applies all changes or none. Returns each node's version after its change.

        Raises SessionLost for an ephemeral node if another process ended `session`.
        """
        versions = [self._apply_one(change, session) for change in changes]
        self._count_change()
        return versions

    def take_id(self, path: str, beyond: int = -1) -> int:
        check_bound(self._db, self._bound)
        (following,) = self._db.execute(
            "INSERT INTO counters VALUES(?1, ?2 + 2)"
            " ON CONFLICT(path) DO UPDATE SET next = max(next, ?2 + 1) + 1 RETURNING next",
            (path, beyond),
        ).fetchone()
        return int(following) - 1

    def create_numbered(self, prefix: str, data: bytes, session: int) -> str:
        """Creates the next numbered node. Raises as `apply` does; then no number is taken."""
        path = numbered(prefix, self.take_id(counter_of(prefix)))
        self.apply([Create(path, data, is_ephemeral=True)], session)
        return path

    def _apply_one(self, change: Change, session: int) -> int:
        path = change.path
        if isinstance(change, Create):
            self._create(change, session)
            return 0
        version = self._expect(path, change.version)
        if isinstance(change, Put):
            check_node(path, len(change.data))
            self._db.execute(
                "UPDATE nodes SET data = ?, version = version + 1 WHERE path = ?",
                (bytes(change.data), path),
            )
            return version + 1
        if isinstance(change, Delete):
            check_node(path, 0)
            (children,) = self._db.execute(
                "SELECT count(*) FROM nodes WHERE parent = ?", (path,)
            ).fetchone()
            if children:
                raise InvalidArgument(f"{path} has {children} children: not deleted")
            self._db.execute("DELETE FROM nodes WHERE path = ?", (path,))
            return version
        assert isinstance(change, Check), f"unknown change {change!r}"
        return version

    def _create(self, change: Create, session: int) -> None:
        check_node(change.path, len(change.data))
        if read_node(self._db, change.path) is not None:
            raise NodeExists(f"metadata node {change.path} already exists")
        if change.is_ephemeral and not self._has_session(session):
            raise SessionLost(f"metadata session {session} of this process has ended")
        for missing in ancestors_of(change.path):
            row = self._db.execute("SELECT owner FROM nodes WHERE path = ?", (missing,)).fetchone()
            if row is None:
                check_bound(self._db, self._bound)
                self._insert(missing, b"", None)
            elif row[0] is not None:
                raise InvalidArgument(f"{missing} is ephemeral and cannot have children")
        self._insert(change.path, bytes(change.data), session if change.is_ephemeral else None)

    def _insert(self, path: str, data: bytes, owner: int | None) -> None:
        self._db.execute(
            "INSERT INTO nodes SELECT ?, ?, ?, 0, ?, ?, sequence + 1 FROM changes",
            (path, parent_of(path), data, self._now_ms(), owner),
        )

    def _expect(self, path: str, version: int) -> int:
        row = self._db.execute("SELECT version FROM nodes WHERE path = ?", (path,)).fetchone()
        if row is None:
            check_bound(self._db, self._bound)
            raise NoSuchNode(f"no metadata node {path}")
        if version not in (ANY_VERSION, row[0]):
            raise MetadataConflict(f"metadata node {path} has version {row[0]}, expected {version}")
        return int(row[0])

    def _count_change(self) -> None:
        self._db.execute("UPDATE changes SET sequence = sequence + 1")

    # Sessions.

    def begin_session(self) -> int:
        """Expires dead sessions (perhaps that of our predecessor) and starts one of ours."""
        self.expire_dead()
        own = self._identity
        with self._errors(), transaction(self._db, "BEGIN IMMEDIATE"):
            now_ms = self._shared_clock_ms()
            cursor = self._db.execute(
                "INSERT INTO sessions VALUES(NULL, ?, ?, ?, ?, ?, ?)",
                (
                    own.boot_id,
                    own.pid_space,
                    own.pid,
                    own.start_ticks,
                    now_ms,
                    self._session_timeout_ms,
                ),
            )
            assert cursor.lastrowid is not None, "an inserted session has an id"
            self._own_session = cursor.lastrowid
        announce(self.path)  # others watch this process from now on
        self._beats.began(now_ms)
        return self._own_session

    def beat(self, session: int) -> bool:
        """Writes a heartbeat of the session; returns False if another process has ended it."""
        self.check_in_place()
        with self._errors():
            # The time is read under the lock: the session may have expired while waiting for it.
            with transaction(self._pulse, "BEGIN IMMEDIATE"):
                now_ms = self._shared_clock_ms()
                cursor = self._pulse.execute(
                    "UPDATE sessions SET heartbeat_ms = ? WHERE id = ?", (now_ms, session)
                )
            if cursor.rowcount == 0:
                return False
            self._beats.beat(now_ms)
            return True

    def beat_until_lost(
        self,
        session: int,
        pause: Callable[[], bool],
        heard: Callable[[Seen | MetadataUnavailable], None],
    ) -> None:
        """Writes heartbeats until another process has ended the session, or `pause`, which waits
        for a while, returns True. It runs in a thread of its own, because a process whose event
        loop is busy for seconds is alive nevertheless.

        `heard` gets what was seen each time that there is news, or the error: an idle process
        looks for changes here, where it is awake anyway.
        """
        known: Seen | None = None
        while not pause():
            try:
                if not self.beat(session):
                    return
                seen = self._look()
            except MetadataUnavailable as error:
                heard(error)  # callers get this error too; here a retry is enough
                known = None
                continue
            if seen != known or seen.has_dead:
                heard(seen)
            known = seen

    def _look(self) -> Seen:
        with self._errors():
            (sequence,) = self._pulse.execute("SELECT sequence FROM changes").fetchone()
            return Seen(sequence, bool(self._dead_sessions(self._pulse)))

    def end_session(self, session: int) -> None:
        with self._errors(), transaction(self._db, "BEGIN IMMEDIATE"):
            self._expire(session)
        announce(self.path)

    def expire_dead(self) -> int:
        """Ends the sessions of dead or silent processes, never our own; returns how many."""
        self.check_in_place()
        with self._errors():
            if not self._dead_sessions(self._db):
                return 0
            with transaction(self._db, "BEGIN IMMEDIATE"):
                # Again: one may have sent a heartbeat meanwhile.
                dead = self._dead_sessions(self._db)
                for session in dead:
                    self._expire(session)
        announce(self.path)
        return len(dead)

    def _dead_sessions(self, db: sqlite3.Connection) -> list[int]:
        now_ms = self._shared_clock_ms()
        own_ms: int | None = None
        silent_since: dict[int, tuple[int, int]] = {}
        dead = []
        for session, heartbeat_ms, timeout_ms, *identity in db.execute(
            "SELECT id, heartbeat_ms, timeout_ms, boot_id, pid_space, pid, start_ticks"
            " FROM sessions"
        ):
            if session == self._own_session:
                own_ms = heartbeat_ms
            elif is_gone(ProcessIdentity(*identity), self._identity):
                dead.append(session)
            else:
                silent_since[session] = (heartbeat_ms, timeout_ms)
        return dead + self._beats.expired_sessions(silent_since, own_ms, now_ms)

    def _expire(self, session: int) -> None:
        dropped = self._db.execute("DELETE FROM nodes WHERE owner = ?", (session,)).rowcount
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session,))
        if dropped:
            self._count_change()

    def _has_session(self, session: int) -> bool:
        row = self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone()
        return row is not None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise mapped(self.path, error) from error
