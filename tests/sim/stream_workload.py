"""What users of streams do under faults: take over, append, roll, read, tail, truncate, clean.

Several writers compete for one stream, as after a split brain; the model knows what each was
promised.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from bookie.testing.cluster import SimCluster
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.position import EARLIEST, LATEST, FromSequence, Start
from stream.namespace import Namespace
from stream.retention.janitor import Janitor
from stream.retention.policies import NamespaceSettings
from stream.writing.batch import Ticket
from stream.writing.open_segment import WriterOptions
from stream.writing.writer import StreamWriter
from tests.sim.stream_model import ReadingModel, StreamModel

NAMESPACE = "faults"
_RETRY_S = 0.3
Actor = Callable[[LedgerClient, random.Random], Awaitable[None]]


class StreamWorkload:
    """Actors on one stream; `Workload` runs them."""

    def __init__(
        self,
        cluster: SimCluster,
        model: StreamModel,
        chance: random.Random,
        *,
        ack_quorum_min: int = 1,
    ) -> None:
        self.cluster = cluster
        self.model = model
        self.chance = chance
        self.is_stopping = False
        self._writers = 0
        quorum = chance.randint(ack_quorum_min, 3)
        self._settings: NamespaceSettings = {
            "ensemble_size": 3,
            "write_quorum": chance.randint(quorum, 3),
            "ack_quorum": quorum,
            "roll_ms": chance.choice((1000, 3000, 3_600_000)),
            "roll_bytes": 1 << 16,
            "batch_bytes": chance.choice((1, 200, 4000)),
            "linger_ms": chance.choice((0, 0, 5, 50)),
            "compression": chance.choice(("none", "none", "zstd", "lz4")),
        }

    def actors(self) -> dict[str, Actor]:
        chance = self.chance
        actors: dict[str, Actor] = {}
        for number in range(chance.randint(1, 3)):
            actors[f"appender-{number}"] = self._append
        for number in range(chance.randint(1, 2)):
            actors[f"follower-{number}"] = self._follow
        if chance.random() < 0.5:
            actors["cleaner"] = self._clean
        return actors

    async def prepare(self) -> None:
        """Makes namespace and stream, before any fault."""
        async with self.cluster.client("preparer") as client:
            namespace = Namespace(client, NAMESPACE)
            await namespace.ensure(**self._settings)
            await namespace.ensure_stream(self.model.name)

    # Writing.

    async def _append(self, client: LedgerClient, chance: random.Random) -> None:
        await trio.sleep(chance.expovariate(1))
        self._writers += 1
        name = f"w{self._writers}"
        options = WriterOptions(
            pending_bytes_max=chance.choice((1000, 1 << 20)),
            repair_timeout_s=chance.choice((1.0, 10.0)),
        )
        pending: list[tuple[Ticket, bytes]] = []
        try:
            async with Namespace(client, NAMESPACE).writer(
                self.model.name, options=options, hand_over_s=chance.choice((None, None, 0.5))
            ) as writer:
                self.model.count("takeovers")
                try:
                    await self._write(writer, name, pending, chance)
                finally:
                    statistics = writer.statistics()
                    self.model.count("stream repairs", statistics.repairs)
                    self.model.count("stream rolls", statistics.rolls)
        except _Abandoned:
            self.model.count("stream writers abandoned")
        except LedgerError as error:
            self.model.writer_failed(error)
        await self._collect(name, pending)
        self.model.count("records of unknown fate", len(pending))

    async def _write(
        self,
        writer: StreamWriter,
        name: str,
        pending: list[tuple[Ticket, bytes]],
        chance: random.Random,
    ) -> None:
        until_s = trio.current_time() + chance.uniform(0.1, 4)
        payload_max = chance.choice((20, 500))
        number = 0
        while trio.current_time() < until_s and not self.is_stopping:
            for _ in range(chance.choice((1, 3, 20))):
                while not writer.has_room:
                    await writer.wait_room()
                value = b"%s/%d;" % (name.encode(), number) + bytes(chance.randint(0, payload_max))
                number += 1
                self.model.attempted(name, value)
                pending.append((writer.append_nowait(value), value))
            await trio.sleep(chance.uniform(0, 0.15))
            await self._collect(name, pending)
        if chance.random() < 0.3:
            raise _Abandoned

    async def _collect(self, name: str, pending: list[tuple[Ticket, bytes]]) -> None:
        """Reports to the model all records that are confirmed by now, in their order."""
        while pending and pending[0][0].is_confirmed:
            ticket, value = pending.pop(0)
            self.model.was_confirmed(name, value, await ticket.wait())

    # Reading.

    async def _follow(self, client: LedgerClient, chance: random.Random) -> None:
        await trio.sleep(chance.uniform(0, 0.5))
        namespace = Namespace(client, NAMESPACE)
        reading = ReadingModel(self.model)
        try:
            async with namespace.reader(self.model.name, start=self._start(chance)) as reader:
                if chance.random() < 0.3:
                    async for batch in reader.read_to_end():
                        for record in batch.records():
                            reading.got(record)
                    return
                with trio.move_on_after(chance.uniform(0.1, 4)):
                    async for record in reader:
                        reading.got(record)
        except LedgerError as error:
            self.model.refused("read", error)

    def _start(self, chance: random.Random) -> Start:
        known = list(self.model.confirmed)
        choice = chance.random()
        if choice < 0.3 or not known:
            return EARLIEST
        if choice < 0.5:
            return LATEST
        if choice < 0.8:
            return chance.choice(known)
        return FromSequence(chance.randint(0, len(known)))

    async def _clean(self, client: LedgerClient, chance: random.Random) -> None:
        await trio.sleep(chance.expovariate(0.5))
        namespace = Namespace(client, NAMESPACE)
        try:
            known = sorted(self.model.confirmed)
            if known and chance.random() < 0.4:
                position = known[chance.randrange((len(known) + 1) // 2)]
                self.model.truncated_to = max(self.model.truncated_to, position)
                await namespace.truncate(self.model.name, position)
                self.model.count("stream truncations")
            elif chance.random() < 0.3:
                # Writers roll to ledgers of another kind, gather otherwise, are throttled.
                await namespace.set_policy(
                    digest_type=chance.choice(("CRC32", "CRC32C", "HMAC")),
                    linger_ms=chance.choice((0, 5, 50)),
                    bytes_per_s_max=chance.choice((None, 20_000)),
                )
                self.model.count("policy changes")
            else:
                age_ms = chance.choice((0, 1000, 3_600_000))
                await Janitor(client, NAMESPACE, orphan_age_ms=age_ms).sweep()
                self.model.count("janitor sweeps")
        except LedgerError as error:
            self.model.refused("clean", error)

    # The end.

    async def check(self, client: LedgerClient) -> None:
        """[I12] The stream can be sealed, read whole, and written again."""
        namespace = Namespace(client, NAMESPACE)
        while True:
            try:
                await namespace.seal_stream(self.model.name)
                break
            except LedgerError as error:
                self.model.refused("seal", error)
                await trio.sleep(_RETRY_S)
        reading, records = ReadingModel(self.model), []
        async with namespace.reader(self.model.name) as reader:
            async for batch in reader.read_to_end():
                for record in batch.records():
                    reading.got(record)
                    records.append(record)
        self.model.whole(records)
        async with namespace.writer(self.model.name) as writer:
            self.model.attempted("last", b"last")
            self.model.was_confirmed("last", b"last", await writer.append(b"last"))


class _Abandoned(Exception):
    """The application fails inside its writer's block."""
