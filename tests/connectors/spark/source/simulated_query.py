"""A query as Spark runs it, without Spark.

The end of a micro-batch is logged before it is read, and a restarted query continues from its log.
The initial offset is not in the log: as Spark does, the query requests it again when it needs it,
until the second micro-batch.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from connectors.spark.core.admission import NO_LIMITS, Limits
from connectors.spark.core.offsets import Offsets
from connectors.spark.core.planner import SegmentRange
from connectors.spark.options.options import ReadOptions
from connectors.spark.source.checkpoint_cursors import CheckpointCursors
from connectors.spark.source.data_loss import DataLossLog
from connectors.spark.source.discovery import discover
from connectors.spark.source.end_tracker import FOLLOWED_MAX, EndTracker
from connectors.spark.source.micro_batches import MicroBatches
from ledger.client import LedgerClient
from ledger.errors import RetryableError
from tests.connectors.spark.source.range_reading import read_ranges


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record that a query has read."""

    stream: str
    created_ms: int
    sequence: int
    value: bytes


class Query:
    """A query over a Spark checkpoint, `log`, which outlives it."""

    def __init__(
        self,
        client: LedgerClient,
        log: list[str],
        *,
        fail_on_data_loss: bool = True,
        followed_max: int = FOLLOWED_MAX,
        executor: LedgerClient | None = None,
        **options: str,
    ) -> None:
        given = {"cluster": "sqlite:///x", "startingPosition": "earliest", **options}
        read = ReadOptions.parse(given, {}, is_streaming=True)
        self.client = client
        self.executor = executor or client
        self.log = log
        self.losses = DataLossLog(is_error=fail_on_data_loss)
        self.cursors: CheckpointCursors | None = None
        if read.cursor is not None:
            self.cursors = CheckpointCursors(read.cursor, read.selection)
        self.batches = MicroBatches(read.selection, read.starting, self.losses, self.cursors)
        self.seen: list[list[ReadRecord]] = []
        """The records by micro-batch."""
        self.followed_max = followed_max
        self._began: Offsets | None = None
        self._selection = read.selection

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Query]:
        tracker = EndTracker(self.client, self._selection, followed_max=self.followed_max)
        start = Offsets.from_json(json.loads(self.log[-1])) if self.log else ()
        (await discover(self.client, self._selection)).check(start)
        await tracker.begin(start)
        self.batches.tracker = tracker
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tracker.run)
            if not self.log:
                self._began = await self.batches.initial()
            yield self
            nursery.cancel_scope.cancel()

    @property
    def position(self) -> Offsets:
        if not self.log:
            assert self._began is not None, "the query was not started"
            return Offsets.from_json(json.loads(json.dumps(self._began.to_json())))
        return self._logged(-1)

    async def step(self, limits: Limits = NO_LIMITS, waited_ms: int = 0) -> list[ReadRecord] | None:
        """Runs the next micro-batch; returns its records, or None if there is none."""
        start = self.position
        end = await self.batches.latest(start, limits, waited_ms)
        if end is start:
            if not self.log:
                self._write(end)  # the first micro-batch is always logged
                assert await self.batches.ranges(await self.batches.initial(), self.position) == []
            return None
        assert end.to_json() != start.to_json(), "an unchanged offset begins a micro-batch"
        self._write(end)
        await self.move_cursors()
        # Spark plans a micro-batch again after a restart, and must get the same ranges.
        ranges = await self.batches.ranges(start, self.position)
        assert await self.batches.ranges(await self.start_of_last(), self.position) == ranges
        rows = await self._read(ranges, end)
        self.seen.append(rows)
        self.batches.forget_before(end)
        return rows

    async def move_cursors(self) -> None:
        """Commits to the source, as Spark does when a micro-batch is logged, the one before it."""
        if self.cursors is not None and len(self.log) > 1:
            with suppress(RetryableError):  # tried again with the next micro-batch
                await self.cursors.move(self.batches.tracker, self._logged(-2))

    async def drain(self, limits: Limits = NO_LIMITS, *, steps_max: int = 10_000) -> int:
        """Runs micro-batches until there are no records; returns their number."""
        for count in range(steps_max):
            if await self.step(limits) is None:
                return count
        raise AssertionError(f"{steps_max} micro-batches and no end")

    async def again(self) -> list[ReadRecord]:
        """Reads the last micro-batch again, as after a crash before its commit."""
        end = self._logged(-1)
        return await self._read(await self.batches.ranges(await self.start_of_last(), end), end)

    async def start_of_last(self) -> Offsets:
        """Returns the start of the last micro-batch, as Spark determines it."""
        return self._logged(-2) if len(self.log) > 1 else await self.batches.initial()

    def _logged(self, index: int) -> Offsets:
        return Offsets.from_json(json.loads(self.log[index]))

    async def _read(self, ranges: list[SegmentRange], end: Offsets) -> list[ReadRecord]:
        rows: list[ReadRecord] = []
        for each in ranges:
            rows += [
                ReadRecord(each.stream, end[each.stream].created_ms, record.sequence, record.value)
                for record in await read_ranges(self.executor, [each])
            ]
        return rows

    def _write(self, offsets: Offsets) -> None:
        self.log.append(json.dumps(offsets.to_json()))


def by_stream(batches: list[list[ReadRecord]]) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Returns the sequences and values of each stream, in the order in which they were read."""
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for batch in batches:
        for row in batch:
            found.setdefault((row.stream, row.created_ms), []).append((row.sequence, row.value))
    return found
