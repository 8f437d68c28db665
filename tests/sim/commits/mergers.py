"""Clients that read beside the sinks of run.py, look for what was read, and merge segments."""

from __future__ import annotations

import random

import trio

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument
from stream.core.entry.records import Record
from stream.core.position import EARLIEST, FromSequence, Position, Truncated
from stream.errors import RecordFormatError
from stream.namespace import Namespace
from stream.retention.segment_merging import drop_replaced, merge_segments, plan_merge
from stream.store.streams import StreamStore
from tests.sim.commits.writers import Body, Writers
from tests.sim.model import Violation


class Mergers(Writers):
    """What a process does that merges, or reads again."""

    streams: list[str]

    def reader(self, stream: str) -> Body:
        async def follow(client: LedgerClient, _chance: random.Random) -> None:
            namespace, short = stream.split("/")
            last: Record | None = None
            async with Namespace(client, namespace).reader(short, start=EARLIEST) as reader:
                while not self.is_over:
                    with trio.move_on_after(1):
                        batch = await reader.next_batch()
                        for record in batch.records():
                            self.model.read(stream, record)
                            if last is not None and record.sequence != last.sequence + 1:
                                raise Violation(f"{stream}: read {record} after {last}")
                            last = record

        return follow

    async def merge(self, client: LedgerClient, chance: random.Random) -> None:
        namespace, short = chance.choice(self.streams).split("/")
        streams = StreamStore(client.store)
        policy, _ = await streams.read_namespace(namespace)
        stream = await streams.read_living_stream(namespace, short)
        plan = (await plan_merge(client, policy, stream)).plan
        if plan is not None:
            try:
                stream = await merge_segments(client, policy, stream, plan, bytes_per_s=1e9)
            except (InvalidArgument, RecordFormatError) as error:
                raise Violation(f"{short}: what is there cannot be merged: {error}") from error
            self.model.count("segments merged", len(plan.segments))
            self.model.count("segments merged again", sum(s.is_merged for s in plan.segments))
        kept_ms = chance.choice((0, 0, 1000, 10_000))
        _, count = await drop_replaced(client, namespace, stream, kept_ms)
        self.model.count("replaced ledgers deleted", count)

    async def look(self, client: LedgerClient, chance: random.Random) -> None:
        """What was read once is there again, if it was not truncated."""
        if not self.model.seen:
            return
        stream, position = chance.choice(list(self.model.seen))
        namespace, short = stream.split("/")
        space = Namespace(client, namespace)
        try:
            async with space.reader(short, start=position) as reader:
                behind = Position(position.segment, position.entry + 1, 0)
                found = await reader.next_batch_before(behind)
        except Truncated:
            return
        if found is None or found.first_position != position:
            begin = (await space.info(short)).first_position
            if begin <= position:
                raise Violation(f"{stream} {position} was read, and {found} is there")
        else:
            self.model.read(stream, found.records()[0])
            await self._look_around(space, short, stream, found.records()[0])

    async def _look_around(self, space: Namespace, short: str, stream: str, record: Record) -> None:
        """Finds the same record by its sequence, and what is before it."""
        last = (await space.stream_metadata(short)).open_segment
        # While a segment is open, another reader may know of less.
        is_open = last is not None and last.number == record.position.segment
        try:
            async with space.reader(short, start=FromSequence(record.sequence)) as reader:
                if reader.position != record.position and not is_open:
                    raise Violation(f"{stream}: {record} is at {reader.position} by its sequence")
        except Truncated:
            return
        async with space.backward_batches(short, before=record.position) as batches:
            async for batch in batches:
                for before in batch.records():
                    self.model.read(stream, before)
                break
