"""Writers beside the sinks of run.py: plain records, conditional ones, producers, bursts."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from ledger.client import LedgerClient
from stream.errors import SequenceMismatch
from stream.namespace import Namespace
from stream.writing.open_segment import WriterOptions
from stream.writing.writer import StreamWriter
from tests.sim.commits.model import CommitModel
from tests.sim.model import Violation

Body = Callable[[LedgerClient, random.Random], Awaitable[None]]


class Writers:
    """What a process does that writes a stream, until it fails or has done enough."""

    def __init__(self, *, is_purging: bool, pause_s: float) -> None:
        self.model = CommitModel()
        self.is_over = False
        self.is_purging = is_purging
        self.pause_s = pause_s
        self._numbers = 0

    def number(self) -> int:
        """One that was not given before."""
        self._numbers += 1
        return self._numbers

    def writer(self, stream: str) -> Body:
        async def write(client: LedgerClient, chance: random.Random) -> None:
            namespace, short = stream.split("/")
            options = WriterOptions(
                pending_bytes_max=chance.choice((500, 1 << 20)), repair_timeout_s=5.0
            )
            hand_over_s = chance.choice((None, None, 1.0))
            async with (
                Namespace(client, namespace).writer(
                    short, options=options, hand_over_s=hand_over_s
                ) as writer,
                trio.open_nursery() as nursery,
            ):
                self.model.count("takeovers")
                for append in chance.sample(
                    (self._append_plain, self._append_at, self._burst, self._produce),
                    chance.randint(1, 4),
                ):
                    nursery.start_soon(append, writer, stream, chance)

        return write

    def _value(self, kind: str, stream: str, *, number: int | None = None) -> bytes:
        value = b"%s/%d" % (kind.encode(), self.number() if number is None else number)
        self.model.own[value] = stream
        return value

    async def _pause(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            await trio.sleep(chance.expovariate(1 / self.pause_s))

    async def _append_plain(self, writer: StreamWriter, stream: str, chance: random.Random) -> None:
        for _ in range(chance.choice((3, 30))):
            if self.is_over:
                return
            values = [self._value("w", stream) for _ in range(chance.choice((1, 1, 4)))]
            if len(values) == 1:
                self.model.appended(values[0], await writer.append(values[0]))
            else:
                first, last = await writer.append_many(values)
                self.model.appended(values[0], first)
                self.model.appended(values[-1], last)
            await self._pause(chance)

    async def _append_at(self, writer: StreamWriter, stream: str, chance: random.Random) -> None:
        """On condition: what was refused must not be there."""
        for _ in range(chance.choice((3, 30))):
            if self.is_over:
                return
            value, sequence = self._value("c", stream), writer.next_sequence
            try:
                place = await writer.append(value, expected_sequence=sequence)
            except SequenceMismatch:
                self.model.refused.add(value)
                self.model.count("refused")
            else:
                self.model.appended(value, place)
                self.model.sequences[value] = sequence
            await self._pause(chance)

    async def _burst(self, writer: StreamWriter, stream: str, chance: random.Random) -> None:
        """Many appends in flight at once, some conditional; sequences are those returned."""
        for _ in range(chance.choice((1, 8))):
            tickets = []
            for _ in range(chance.randint(1, 12)):
                value = self._value("b", stream)
                sequence = writer.next_sequence if chance.random() < 0.3 else None
                try:
                    tickets.append((value, writer.append_nowait(value, expected_sequence=sequence)))
                except trio.WouldBlock:
                    break
            for value, ticket in tickets:
                try:
                    self.model.appended(value, await ticket.wait())
                except SequenceMismatch:
                    self.model.refused.add(value)
                    self.model.count("refused")
                else:
                    self.model.sequences[value] = ticket.sequence
            await self._pause(chance)

    async def _produce(self, writer: StreamWriter, stream: str, chance: random.Random) -> None:
        name = chance.choice(("p", "q"))
        producer = await writer.producer(name)
        before = self.model.produced.get((stream, name), -1)
        if producer.last_sequence < before and not self.is_purging:
            raise Violation(f"{stream}: {name} has {producer.last_sequence}, {before} confirmed")
        sequence = max(0, producer.last_sequence + 1 - chance.choice((0, 1, 4)))
        for _ in range(chance.choice((3, 30))):
            if self.is_over:
                return
            kind = f"p/{name}"
            short = stream.replace("/", "-")
            value = b"%s/%d/%s" % (kind.encode(), sequence, short.encode())
            self.model.own[value] = stream
            place = await producer.append(value, sequence)
            if place is not None:
                self.model.appended(value, place)
            key = (stream, name)
            self.model.produced[key] = max(sequence, self.model.produced.get(key, -1))
            sequence += 1
            await self._pause(chance)
