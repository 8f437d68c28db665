"""Replication workers: which marked ledgers each takes, and how long its copies take.

A worker does what `ledger.autorecovery.worker` does, with the same decisions, in the same order of
requests. Copies of one worker share its bandwidth equally, and so do those that one bookie
reads, and those that it writes: a copy is made when the slowest of the three has done its part.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from benchmarks.scale import costs
from benchmarks.scale.cluster import Cluster
from benchmarks.scale.costs import Cost, Meter
from benchmarks.scale.events import Events
from ledger.core.autorecovery.backlog import Backlog
from ledger.core.autorecovery.bookies import Bookies
from ledger.core.autorecovery.plan import Hold, Move, copies_left, plan, with_moved_copy
from ledger.core.autorecovery.work_sharing import (
    PATIENCE_LOOKS,
    OperationPace,
    interval_s,
    owner_of,
    some_of,
)
from ledger.core.availability import fixed_part, fragment_bounds
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.placement.topology import Candidates

_OTHERS_RETRY_S = 5.0
_QUEUED_MAX = 64
"""Ledgers that a worker has begun or queued: it takes no more from the others."""


class SharedRate:
    """Jobs that share a bandwidth equally, by virtual time."""

    def __init__(self, bytes_per_s: float, events: Events) -> None:
        self._bytes_per_s = bytes_per_s
        self._events = events
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._done = 0.0
        """Bytes that a job has got which was there from the beginning."""
        self._at_s = 0.0
        self._made = 0
        self._waits = 0

    @property
    def jobs(self) -> int:
        """The jobs that are not done."""
        return len(self._jobs)

    def add(self, nbytes: float, on_done: Callable[[], None]) -> None:
        """Begins a job."""
        self._advance()
        self._made += 1
        heapq.heappush(self._jobs, (self._done + nbytes, self._made, on_done))
        self._wait()

    def _advance(self) -> None:
        now_s = self._events.now_s
        if self._jobs:
            self._done += (now_s - self._at_s) * self._bytes_per_s / len(self._jobs)
        self._at_s = now_s

    def _wait(self) -> None:
        left = max(0.0, self._jobs[0][0] - self._done)
        seconds = left * len(self._jobs) / self._bytes_per_s
        self._waits += 1
        number = self._waits

        def end() -> None:
            if number == self._waits:  # otherwise a job was added meanwhile
                self._advance()
                _, _, on_done = heapq.heappop(self._jobs)
                if self._jobs:
                    self._wait()
                on_done()

        self._events.after(seconds, end)


@dataclass(slots=True)
class Marks:
    """The marked ledgers, with when, and those that are locked."""

    workers: int
    since_s: dict[int, float] = field(default_factory=dict)
    unlocked: dict[int, None] = field(default_factory=dict)
    owned: dict[int, dict[int, None]] = field(default_factory=dict)
    """Those that are not locked, by owner."""
    locked: dict[int, None] = field(default_factory=dict)
    folders: Counter[int] = field(default_factory=Counter)
    """Marks in each folder of the third level."""
    most: int = 0
    locked_most: int = 0

    def add(self, ledger_id: int, now_s: float) -> None:
        if ledger_id in self.since_s:
            return
        self.since_s[ledger_id] = now_s
        self._free(ledger_id)
        self.folders[ledger_id >> 16] += 1
        self.most = max(self.most, len(self.since_s))

    def _free(self, ledger_id: int) -> None:
        self.unlocked[ledger_id] = None
        self.owned.setdefault(owner_of(ledger_id, self.workers), {})[ledger_id] = None

    def old(self, before_s: float) -> Iterator[int]:
        """Yields those that nobody has locked, from the oldest on, if they were marked before."""
        for ledger_id in self.unlocked:
            if self.since_s[ledger_id] >= before_s:
                return
            yield ledger_id

    def lock(self, ledger_id: int) -> bool:
        if ledger_id in self.locked:
            return False
        if ledger_id in self.unlocked:
            del self.unlocked[ledger_id]
            del self.owned[owner_of(ledger_id, self.workers)][ledger_id]
        self.locked[ledger_id] = None
        self.locked_most = max(self.locked_most, len(self.locked))
        return True

    def unlock(self, ledger_id: int) -> None:
        del self.locked[ledger_id]
        if ledger_id in self.since_s:
            self._free(ledger_id)

    def remove(self, ledger_id: int) -> Cost:
        """Removes a mark, and returns what that costs with the folders above it."""
        del self.since_s[ledger_id]
        cost = costs.UNMARK
        self.folders[ledger_id >> 16] -= 1
        if self.folders[ledger_id >> 16]:
            return cost
        del self.folders[ledger_id >> 16]
        cost += costs.PRUNED_FOLDER
        return cost + costs.PRUNE if self.folders else cost + costs.PRUNED_FOLDER * 2


@dataclass(slots=True)
class Healed:
    """What all workers did."""

    healed_s: dict[int, float] = field(default_factory=dict)
    by_copies_left: dict[int, list[float]] = field(default_factory=dict)
    """Seconds from the mark to the last copy, by how many copies were left."""
    copies: int = 0
    bytes: int = 0
    made: dict[str, int] = field(default_factory=dict)
    """Bytes that were written to each bookie."""
    read: dict[str, int] = field(default_factory=dict)
    lost: dict[int, None] = field(default_factory=dict)
    """Ledgers of which no live bookie has a copy."""
    disputed: int = 0
    """Ledgers that a worker found locked by another."""
    out_of_order: int = 0
    """Ledgers that were begun while the same worker had queued one with fewer copies left."""


@dataclass(slots=True)
class Scene:
    """What all workers share."""

    cluster: Cluster
    events: Events
    meter: Meter
    bookies: Bookies
    candidates: Candidates
    workers: int
    marks: Marks
    is_local: bool = False
    """Copies are made in the rack of the lost one where that is as good."""
    healed: Healed = field(default_factory=Healed)
    is_over: Callable[[], bool] = lambda: False
    reads: dict[str, SharedRate] = field(default_factory=dict)
    adds: dict[str, SharedRate] = field(default_factory=dict)

    def reads_of(self, bookie: str) -> SharedRate:
        """Returns what a bookie reads for copies."""
        return self._rate(self.reads, bookie)

    def adds_of(self, bookie: str) -> SharedRate:
        """Returns what a bookie writes for copies."""
        return self._rate(self.adds, bookie)

    def _rate(self, rates: dict[str, SharedRate], bookie: str) -> SharedRate:
        if bookie not in rates:
            rates[bookie] = SharedRate(self.cluster.settings.bookie_bytes_per_s, self.events)
        return rates[bookie]


class Worker:
    """One worker; `look` for the first time begins it."""

    def __init__(self, scene: Scene, place: int, rng: random.Random) -> None:
        settings = scene.cluster.settings
        self._scene = scene
        self._place = place
        self._rng = rng
        self._look_s = interval_s(scene.workers, settings.options.scan_interval_s)
        self._per_s = settings.operations_per_s / max(1, scene.workers)
        self._pace = OperationPace()
        self._rate = SharedRate(settings.copy_bytes_per_s, scene.events)
        self._at_once = settings.options.ledgers_at_once
        self._backlog = Backlog(rng.getrandbits(31))
        self._queued: dict[int, int] = {}
        """Copies left of what is in the backlog."""
        self._begun: dict[int, int] = {}
        self._has_news = False

    def _after(self, cost: Cost, call: Callable[[], None]) -> None:
        """Has `call` called when some requests are answered."""
        events, settings = self._scene.events, self._scene.cluster.settings
        wait_s = self._pace.reserve(cost.total, self._per_s, events.now_s)
        self._scene.meter.count("workers", events.now_s + wait_s, cost, self._per_s)
        events.after(wait_s + cost.total * max(1 / self._per_s, settings.request_s), call)

    # Which ledgers.

    def look(self) -> None:
        scene = self._scene
        if scene.is_over():
            return
        scene.events.after(self._look_s, self.look)
        if self._has_news:
            self._has_news = False
            self._after(costs.PUBLISH, lambda: None)
        if scene.marks.since_s and self._room() > 0:
            lists = costs.LIST_MARKS + Cost(reads=len(scene.marks.folders)) + costs.LIST_LOCKS
            self._after(lists, self._listed)

    def _room(self) -> int:
        return _QUEUED_MAX - len(self._begun) - len(self._backlog)

    def _listed(self) -> None:
        scene, backlog = self._scene, self._backlog
        marks, now_s = scene.marks, scene.events.now_s
        old = marks.old(now_s - PATIENCE_LOOKS * self._look_s)
        taken = chain(marks.owned.get(self._place, ()), some_of(old, scene.workers, self._rng))
        # A held ledger is forgotten when it is not marked any more.
        known = chain(taken, [h.ledger_id for h in backlog.held if h.ledger_id in marks.unlocked])
        missing = [one for one in backlog.unknown(known, now_s) if one not in self._begun]
        share = missing[: max(0, self._room())]
        if share:
            self._after(costs.FEED * len(share), lambda: self._fed(share))

    def _fed(self, share: Sequence[int]) -> None:
        scene = self._scene
        for ledger_id in share:
            if ledger_id in scene.marks.since_s and ledger_id not in self._begun:
                left = copies_left(scene.cluster.metadata(ledger_id), scene.bookies)
                self._backlog.add(ledger_id, left)
                self._queued[ledger_id] = left
        self._start()

    def _start(self) -> None:
        while len(self._begun) < self._at_once:
            ledger_id = self._backlog.next()
            if ledger_id is None:
                return
            left = self._queued.pop(ledger_id)
            if self._queued and left > min(self._queued.values()):
                self._scene.healed.out_of_order += 1
            self._begun[ledger_id] = left
            self._has_news = True
            self._lock(ledger_id)

    def _end(self, ledger_id: int, holds: Sequence[Hold] = ()) -> None:
        if holds:
            self._backlog.hold(ledger_id, holds, self._scene.events.now_s)
        else:
            self._backlog.healed(ledger_id)
        del self._begun[ledger_id]
        self._start()

    # One ledger.

    def _lock(self, ledger_id: int) -> None:
        if self._scene.marks.lock(ledger_id):
            self._after(costs.LOCK + costs.BEGIN, lambda: self._plan(ledger_id))
            return
        self._scene.healed.disputed += 1
        hold = Hold("another worker copies it", retry_s=_OTHERS_RETRY_S)
        self._after(costs.LOCKED_BY_OTHER, lambda: self._end(ledger_id, [hold]))

    def _unlock(
        self, ledger_id: int, cost: Cost, holds: Sequence[Hold], unlock: Cost = costs.UNLOCK
    ) -> None:
        def unlocked() -> None:
            self._scene.marks.unlock(ledger_id)
            self._end(ledger_id, holds)

        self._after(cost + unlock, unlocked)

    def _plan(self, ledger_id: int) -> None:
        scene = self._scene
        if ledger_id not in scene.marks.since_s:
            self._unlock(ledger_id, Cost(), ())
            return
        metadata = scene.cluster.metadata(ledger_id)
        found = plan(metadata, scene.bookies, {}, self._choose)
        holds, cost = list(found.holds), Cost()
        if found.is_end_unsafe:
            cost += costs.WRITER_ALIVE
            reason = "it is open, and its writer, which is alive, replaces the bookie by itself"
            holds.append(Hold(reason))
        if any(hold.is_loss for hold in found.holds):
            scene.healed.lost[ledger_id] = None
        if found.moves:
            self._copy(metadata, found.moves)
        elif holds:
            self._unlock(ledger_id, cost, holds)
        else:
            self._count_healed(ledger_id)
            cost += scene.marks.remove(ledger_id)
            self._unlock(ledger_id, cost, (), costs.UNLOCKED_WITH_MARK)

    def _choose(self, metadata: LedgerMetadata, fragment: Fragment, index: int) -> str:
        chosen = self._scene.cluster.policy.replace(
            fragment.bookies, (index,), metadata.write_quorum, metadata.ack_quorum,
            self._scene.candidates, (), self._rng, prefers_same_rack=self._scene.is_local,
        )  # fmt: skip
        return chosen[index]

    def _copy(self, metadata: LedgerMetadata, moves: Sequence[Move]) -> None:
        cluster, healed, bookies = self._scene.cluster, self._scene.healed, self._scene.bookies
        fixed, total = fixed_part(metadata), 0
        sizes, shares = [], []
        for move in moves:
            nbytes = cluster.fragment_bytes(fixed, *fragment_bounds(fixed, move.number))
            live = [b for b in metadata.fragments[move.number].bookies if bookies.is_live(b)]
            source = min(live, key=self._reads)
            healed.read[source] = healed.read.get(source, 0) + nbytes
            healed.made[move.new] = healed.made.get(move.new, 0) + nbytes
            shares += [
                (self._scene.reads_of(source), nbytes),
                (self._scene.adds_of(move.new), nbytes),
            ]
            sizes.append(nbytes)
            total += nbytes
        healed.copies += len(moves)
        healed.bytes += total
        store = costs.STORE_CLOSED if metadata.is_closed else costs.STORE_OPEN

        left = len(shares) + 1

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                cost = store + costs.LOOK_AGAIN
                self._after(cost, lambda: self._store(metadata, moves, sizes))

        for rate, nbytes in ((self._rate, total), *shares):
            rate.add(nbytes, done)

    def _reads(self, bookie: str) -> tuple[int, float]:
        """Returns how many copies a bookie reads; those with equally many are in random order."""
        return self._scene.reads_of(bookie).jobs, self._rng.random()

    def _store(self, metadata: LedgerMetadata, moves: Sequence[Move], sizes: Sequence[int]) -> None:
        cluster, ledger_id = self._scene.cluster, metadata.ledger_id
        stored = cluster.metadata(ledger_id)
        assert not metadata.is_closed or stored == metadata, "a closed ledger has one worker"
        for move, nbytes in zip(moves, sizes, strict=True):
            changed = with_moved_copy(stored, move.first_entry_id, move.old, move.new)
            assert changed is not None, f"{move.old} has left ledger {ledger_id} already"
            stored = changed
            cluster.moved(move.old, move.new, nbytes)
        cluster.changed[ledger_id] = stored
        self._plan(ledger_id)

    def _count_healed(self, ledger_id: int) -> None:
        healed, now_s = self._scene.healed, self._scene.events.now_s
        healed.healed_s[ledger_id] = now_s
        waited_s = now_s - self._scene.marks.since_s[ledger_id]
        healed.by_copies_left.setdefault(self._begun[ledger_id], []).append(waited_s)
