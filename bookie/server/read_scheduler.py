"""Schedules the requests that wait for a disk: concurrency, fairness and priority.

Each ledger directory has slots of its own, so that a slow disk delays no reads of the others.
Connections take turns. Requests of recovery and fencing run before all others and have slots that
no other request uses. The pure part is `bookie.core.fair_queue`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import trio

from bookie.config import BookieConfig
from bookie.core.fair_queue import FairQueue
from bookie.core.metrics import SECONDS, Histogram
from bookie.server.internal_errors import REQUEST_ERRORS, log_internal_error
from ledger.wire.messages import BatchReadRequest, ReadRequest, RequestBody

SLOTS: Final = 8
"""Reads of one ledger directory that run at the same time."""
PRIORITY_SLOTS: Final = 2
"""Further slots, for requests with priority only."""
MANY_DIRECTORIES: Final = 4
"""With at least this number of directories each has half the slots, since all of them share one
interpreter."""
BATCH_READ_BYTES_MAX: Final = 5 * 1024 * 1024 - 64
"""The largest reply to a batch read."""
OWN_WAITING_MIN: Final = 8
"""Requests of one connection that wait for a directory however many others wait for it: one peer
with many must not have those of all others refused."""
_JOBS_PER_SLICE = 32
"""After this number of replies other tasks run: all of them may have come from memory."""

Job = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of the requests that wait for disks."""

    waiting_max: int = 10_000
    """In the whole bookie; above it, connections that wait for reads are not read."""
    directory_waiting_max: int = 5_000
    """For one ledger directory; further ones are refused, but for the first OWN_WAITING_MIN of a
    connection."""

    @classmethod
    def of(cls, config: BookieConfig) -> ReadLimits:
        return cls(config.reads_waiting_max, config.reads_waiting_per_directory_max)


class Owner(Protocol):
    """A connection, whose requests take turns with those of others."""

    @property
    def takes_replies(self) -> bool:
        """Whether its send queue has capacity; if not, it calls `ReadScheduler.resume` later."""
        ...

    def takes_beside(self, nbytes: int) -> bool:
        """Whether there is capacity beside replies of `nbytes`, which are being read for it."""
        ...


class _Entry(NamedTuple):
    owner: Owner
    job: Job
    queued_at: float
    reply_bytes: int
    """Memory that its reply may take."""


def is_urgent(body: RequestBody) -> bool:
    """Returns whether the request runs before others: a ledger waits for fencing and recovery."""
    if isinstance(body, ReadRequest):
        return body.is_fencing or body.is_high_priority
    return isinstance(body, BatchReadRequest) and body.is_fencing


def reply_bytes_of(body: RequestBody) -> int:
    """Returns the memory that the reply to a batch read may take; for other requests 0, because
    most entries are small, and few are read at a time."""
    if not isinstance(body, BatchReadRequest):
        return 0
    return max(0, min(body.size_max, BATCH_READ_BYTES_MAX))


def _never() -> bool:
    return False


class Unbounded:
    """An owner that always takes replies."""

    takes_replies: Final = True

    def takes_beside(self, _: int) -> bool:
        return True


class _Queue:
    """The requests for one ledger directory, or those that need none."""

    def __init__(self, reads: ReadScheduler, slots: int, priority_slots: int) -> None:
        self._reads = reads
        self._slots = slots
        self._priority_slots = priority_slots
        self.ordinary: FairQueue[Owner, _Entry] = FairQueue()
        self.urgent: FairQueue[Owner, _Entry] = FairQueue()
        self.running = 0
        """Tasks that run requests of both kinds."""
        self.running_urgent = 0
        """Tasks that run urgent requests only."""

    @property
    def count(self) -> int:
        return self.ordinary.count + self.urgent.count

    @property
    def tasks_max(self) -> int:
        return self._slots + self._priority_slots

    def start_task(self, nursery: trio.Nursery) -> None:
        """Starts one more task if there is a slot; it ends when no request that waits can run."""
        if self.running < self._slots:
            self.running += 1
            nursery.start_soon(self._work)
        elif self.urgent.count and self.running_urgent < self._priority_slots:
            self.running_urgent += 1
            nursery.start_soon(self._work_urgent)

    async def _work(self) -> None:
        try:
            await self._run(lambda: self._take(self.urgent) or self._take_ordinary())
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
            self._reads.in_flight += 1
            self._reads.reserve(entry.owner, entry.reply_bytes)
            begun_at = trio.current_time()
            try:
                await entry.job()
            except REQUEST_ERRORS as error:
                log_internal_error("a request that waited for a disk is not answered", error)
            finally:
                self._reads.unreserve(entry.owner, entry.reply_bytes)
                self._reads.ended(entry.queued_at, begun_at)
            done += 1
            if done % _JOBS_PER_SLICE == 0:
                await trio.lowlevel.checkpoint()

    def _take_ordinary(self) -> _Entry | None:
        return None if self._reads.is_held() else self._take(self.ordinary)

    def _take(self, queue: FairQueue[Owner, _Entry]) -> _Entry | None:
        return queue.take(self._reads.may_read_for)


