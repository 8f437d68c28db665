"""What clients do under faults: write, close, abandon, recover, read, tail, delete.

Each actor is a client process of its own, which a fault may kill. Everything done and seen is
reported to the model.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import trio

from bookie.testing.cluster import SimCluster
from bookie.testing.process import SimProcess
from ledger.client import LedgerClient
from ledger.core.entry import Digest, DigestType, Entry, master_key
from ledger.errors import LedgerError, Status
from ledger.options import ClientOptions
from ledger.reading.reader import LedgerReader
from ledger.wire.messages import AddRequest
from ledger.writing.writer import LedgerWriter
from tests.sim.model import LedgerHistory, Model, payload_of
from tests.sim.stream_workload import Actor, StreamWorkload

PASSWORD = b"secret"


@dataclass(slots=True)
class WorkloadOptions:
    """How much the clients do."""

    writers: int = 3
    recoverers: int = 2
    readers: int = 2
    entries_max: int = 120
    payload_max: int = 2000
    pause_max_s: float = 0.3
    deletes: bool = True
    liars: int = 0
    """Clients that forge entries at one bookie, which claim what nobody wrote to be confirmed."""
    ack_quorum_min: int = 1
    """2: every entry outlives the loss of one disk."""


class Workload:
    """Actors on a cluster; `start` them, then `stop` and wait for them."""

    def __init__(
        self,
        cluster: SimCluster,
        model: Model,
        options: WorkloadOptions,
        streams: StreamWorkload | None = None,
    ) -> None:
        self.cluster = cluster
        self.model = model
        self.options = options
        self.chance = cluster.simulation.chance("workload")
        self.processes: dict[str, SimProcess] = {}
        self.is_stopping = False
        self.writers: dict[int, LedgerWriter] = {}
        self.streams = streams
        self._actors: dict[str, Actor] = {} if streams is None else streams.actors()
        self._incarnations = 0
        self._names: dict[LedgerClient, str] = {}
        self._owners: dict[int, str] = {}
        self._orphaning: dict[str, None] = {}
        for kind, number in (
            ("writer", options.writers),
            ("recoverer", options.recoverers),
            ("reader", options.readers),
            ("liar", options.liars),
        ):
            for index in range(number):
                self._actors[f"{kind}-{index}"] = getattr(self, f"_{kind}")

    def start(self) -> None:
        for name in self._actors:
            self.start_actor(name)

    def start_actor(self, name: str) -> None:
        """Starts an actor again after it was killed, as a new client on the same node."""
        self._incarnations += 1
        chance = self.cluster.simulation.chance(f"actor/{name}/{self._incarnations}")
        actor = self._actors[name]
        self._orphaning.pop(name, None)

        async def body(client: LedgerClient) -> None:
            self._names[client] = name
            try:
                while not self.is_stopping:
                    await actor(client, chance)
            finally:
                self.orphan(name)

        self.processes[name] = self.cluster.start_client(
            body, name=name, options=client_options(chance)
        )

    def orphan(self, name: str) -> None:
        """The process `name` died or lost its session: others may take its writers for dead."""
        self._orphaning[name] = None
        for ledger_id, owner in self._owners.items():
            if owner == name:
                self.model.ledgers[ledger_id].is_orphaned = True

    async def stop(self) -> None:
        """Lets all actors finish what they do; returns when all are gone."""
        self.is_stopping = True
        if self.streams is not None:
            self.streams.is_stopping = True
        for process in self.processes.values():
            await process.finished.wait()

    # Writing.

    async def _writer(self, client: LedgerClient, chance: random.Random) -> None:
        """One ledger, or a few at once over the same connections."""
        await trio.sleep(chance.uniform(0, self.options.pause_max_s))
        async with trio.open_nursery() as nursery:
            for _ in range(chance.choice((1, 1, 1, 3))):
                nursery.start_soon(self._write_one, client, chance)
        if chance.random() < 0.1 and self.model.ledgers:
            # A client may well recover what it wrote itself.
            await self.recover(client, self.model.ledgers[max(self.model.ledgers)])

    def _quorums(self, chance: random.Random) -> tuple[int, int, int]:
        """Returns the ensemble size, write quorum and ack quorum of the next ledger."""
        least = self.options.ack_quorum_min
        ensemble = chance.randint(least, len(self.cluster.bookies))
        write_quorum = chance.randint(least, ensemble)
        return ensemble, write_quorum, chance.randint(least, write_quorum)

    async def _write_one(self, client: LedgerClient, chance: random.Random) -> None:
        ensemble, write_quorum, ack_quorum = self._quorums(chance)
        try:
            writer = await client.create_ledger(
                ensemble_size=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest_type=chance.choice((DigestType.CRC32C, DigestType.HMAC, DigestType.CRC32)),
                password=PASSWORD,
            )
        except LedgerError as error:
            self.model.count(f"create: {type(error).__name__}")
            if not error.retry_is_safe:
                self.model.violated(f"creating a ledger failed for good: {error!r}")
            return
        history = self.model.created(writer.ledger_id, (ensemble, write_quorum, ack_quorum))
        self.writers[writer.ledger_id] = writer
        owner = self._owners[writer.ledger_id] = self._names[client]
        history.is_orphaned = owner in self._orphaning
        writer.on_confirmed = lambda last: self.model.confirmed(history, last)
        try:
            await self._write(writer, history, chance)
            await self._end_writing(writer, history, chance)
        except LedgerError as error:
            self.model.writer_failed(history, error)

    async def _write(
        self, writer: LedgerWriter, history: LedgerHistory, chance: random.Random
    ) -> None:
        entries = chance.randint(0, self.options.entries_max)
        while len(history.sizes) < entries and not self.is_stopping:
            for _ in range(chance.choice((1, 1, 5, 20))):
                size = chance.randint(1, chance.choice((50, self.options.payload_max)))
                while not writer.has_room:
                    await writer.wait_room()
                data = payload_of(writer.ledger_id, len(history.sizes), size)
                self.model.pushed(history, writer.append_nowait(data), size)
            style = chance.random()
            if style < 0.4:
                await writer.flush()
            elif style < 0.8:
                await trio.sleep(chance.uniform(0, 0.05))
            elif style < 0.9:
                await trio.sleep(chance.uniform(0, self.options.pause_max_s))

    async def _end_writing(
        self, writer: LedgerWriter, history: LedgerHistory, chance: random.Random
    ) -> None:
        if chance.random() < 0.6:
            history.is_closed_by_writer = True  # or perhaps: the answer may get lost
            metadata = await writer.close()
            self.model.closed(history, metadata.last_entry_id, metadata.length)
            self.model.count("closed by writer")
        else:
            if chance.random() < 0.5:
                await writer.flush()
            writer.abandon()

    # Recovering and deleting.

    async def _recoverer(self, client: LedgerClient, chance: random.Random) -> None:
        await trio.sleep(chance.uniform(0, 4 * self.options.pause_max_s))
        history = self._pick(chance)
        if history is None:
            return
        if self.options.deletes and history.end is not None and chance.random() < 0.2:
            await self._delete(client, history)
            return
        await self.recover(client, history)

    async def recover(self, client: LedgerClient, history: LedgerHistory) -> bool:
        """Opens with recovery, checks the end, reads everything. False if it did not work."""
        history.recoveries += 1
        try:
            reader = await client.open_ledger(history.ledger_id, password=PASSWORD, recover=True)
            async with reader:
                if not reader.is_closed:
                    self.model.violated(f"ledger {history.ledger_id} is open after recovery")
                self.model.closed(history, reader.last_add_confirmed, reader.length)
                self.model.count("recovered or found closed")
                await self._read_range(reader, history, 0, reader.last_add_confirmed)
        except LedgerError as error:
            self.model.refused(history, "recover", error)
            return False
        return True

    async def _delete(self, client: LedgerClient, history: LedgerHistory) -> None:
        history.is_being_deleted = True
        try:
            await client.delete_ledger(history.ledger_id)
            self.model.count("ledgers deleted")
        except LedgerError as error:
            self.model.refused(history, "delete", error)

    # Lying.

    async def _liar(self, client: LedgerClient, chance: random.Random) -> None:
        """Forges one entry far behind those of a ledger that is not closed, at the one bookie."""
        await trio.sleep(chance.uniform(0, self.options.pause_max_s))
        history = self._pick(chance)
        if history is None or history.end is not None:
            return
        try:
            metadata, _ = await client.ledgers.read(history.ledger_id)
            bookie = min(await client.bookies.all())
            if bookie not in metadata.last_fragment.bookies:
                return
            digest = Digest(metadata.digest_type or DigestType.CRC32C, PASSWORD)
            entry_id = chance.choice((1_000, 10**6, 10**12)) + chance.randint(0, 9)
            header, payload = digest.encode_entry(
                history.ledger_id, entry_id, entry_id - 1, 10**6, b"forged"
            )
            body, key = header + bytes(payload), master_key(PASSWORD)
            request = AddRequest(history.ledger_id, entry_id, key, body, is_recovery=True)
            answer = await client.pool.call(bookie, request, timeout_s=1.0)
        except LedgerError:
            return
        if answer.status is Status.OK:
            self.model.count("entries forged")

    # Reading.

    async def _reader(self, client: LedgerClient, chance: random.Random) -> None:
        await trio.sleep(chance.uniform(0, self.options.pause_max_s))
        history = self._pick(chance)
        if history is None:
            return
        try:
            reader = await client.open_ledger(history.ledger_id, password=PASSWORD, recover=False)
            async with reader:
                lac = self._see_lac(reader, history, -1)
                for _ in range(chance.randint(1, 4)):
                    action = chance.random()
                    if action < 0.3 and lac >= 0:
                        first = chance.randint(0, lac)
                        await self._read_range(reader, history, first, chance.randint(first, lac))
                    elif action < 0.5:
                        await reader.read_last_confirmed()
                    elif action < 0.7:
                        await reader.wait_lac_after(lac, chance.uniform(0.05, 2))
                    else:
                        await self._tail(reader, history, chance)
                    lac = self._see_lac(reader, history, lac)
        except LedgerError as error:
            self.model.refused(history, "read", error)

    def _see_lac(self, reader: LedgerReader, history: LedgerHistory, before: int) -> int:
        self.model.served_lac(history, reader.last_add_confirmed, before)
        if reader.is_closed:
            self.model.closed(history, reader.last_add_confirmed, reader.length)
        return reader.last_add_confirmed

    async def _read_range(
        self, reader: LedgerReader, history: LedgerHistory, first: int, last: int
    ) -> None:
        if last < first:
            return
        expected = first
        async with closing(reader.entries(first, last)) as batches:
            async for batch in batches:
                self.model.read(history, expected, batch)
                expected += len(batch)
        if expected != last + 1:
            self.model.violated(
                f"[I3] ledger {history.ledger_id}: asked for {first}..{last}, "
                f"got entries up to {expected - 1} only"
            )

    async def _tail(
        self, reader: LedgerReader, history: LedgerHistory, chance: random.Random
    ) -> None:
        expected = chance.randint(0, max(0, reader.last_add_confirmed + 1))
        with trio.move_on_after(chance.uniform(0.1, 3)):
            async with closing(reader.tail(expected)) as batches:
                async for batch in batches:
                    self.model.read(history, expected, batch)
                    expected += len(batch)
                    # What a tail delivers was confirmed: it may never vanish again.
                    self.model.served_lac(history, expected - 1, -1)
            self.model.count("tails to the end")

    def _pick(self, chance: random.Random) -> LedgerHistory | None:
        """A ledger that is worth a look: mostly one of the newest."""
        ids = [i for i, history in self.model.ledgers.items() if not history.is_being_deleted]
        if not ids:
            return None
        recent = ids[-4:] if chance.random() < 0.8 else ids
        return self.model.ledgers[chance.choice(recent)]


def closing(batches: AsyncIterator[list[Entry]]) -> aclosing[AsyncGenerator[list[Entry], None]]:
    """Ends reading ahead at the end of the block."""
    return aclosing(cast("AsyncGenerator[list[Entry], None]", batches))


def client_options(chance: random.Random) -> ClientOptions:
    """Legal settings at random: small windows and short patience find more."""
    return ClientOptions(
        window_entries=chance.choice((1, 3, 20, 1000)),
        window_bytes=chance.choice((1000, 20_000, 1 << 24)),
        add_timeout_s=chance.choice((0.5, 2.0, 5.0)),
        read_timeout_s=chance.choice((0.3, 1.0, 5.0)),
        speculative_read_s=chance.choice((0.01, 0.1, 0.5)),
        connect_timeout_s=chance.choice((0.3, 1.0, 3.0)),
        ensemble_change_timeout_s=chance.choice((0.3, 1.0, 5.0, 15.0)),
        lac_linger_ms=chance.choice((0.5, 10.0, 100.0)),
        read_ahead_bytes=chance.choice((2000, 100_000)),
        batch_read_bytes=chance.choice((500, 5000, 1 << 20)),
        long_poll_s=chance.choice((0.2, 2.0, 30.0)),
        idle_replacement_delay_s=chance.choice((0.5, 5.0)),
    )
