"""Requests that wait for a disk: how many at once, whose turn it is, and who goes first.

Each ledger directory has slots of its own, so that a slow disk holds up nobody else's reads.
Connections take turns. What recovery and fencing wait for goes before everything else, and has
slots that nothing else uses. Pure twin: `core/fair_queue.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import trio

from bookie.config import BookieConfig
from bookie.core.fair_queue import Turns
from bookie.core.metrics import SECONDS, Histogram
from bookie.server.internal_errors import MISTAKES, log_mistake
from ledger.wire.messages import BatchReadRequest, ReadRequest, RequestBody

SLOTS: Final = 8
"""Reads of one ledger directory that are under way at once."""
PRIORITY_SLOTS: Final = 2
"""Beside them, for requests with priority alone."""
MANY_DIRECTORIES: Final = 4
"""From so many directories on each has half the slots: the interpreter is shared by all."""
_JOBS_PER_SLICE = 32
"""After so many answers others run: they may all have come from memory."""

Job = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How many requests may wait for disks."""

    waiting_max: int = 10_000
    """Of the whole bookie; with more, connections that wait for reads are not read."""
    directory_waiting_max: int = 5_000
    """Of one ledger directory; further ones are refused."""

    @classmethod
    def of(cls, config: BookieConfig) -> ReadLimits:
        return cls(config.reads_waiting_max, config.reads_waiting_per_directory_max)


class Owner(Protocol):
    """Whose requests take turns: a connection."""

    @property
    def takes_replies(self) -> bool:
        """It has room for a reply; else it calls `DiskReads.resume` when it has."""
        ...


class _Entry(NamedTuple):
    job: Job
    queued_at: float


def is_urgent(body: RequestBody) -> bool:
    """Fencing and recovery go before all else: a ledger waits for them."""
    if isinstance(body, ReadRequest):
        return body.is_fencing or body.is_high_priority
    return isinstance(body, BatchReadRequest) and body.is_fencing


class Unbounded:
    """An owner that always takes replies."""

    takes_replies: Final = True


class _Queue:
    """One ledger directory, or what needs none."""

    def __init__(self, reads: DiskReads, slots: int, priority_slots: int) -> None:
        self._reads = reads
        self._slots = slots
        self._priority_slots = priority_slots
        self.ordinary: Turns[Owner, _Entry] = Turns()
        self.urgent: Turns[Owner, _Entry] = Turns()
        self.running = 0
        """Tasks that take both kinds."""
        self.running_urgent = 0
        """Tasks that take urgent ones only."""

    @property
    def count(self) -> int:
        return self.ordinary.count + self.urgent.count

    @property
    def tasks_max(self) -> int:
        return self._slots + self._priority_slots

    def start_task(self, nursery: trio.Nursery) -> None:
        """One more, if there is a slot for it; it ends when nothing waits that can go."""
        if self.running < self._slots:
            self.running += 1
            nursery.start_soon(self._work)
        elif self.urgent.count and self.running_urgent < self._priority_slots:
            self.running_urgent += 1
            nursery.start_soon(self._work_urgent)

    async def _work(self) -> None:
        try:
            await self._run(lambda: self._take(self.urgent) or self._take(self.ordinary))
        finally:
            self.running -= 1

    async def _work_urgent(self) -> None:
        try:
            await self._run(lambda: self._take(self.urgent))
        finally:
            self.running_urgent -= 1

    async def _run(self, take: Callable[[], _Entry | None]) -> None:
        done = 0
        while (entry := take()) is not None:
            self._reads.under_way += 1
            begun_at = trio.current_time()
            try:
                await entry.job()
            except MISTAKES as error:
                log_mistake("a request that waited for a disk is not answered", error)
            finally:
                self._reads.ended(entry.queued_at, begun_at)
            done += 1
            if done % _JOBS_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()

    @staticmethod
    def _take(turns: Turns[Owner, _Entry]) -> _Entry | None:
        return turns.take(_takes_replies)


def _takes_replies(owner: Owner) -> bool:
    return owner.takes_replies


class DiskReads:
    """The queues of one bookie; `run` lives as long as it does. Jobs must not raise."""

    def __init__(self, directories: int, limits: ReadLimits) -> None:
        self._limits = limits
        slots = SLOTS if directories < MANY_DIRECTORIES else SLOTS // 2
        self._queues = [_Queue(self, slots, PRIORITY_SLOTS) for _ in range(directories)]
        self._elsewhere = _Queue(self, PRIORITY_SLOTS, 0)
        """For requests that need no certain directory, and for long ones."""
        self._nursery: trio.Nursery | None = None
        self.under_way = 0
        self.waited = Histogram(SECONDS)
        """From asking on."""
        self.worked = Histogram(SECONDS)
        """From the turn on."""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None  # the bookie is ending: late answers have nobody to make them

    def submit(
        self, directory_no: int | None, owner: Owner, job: Job, *, goes_first: bool = False
    ) -> bool:
        """Runs `job` when it is its turn. False: too much waits for this directory already.

        Args:
            directory_no: whose disk it needs; None for none of them.
            owner: who takes turns with the others.
            goes_first: it goes before all that is not.
        """
        queue = self._elsewhere if directory_no is None else self._queues[directory_no]
        turns = queue.urgent if goes_first else queue.ordinary
        if turns.count >= self._limits.directory_waiting_max:
            return False
        turns.add(owner, _Entry(job, trio.current_time()))
        if self._nursery is not None:
            queue.start_task(self._nursery)
        return True

    def ended(self, queued_at: float, begun_at: float) -> None:
        """A job is done."""
        self.under_way -= 1
        now = trio.current_time()
        self.waited.observe(now - queued_at)
        self.worked.observe(now - begun_at)

    def resume(self, owner: Owner) -> None:
        """An owner takes replies again."""
        for queue in (*self._queues, self._elsewhere):
            waiting = queue.ordinary.resume(owner) + queue.urgent.resume(owner)
            if self._nursery is not None:
                # The tasks that would have read for it ended for want of anything that could go.
                for _ in range(min(waiting, queue.tasks_max)):
                    queue.start_task(self._nursery)

    def drop(self, owner: Owner) -> None:
        """Nobody wants the answers to its requests any more."""
        for queue in (*self._queues, self._elsewhere):
            queue.ordinary.drop(owner)
            queue.urgent.drop(owner)

    @property
    def is_crowded(self) -> bool:
        """So many wait that whoever has some waiting must send no more."""
        return self.waiting >= self._limits.waiting_max

    @property
    def waiting(self) -> int:
        """Requests that wait for a disk, those under way included."""
        return self._elsewhere.count + sum(queue.count for queue in self._queues) + self.under_way

    def waiting_by_directory(self) -> tuple[int, ...]:
        """Requests in the queue of each ledger directory, without those under way."""
        return tuple(queue.count for queue in self._queues)