class ReadScheduler:
    """The queues of one bookie; `run` runs as long as the bookie. Jobs must not raise."""

    def __init__(self, directories: int, limits: ReadLimits) -> None:
        self._limits = limits
        slots = SLOTS if directories < MANY_DIRECTORIES else SLOTS // 2
        self._queues = [_Queue(self, slots, PRIORITY_SLOTS) for _ in range(directories)]
        self._no_directory = _Queue(self, PRIORITY_SLOTS, 0)
        """For requests that need no particular directory, and for long ones."""
        self._nursery: trio.Nursery | None = None
        self._must_hold: Callable[[], bool] = _never
        self._has_held = False
        self.reply_bytes = 0
        """Memory that the replies to the batch reads in progress may take."""
        self._reserved: dict[Owner, int] = {}
        """The same by connection."""
        self.in_flight = 0
        self.waited = Histogram(SECONDS)
        """From the request on."""
        self.worked = Histogram(SECONDS)
        """From the start of the job on."""

    async def run(self) -> None:
        """Runs jobs until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                await trio.sleep_forever()
        finally:
            self._nursery = None  # the bookie is ending: no task makes deferred replies any more

    def hold_while(self, must_hold: Callable[[], bool]) -> None:
        """Starts no ordinary job while `must_hold`; when that ends, call `release`."""
        self._must_hold = must_hold

    def is_held(self) -> bool:
        """Whether no ordinary job may start now: the replies would take too much memory."""
        if not self._must_hold():
            return False
        self._has_held = True
        return True

    def release(self) -> None:
        """Starts the jobs that were held, unless they still must be. Cheap to call often."""
        if not self._has_held or self._nursery is None or self._must_hold():
            return
        self._has_held = False
        for queue in (*self._queues, self._no_directory):
            for _ in range(min(queue.count, queue.tasks_max)):
                queue.start_task(self._nursery)

    def may_read_for(self, owner: Owner) -> bool:
        """Returns whether the owner will take the reply, beside those that are being read."""
        reserved = self._reserved.get(owner)
        return owner.takes_replies if reserved is None else owner.takes_beside(reserved)

    def reserve(self, owner: Owner, nbytes: int) -> None:
        """Counts the reply of a job that begins."""
        if nbytes:
            self.reply_bytes += nbytes
            self._reserved[owner] = self._reserved.get(owner, 0) + nbytes

    def unreserve(self, owner: Owner, nbytes: int) -> None:
        """Undoes `reserve` at the end of the job, whose reply is counted elsewhere by then."""
        if nbytes:
            self.reply_bytes -= nbytes
            left = self._reserved.pop(owner) - nbytes
            if left:
                self._reserved[owner] = left
            self.resume(owner)

    def submit(
        self,
        directory_no: int | None,
        owner: Owner,
        job: Job,
        *,
        goes_first: bool = False,
        reply_bytes: int = 0,
    ) -> bool:
        """Runs `job` when it is its turn; returns False if too many wait for this directory, and
        not only a few of them are the owner's.

        Args:
            directory_no: the ledger directory whose disk it needs; None for none of them.
            owner: the connection that takes turns with the others.
            goes_first: the job runs before those without this flag, and is never held.
            reply_bytes: memory that its reply may take, if that is much.
        """
        queue = self._no_directory if directory_no is None else self._queues[directory_no]
        jobs = queue.urgent if goes_first else queue.ordinary
        is_full = jobs.count >= self._limits.directory_waiting_max
        if is_full and jobs.count_of(owner) >= OWN_WAITING_MIN:
            return False
        jobs.add(owner, _Entry(owner, job, trio.current_time(), reply_bytes))
        if self._nursery is not None:
            queue.start_task(self._nursery)
        return True

    def ended(self, queued_at: float, begun_at: float) -> None:
        """Records that a job has ended."""
        self.in_flight -= 1
        self.release()
        now = trio.current_time()
        self.waited.observe(now - queued_at)
        self.worked.observe(now - begun_at)

    def resume(self, owner: Owner) -> None:
        """Resumes the jobs of an owner that takes replies again."""
        for queue in (*self._queues, self._no_directory):
            waiting = queue.ordinary.resume(owner) + queue.urgent.resume(owner)
            if self._nursery is not None:
                # The tasks that would have read for it ended because no job could run.
                for _ in range(min(waiting, queue.tasks_max)):
                    queue.start_task(self._nursery)

    def drop(self, owner: Owner) -> None:
        """Drops the jobs of an owner that has disconnected."""
        for queue in (*self._queues, self._no_directory):
            queue.ordinary.drop(owner)
            queue.urgent.drop(owner)

    @property
    def is_crowded(self) -> bool:
        """Whether so many requests wait that connections with waiting ones are not read."""
        return self.waiting >= self._limits.waiting_max

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a disk, running ones included."""
        return (
            self._no_directory.count + sum(queue.count for queue in self._queues) + self.in_flight
        )

    def waiting_by_directory(self) -> tuple[int, ...]:
        """Returns the number of requests that wait for each ledger directory, without running
        ones."""
        return tuple(queue.count for queue in self._queues)
