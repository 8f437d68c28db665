"""The watches of one `SqliteStore`: turns changes, of other processes too, into new values.

While the system reports changes and ends of other processes (`notices.py`), it looks at the file
only then; otherwise it polls shared memory, or asks for dead sessions. Must never miss a change for
good: the thread that writes heartbeats looks as well.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

import trio

from ledger.errors import MetadataUnavailable
from ledger.metastore.paths import check_path
from ledger.metastore.sqlite.batching import CallBatcher
from ledger.metastore.sqlite.notices import Notices
from ledger.metastore.sqlite.snapshot import Watched, WatchKey, WatchValue
from ledger.metastore.sqlite.tree import Others, SqliteTree

POLL_INTERVAL_S = 0.02
"""How late a change of another process is noticed where the system reports none, and how often at
most it is looked for. A poll reads shared memory only."""

IDLE_AFTER_S = 10.0
IDLE_POLL_INTERVAL_S = 0.05
"""The same after a while without changes: waking an idle process has a cost."""

BURST_PAUSE_S = 0.1
"""Reported changes of other processes are of one burst if they follow each other within this time:
each look at one reads all that is watched, in each process."""

EXPIRY_INTERVAL_S = 0.25
"""How often a store looks for sessions of dead processes, while it lists, or watches and there are
some whose end the system does not report."""


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


class SqliteWatches:
    """All watches of a store. `run` and `run_notices` are tasks of the store.

    Args:
        reads: visits the thread that reads.
        expire_if_due: looks for dead sessions, now and then.
        wants_expiry: has them looked for soon.
    """

    def __init__(
        self,
        file: SqliteTree,
        reads: CallBatcher,
        *,
        expire_if_due: Callable[[], Awaitable[object]],
        wants_expiry: Callable[[], None],
    ) -> None:
        self._file = file
        self._reads = reads
        self._expire_if_due = expire_if_due
        self._wants_expiry = wants_expiry
        self._watches: dict[_Watch, None] = {}
        self._is_watched = trio.Event()
        """Set while there are watches."""
        self._has_changed = trio.Event()
        self._notices = Notices(file.path)
        self._are_all_observable = False
        self._sequence = -1
        """The change sequence at which the watches were read last."""
        self._is_closed = False

    def changed(self) -> None:
        """Has the watches read again: a change was committed."""
        self._has_changed.set()

    def saw(self, sequence: int) -> None:
        """Records that the file is at this change sequence."""
        if sequence != self._sequence:
            self._has_changed.set()

    def close(self) -> None:
        """Ends all watches: their iterators raise MetadataUnavailable."""
        self._is_closed = True
        for watch in self._watches:
            watch.changed.set()

    async def run_notices(self) -> None:
        """Passes on what the system reports of other processes, while anything is watched. A change
        after a pause is looked at without delay; those that follow it closely, together."""
        looked_at = -math.inf
        try:
            while True:
                await self._is_watched.wait()
                if await self._notices.wait():
                    self._wants_expiry()
                if trio.current_time() - looked_at < BURST_PAUSE_S:
                    await trio.sleep(POLL_INTERVAL_S)
                self._has_changed.set()
                looked_at = trio.current_time()
        finally:
            self._notices.close()

    async def run(self) -> None:
        """Notices changes while there are watches, and hands them to the iterators."""
        known_commit = -1
        changed_at = trio.current_time()
        while True:
            if not self._watches:
                await self._is_watched.wait()
                known_commit = -1  # other processes may have come meanwhile
            if known_commit != -1:
                with trio.move_on_after(self._poll_interval_s(changed_at)):
                    await self._has_changed.wait()
            self._has_changed = trio.Event()
            try:
                if not self._hears_of_ends:
                    await self._expire_if_due()
                commit = self._file.commit_counter()
                if commit != known_commit:
                    sequence = await self._refresh(self._sequence)
                    if sequence != self._sequence:  # otherwise it was a heartbeat
                        changed_at = trio.current_time()
                    self._sequence, known_commit = sequence, commit
            except MetadataUnavailable:
                known_commit = -1
                await trio.sleep(IDLE_POLL_INTERVAL_S)

    @property
    def _hears_of_ends(self) -> bool:
        """Whether the system reports the end of each process that has a session."""
        return self._notices.reports_ends and self._are_all_observable

    def _poll_interval_s(self, changed_at: float) -> float:
        if self._notices.reports_changes:
            return math.inf if self._hears_of_ends else EXPIRY_INTERVAL_S
        is_idle = trio.current_time() - changed_at > IDLE_AFTER_S
        return IDLE_POLL_INTERVAL_S if is_idle else POLL_INTERVAL_S

    async def _refresh(self, known_sequence: int) -> int:
        watches = list(self._watches)
        known: dict[WatchKey, Watched | None] = {}
        for watch in watches:
            known[watch.key] = watch.latest if watch.sequence >= 0 else known.get(watch.key)

        def look() -> tuple[int, dict[WatchKey, Watched] | None, Others]:
            others = self._file.other_processes()
            return *self._file.snapshot(known, known_sequence), others

        sequence, values, (others, self._are_all_observable) = await self._reads.do(look)
        if self._notices.watch_processes(others, lambda pid: self._file.is_gone(others[pid])):
            self._wants_expiry()
        if values is not None:
            for watch in watches:
                watch.offer(sequence, values[watch.key])
        return sequence

    async def watch(self, path: str, is_children: bool) -> AsyncGenerator[WatchValue, None]:
        """Yields the value of a node, or the names of its children, now and after changes. Raises
        MetadataUnavailable after `close`."""
        watch = _Watch((check_path(path), is_children))
        self._watches[watch] = None
        self._is_watched.set()
        try:
            first = {watch.key: None}
            sequence, values = await self._reads.do(partial(self._file.snapshot, first, -1))
            assert values is not None, "no sequence is -1"
            watch.offer(sequence, values[watch.key])
            while True:
                if self._is_closed:
                    raise closed()
                if watch.is_fresh:
                    watch.is_fresh = False
                    yield watch.latest.value
                else:
                    watch.changed = trio.Event()
                    await watch.changed.wait()
        finally:
            del self._watches[watch]
            if not self._watches:
                self._is_watched = trio.Event()


def closed() -> MetadataUnavailable:
    """Returns the error of a store that was closed."""
    return MetadataUnavailable("this metadata store is closed")
