"""Load that continues while ZooKeeper has faults, and the checks of its results.

Writers record what was acknowledged, and when. Whatever the metadata store does, no acknowledged
record is lost, streams contain each record once and in order, and no position is acknowledged to
two writers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError
from stream.core.position import Position
from stream.errors import TakenOver
from stream.namespace import Namespace
from stream.writing.writer import StreamWriter
from tests.effort import stride

NAMESPACE = "faults"
BURST = 8
PAUSE_S = 0.01 * stride(ci=12)
RETRY_S = 0.1
PADDING = bytes(200)


def payload(name: str, number: int) -> bytes:
    return f"{name} {number} ".encode() + PADDING


@dataclass
class Acknowledged:
    """One burst: when it began, when it was acknowledged, and its contents."""

    began_s: float
    ended_s: float
    last: int


@dataclass
class Writing:
    """One writer under load. `bursts` are its acknowledged bursts."""

    name: str
    bursts: list[Acknowledged] = field(default_factory=list)
    errors: list[LedgerError] = field(default_factory=list)
    stops: trio.Event = field(default_factory=trio.Event)
    appended: int = 0
    _changed: trio.Event = field(default_factory=trio.Event)

    @property
    def acknowledged(self) -> int:
        return self.bursts[-1].last + 1 if self.bursts else 0

    def next_burst(self) -> list[bytes]:
        begin, self.appended = self.appended, self.appended + BURST
        return [payload(self.name, number) for number in range(begin, self.appended)]

    async def wait_burst_begun_after(self, at_s: float) -> float:
        """Waits for the first acknowledged burst that began after `at_s`; returns its time."""
        await self.wait_until(lambda _: bool(self.bursts) and self.bursts[-1].began_s >= at_s)
        return next(burst.ended_s for burst in self.bursts if burst.began_s >= at_s)

    async def wait_until(self, is_so: Callable[[Writing], bool]) -> None:
        """Returns when `is_so` does; checks after each burst and each error."""
        while not (self.bursts or self.errors) or not is_so(self):
            await self._changed.wait()

    def note(self, began_s: float) -> None:
        self.bursts.append(Acknowledged(began_s, trio.current_time(), self.appended - 1))
        self._report()

    def note_error(self, error: LedgerError) -> None:
        self.errors.append(error)
        self._report()

    def _report(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


@dataclass
class StreamWriting(Writing):
    """Appends to a stream until it is stopped, or another writer took the stream over."""

    stream: str = "stream"
    places: dict[Position, bytes] = field(default_factory=dict)
    """The returned positions, with the records that were appended there."""

    async def wait_rolled(self) -> None:
        """Returns when a record in a segment after the current one was acknowledged."""
        before = max(self.places).segment
        await self.wait_until(lambda _: max(self.places).segment > before)

    @property
    def is_taken_over(self) -> bool:
        return any(isinstance(error, TakenOver) for error in self.errors)

    async def run(self, namespace: Namespace) -> None:
        try:
            async with namespace.writer(self.stream, create=True) as writer:
                await self._append(writer)
        except TakenOver as error:
            self.note_error(error)

    async def _append(self, writer: StreamWriter) -> None:
        while not self.stops.is_set():
            began_s = trio.current_time()
            values = self.next_burst()
            first, last = await writer.append_many(values)
            self.places |= {first: values[0], last: values[-1]}
            self.note(began_s)
            await trio.sleep(PAUSE_S)


@dataclass
class LedgerWriting(Writing):
    """Appends to ledgers, to a new one after each error, until it is stopped."""

    ledgers: list[int] = field(default_factory=list)

    async def run(self, client: LedgerClient) -> None:
        while not self.stops.is_set():
            try:
                async with client.create_ledger() as writer:
                    self.ledgers.append(writer.ledger_id)
                    while not self.stops.is_set():
                        began_s = trio.current_time()
                        await writer.append_many(self.next_burst())
                        self.note(began_s)
                        await trio.sleep(PAUSE_S)
            except LedgerError as error:
                self.note_error(error)
                await trio.sleep(RETRY_S)


async def make_namespace(uri: str) -> None:
    """Creates a namespace with short segments, so that metadata is always needed."""
    async with LedgerClient.connect(uri) as client:
        await Namespace(client, NAMESPACE).ensure(roll_ms=1000, roll_bytes=1 << 16)


@dataclass
class Load:
    """Several writers, each with a client of its own."""

    uri: str
    nursery: trio.Nursery
    streams: list[StreamWriting] = field(default_factory=list)
    ledgers: list[LedgerWriting] = field(default_factory=list)

    @property
    def writings(self) -> list[Writing]:
        return [*self.streams, *self.ledgers]

    def begin(self, writing: Writing, uri: str | None = None) -> None:
        """Starts a writer. `uri` is another address of the same metadata."""
        if isinstance(writing, StreamWriting):
            self.streams.append(writing)
            self.nursery.start_soon(self._run_stream, writing, uri or self.uri)
        elif isinstance(writing, LedgerWriting):
            self.ledgers.append(writing)
            self.nursery.start_soon(self._run_ledgers, writing, uri or self.uri)

    async def _run_stream(self, writing: StreamWriting, uri: str) -> None:
        """Runs a writer; retries until the stream can be taken over."""
        while True:
            try:
                async with LedgerClient.connect(uri) as client:
                    await writing.run(Namespace(client, NAMESPACE))
                    return
            except LedgerError as error:
                # It is unknown whether unacknowledged records were appended: nothing may follow
                # them.
                assert not writing.appended, f"{writing.name} failed in progress"
                writing.note_error(error)
            await trio.sleep(RETRY_S)

    async def _run_ledgers(self, writing: LedgerWriting, uri: str) -> None:
        async with LedgerClient.connect(uri) as client:
            await writing.run(client)

    async def wait_all(self, is_so: Callable[[Writing], bool]) -> None:
        for writing in self.writings:
            await writing.wait_until(is_so)

    def stop(self) -> None:
        for writing in self.writings:
            writing.stops.set()

    # ---- checks

    async def check_everything(self) -> None:
        """Reads everything back with a client of its own, and checks it."""
        async with LedgerClient.connect(self.uri) as client:
            for stream in {writing.stream: None for writing in self.streams}:
                await self._check_stream(client, stream)
            for raw in self.ledgers:
                await self._check_ledgers(client, raw)

    async def _check_stream(self, client: LedgerClient, stream: str) -> None:
        """Checks that the stream contains the records of its writers in order, each once; of a
        writer that was replaced, at least the acknowledged ones."""
        records: dict[Position, bytes] = {}
        async with Namespace(client, NAMESPACE).reader(stream) as reader:
            async for batch in reader.read_to_end():
                records |= {record.position: record.value for record in batch.records()}
        values = list(records.values())
        ended_s = 0.0
        for writing in self.streams:
            if writing.stream != stream:
                continue
            name = writing.name.encode()
            count = sum(value.split(b" ")[0] == name for value in values)
            least = writing.acknowledged if writing.is_taken_over else writing.appended
            assert least <= count <= writing.appended
            assert values[:count] == [payload(writing.name, n) for n in range(count)]
            del values[:count]
            assert writing.places.items() <= records.items()
            if writing.bursts:
                assert ended_s < writing.bursts[0].ended_s
                ended_s = writing.bursts[-1].ended_s
        assert not values

    async def _check_ledgers(self, client: LedgerClient, writing: LedgerWriting) -> None:
        """Checks that together the ledgers contain all acknowledged entries in order, each once;
        others may be there."""
        held: list[bytes] = []
        for ledger_id in writing.ledgers:
            async with client.open_ledger(ledger_id) as reader:
                last = reader.last_add_confirmed
                entries = await reader.read(0, last) if last >= 0 else []
            assert [entry.entry_id for entry in entries] == list(range(last + 1))
            held += [bytes(entry.payload) for entry in entries]
        numbers = [int(value.split(b" ")[1]) for value in held]
        assert numbers == sorted(set(numbers))
        assert held == [payload(writing.name, number) for number in numbers]
        acknowledged: set[int] = set()
        for burst in writing.bursts:
            acknowledged.update(range(burst.last + 1 - BURST, burst.last + 1))
        assert acknowledged <= set(numbers)
