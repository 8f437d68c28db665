"""What one worker asks of the metadata store, among all workers of the cluster.

The workers are the candidates for the auditor. Each takes the marks that it owns; one of a few that
has none left takes those of others, too. One of many takes none that is locked, and looks more
seldom. Each sends its part of the requests that all together may send
(`core.autorecovery.work_sharing`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import trio

from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.core.autorecovery.work_sharing import FEW_WORKERS, OperationPace, Shares, interval_s
from ledger.metastore.election import AuditorElection
from ledger.metastore.underreplication import UnderreplicationStore

FEED_OPERATIONS: Final = 1
"""To read the metadata of a marked ledger."""
HEAL_OPERATIONS: Final = 10
"""To lock, read, change, unmark and unlock a ledger; a read takes two requests to ZooKeeper."""
_COUNTED_S = 60.0
"""How often the workers of the cluster are counted, while there are marks."""
_MARKS_PER_LOOK = 1000
"""Marks that double the pause of one of few workers before its next look; it grows linearly."""
_QUEUED_MAX = 2000
_QUEUED_PER_SLOT = 4
"""What one of many workers has queued, others cannot begin."""


class WorkerShare:
    """The part of one worker.

    Args:
        bookie_id: by which this process is a candidate in `election`.
    """

    def __init__(
        self,
        marks: UnderreplicationStore,
        election: AuditorElection,
        options: AutoRecoveryOptions,
        *,
        bookie_id: str,
        rng: random.Random,
    ) -> None:
        self._marks = marks
        self._election = election
        self.options = options
        self._bookie_id = bookie_id
        self._rng = rng
        self._shares = Shares()
        self._pace = OperationPace()
        self._own: int | None = None
        self._counted_s = -math.inf
        self.workers = 1
        """The workers of the cluster, as far as this one knows."""

    @property
    def are_many(self) -> bool:
        return self.workers > FEW_WORKERS

    @property
    def queued_max(self) -> int:
        """How many ledgers the worker queues."""
        per_slot = _QUEUED_PER_SLOT * self.options.ledgers_at_once
        return per_slot if self.are_many else _QUEUED_MAX

    def interval_s(self, least_s: float) -> float:
        """Returns how often the worker does what it does every `least_s` seconds if it is alone."""
        return interval_s(self.workers, least_s)

    async def wait_for_marks(self) -> None:
        """Returns once a ledger is marked, asking nothing until then."""
        async with aclosing(self._marks.watch_any()) as changes:
            async for is_any in changes:
                if is_any:
                    return

    async def wait_turn(self) -> None:
        """Learns how many workers there are; if they are many, waits, so that they do not look at
        the same moment. Raises MetadataUnavailable."""
        if trio.current_time() >= self._counted_s + _COUNTED_S or self._own is None:
            self._own, self.workers = await self._election.place_of(self._bookie_id)
            self._counted_s = trio.current_time()
        if self.are_many:
            look_s = self.interval_s(self.options.scan_interval_s)
            await trio.sleep(look_s * (0.5 + self._rng.random()))

    async def take(
        self, marked: Sequence[int], missing: Sequence[int], *, is_idle: bool
    ) -> list[int]:
        """Returns which of the `missing` ledgers the worker takes after it listed the `marked`
        ones. `is_idle`: it has nothing else to do. Raises MetadataUnavailable."""
        if not self.are_many:
            slots = self.options.ledgers_at_once if is_idle else 0
            return self._shares.take(missing, self.workers, self._own, self._rng, idle_slots=slots)
        locked = dict.fromkeys(await self._marks.locked_ids())
        free = [one for one in missing if one not in locked]
        await self.pace(len({one >> 16 for one in marked}) + 5)  # that many lists
        return self._shares.take(free, self.workers, self._own, self._rng)

    async def rest(self, wanted: trio.Event, marked: int) -> None:
        """Waits until the next look, or until it is `wanted`. The longer the list of the `marked`
        ledgers, the more it costs, and the less a new one changes about what is next."""
        if not self.are_many:
            with trio.move_on_after(self.options.scan_interval_s * (1 + marked / _MARKS_PER_LOOK)):
                await wanted.wait()

    async def pace(self, operations: int) -> None:
        """Waits until the worker may send some operations."""
        per_s = self.options.metadata_operations_per_s / max(1, self.workers)
        wait_s = self._pace.reserve(operations, per_s, trio.current_time())
        if wait_s > 0:
            await trio.sleep(wait_s)
