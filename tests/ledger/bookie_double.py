"""Doubles of bookies behind the `call` of a pool, in place of the network and the servers.

They keep entries in dicts. Delays and timeouts follow trio's clock, so a test can replace it.
The `Trouble` of a bookie lists its faults.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from ledger.connection.pending_calls import OnAnswer
from ledger.connection.pool import BookiePool, Outcome
from ledger.core.availability import EntriesHeld
from ledger.core.entry import Digest, DigestType, master_key
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.quorum import write_set
from ledger.errors import BookieUnavailable, LedgerError, OperationTimeout, Status
from ledger.metastore.bookies import (
    OUR_SOFTWARE,
    SOFTWARE_PROPERTY,
    BookieInfo,
    BookieRegistry,
    encode_info,
)
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.missed.copies import MissedCopies
from ledger.options import ClientOptions
from ledger.reading.opener import Opener
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    RequestBody,
    ResponseBody,
)

PASSWORD = b"secret"
DIGEST = Digest(DigestType.CRC32C, PASSWORD)


@dataclass
class DoubleLedger:
    entries: dict[int, bytes] = field(default_factory=dict)
    is_fenced: bool = False
    lac: int = -1
    explicit_lac: bytes | None = None
    changed: trio.Event = field(default_factory=trio.Event)

    def wake(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()


@dataclass
class Trouble:
    is_down: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    """The shares of lost requests and of lost responses."""
    read_status: Status | None = None
    no_batches: bool = False
    corrupt: set[int] = field(default_factory=set)


class BookieDouble:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ledgers: dict[int, DoubleLedger] = {}
        self.trouble = Trouble()
        self.calls: list[RequestBody] = []

    def add(self, body: AddRequest) -> Status:
        ledger = self.ledgers.setdefault(body.ledger_id, DoubleLedger())
        if body.master_key != master_key(PASSWORD):
            return Status.UNAUTHORIZED
        if ledger.is_fenced and not body.is_recovery:
            return Status.FENCED
        data = bytes(body.body)
        ledger.entries[body.entry_id] = data
        ledger.lac = max(ledger.lac, int.from_bytes(data[16:24], "big", signed=True))
        ledger.wake()
        return Status.OK

    def set_lac(self, ledger_id: int, lac: int) -> None:
        ledger = self.ledgers.setdefault(ledger_id, DoubleLedger())
        ledger.explicit_lac = DIGEST.encode_lac(ledger_id, lac)
        ledger.lac = max(ledger.lac, lac)
        ledger.wake()

    def _stored(self, ledger: DoubleLedger, entry_id: int) -> bytes | None:
        body = ledger.entries.get(entry_id)
        if body is not None and entry_id in self.trouble.corrupt:
            body = body[:-1] + bytes([body[-1] ^ 1])
        return body

    def read(self, body: ReadRequest) -> ReadResponse:
        lid, eid = body.ledger_id, body.entry_id
        if body.is_fencing:
            if body.master_key != master_key(PASSWORD):
                return ReadResponse(Status.UNAUTHORIZED, lid, eid)
            ledger = self.ledgers.setdefault(lid, DoubleLedger())
            ledger.is_fenced = True
            ledger.wake()
        if self.trouble.read_status is not None:
            return ReadResponse(self.trouble.read_status, lid, eid)
        if lid not in self.ledgers:
            return ReadResponse(Status.NO_SUCH_LEDGER, lid, eid)
        ledger = self.ledgers[lid]
        wanted = max(ledger.entries, default=-1) if eid == -1 else eid
        data = self._stored(ledger, wanted)
        if data is None:
            return ReadResponse(Status.NO_SUCH_ENTRY, lid, eid)
        return ReadResponse(Status.OK, lid, eid, data, max_lac=ledger.lac)

    def read_batch(self, body: BatchReadRequest) -> BatchReadResponse:
        lid, first = body.ledger_id, body.entry_id
        if self.trouble.no_batches:
            return BatchReadResponse(Status.BAD_REQUEST, lid, first)
        if self.trouble.read_status is not None:
            return BatchReadResponse(self.trouble.read_status, lid, first)
        ledger = self.ledgers.get(lid)
        if ledger is None:
            return BatchReadResponse(Status.NO_SUCH_LEDGER, lid, first)
        bodies: list[bytes] = []
        size = 36
        while len(bodies) < body.count_max:
            data = self._stored(ledger, first + len(bodies))
            if data is None or (bodies and size + len(data) + 4 > body.size_max):
                break
            bodies.append(data)
            size += len(data) + 4
        status = Status.OK if bodies else Status.NO_SUCH_ENTRY
        return BatchReadResponse(status, lid, first, tuple(bodies))

    def read_lac(self, body: ReadLacRequest) -> ReadLacResponse:
        ledger = self.ledgers.get(body.ledger_id)
        if ledger is None:
            return ReadLacResponse(Status.NO_SUCH_LEDGER, body.ledger_id)
        last = self._stored(ledger, max(ledger.entries, default=-1))
        if last is None and ledger.explicit_lac is None:
            return ReadLacResponse(Status.NO_SUCH_ENTRY, body.ledger_id)
        return ReadLacResponse(Status.OK, body.ledger_id, ledger.explicit_lac, last)

    def list_entries(self, body: ListEntriesRequest) -> ListEntriesResponse:
        ledger = self.ledgers.get(body.ledger_id)
        if ledger is None:
            return ListEntriesResponse(Status.NO_SUCH_LEDGER, body.ledger_id)
        held = EntriesHeld()
        for entry_id in sorted(ledger.entries):
            held.add(entry_id, entry_id)
        return ListEntriesResponse(Status.OK, body.ledger_id, held.encode())

    async def poll(self, body: ReadRequest) -> ReadResponse:
        lid, known = body.ledger_id, body.previous_lac
        assert known is not None
        ledger = self.ledgers.get(lid)
        if ledger is None:
            return ReadResponse(Status.NO_SUCH_LEDGER, lid, -1)
        with trio.move_on_after((body.timeout_ms or 0) / 1000):
            was_fenced = ledger.is_fenced
            while ledger.lac <= known and ledger.is_fenced == was_fenced:
                await ledger.changed.wait()
        if ledger.lac <= known:
            return ReadResponse(Status.OK, lid, -1, max_lac=ledger.lac)
        data = self._stored(ledger, known + 1)
        return ReadResponse(Status.OK, lid, known + 1, data, max_lac=ledger.lac)


class PoolDouble(BookiePool):
    """A pool over `BookieDouble`s whose `call` keeps the promises of the real one."""

    def __init__(self, bookies: dict[str, BookieDouble], rng: random.Random) -> None:
        self.bookies = bookies
        self._chance = rng
        self.nursery: trio.Nursery | None = None

    async def call(self, bookie: str, body: RequestBody, *, timeout_s: float) -> ResponseBody:
        double = self.bookies[bookie]
        double.calls.append(body)
        with trio.move_on_after(timeout_s):
            return await self._call(double, body)
        raise OperationTimeout(f"no answer from bookie {bookie} in {timeout_s:g} s")

    async def read_batch(
        self, bookie: str, body: BatchReadRequest, *, timeout_s: float
    ) -> ResponseBody | None:
        answer = await self.call(bookie, body, timeout_s=timeout_s)
        return None if self.bookies[bookie].trouble.no_batches else answer

    async def list_entries(
        self, bookie: str, ledger_id: int, *, timeout_s: float
    ) -> ResponseBody | None:
        return await self.call(bookie, ListEntriesRequest(ledger_id), timeout_s=timeout_s)

    def knows_batches(self, bookie: str) -> bool:
        double = self.bookies[bookie]
        is_asked = any(isinstance(call, BatchReadRequest) for call in double.calls)
        return is_asked and not double.trouble.no_batches

    def post(self, bookie: str, body: RequestBody, on_answer: OnAnswer) -> None:
        async def ask() -> None:
            try:
                answer = await self.call(bookie, body, timeout_s=60.0)
            except LedgerError:
                on_answer(None)
            else:
                on_answer(answer)

        assert self.nursery is not None
        self.nursery.start_soon(ask)

    def ask(
        self,
        bookie: str,
        body: RequestBody,
        on_outcome: Callable[[Outcome], None],
        *,
        keeps_views: bool = True,
    ) -> Callable[[], LedgerError]:
        async def ask() -> None:
            try:
                on_outcome(await self.call(bookie, body, timeout_s=60.0))
            except LedgerError as error:
                on_outcome(error)

        assert self.nursery is not None
        self.nursery.start_soon(ask)
        return lambda: OperationTimeout(f"no answer from bookie {bookie}")

    async def _call(self, double: BookieDouble, body: RequestBody) -> ResponseBody:
        trouble = double.trouble
        await trio.sleep(trouble.delay_s * self._chance.uniform(0.5, 1.5))
        if trouble.is_down:
            raise BookieUnavailable(f"connection to bookie {double.name} was closed")
        if self._chance.random() < trouble.loss:
            await trio.sleep_forever()
        response: ResponseBody
        match body:
            case AddRequest():
                response = AddResponse(
                    double.add(body), body.ledger_id, body.entry_id, body.entry_id
                )
            case ReadRequest(previous_lac=None):
                response = double.read(body)
            case ReadRequest():
                response = await double.poll(body)
            case BatchReadRequest():
                response = double.read_batch(body)
            case ReadLacRequest():
                response = double.read_lac(body)
            case ListEntriesRequest():
                response = double.list_entries(body)
            case _:
                raise AssertionError(body)
        if self._chance.random() < trouble.loss:
            await trio.sleep_forever()
        await trio.sleep(trouble.delay_s * self._chance.uniform(0.5, 1.5))
        return response


@dataclass
class FaultyBookies:
    """Bookies, a metadata store and an opener, with entries stored as a writer stores them."""

    bookies: dict[str, BookieDouble]
    store: MemoryStore
    ledgers: LedgerStore
    registry: BookieRegistry
    pool: PoolDouble
    opener: Opener
    rng: random.Random

    async def create(
        self,
        ledger_id: int = 7,
        *,
        sizes: tuple[int, int, int] = (3, 3, 2),
        fragments: tuple[Fragment, ...] | None = None,
    ) -> LedgerMetadata:
        names = tuple(f"b{i}" for i in range(sizes[0]))
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            fragments=fragments or (Fragment(0, names),),
            digest_type=DigestType.CRC32C,
            password=PASSWORD,
        )
        await self.ledgers.create(metadata)
        return metadata

    def put(
        self, metadata: LedgerMetadata, first: int, last: int, size: int = 5, lac: int | None = None
    ) -> None:
        """Stores entries first..last at all their bookies, each with the previous one as LAC."""
        for entry_id in range(first, last + 1):
            known = entry_id - 1 if lac is None else lac
            bookies = metadata.fragment_of(entry_id).bookies
            for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                self.bookies[bookies[i]].add(self.request(metadata, entry_id, known, size))

    @staticmethod
    def request(metadata: LedgerMetadata, entry_id: int, lac: int, size: int = 5) -> AddRequest:
        payload = b"%d" % entry_id
        payload += bytes(size - len(payload))
        header, data = DIGEST.encode_entry(
            metadata.ledger_id, entry_id, lac, size * (entry_id + 1), payload
        )
        return AddRequest(metadata.ledger_id, entry_id, master_key(PASSWORD), header + bytes(data))

    async def close(self, metadata: LedgerMetadata, last: int, size: int = 5) -> LedgerMetadata:
        return await self.ledgers.update(
            metadata.ledger_id, lambda m: m.closed(last, size * (last + 1))
        )


@asynccontextmanager
async def make_faulty_bookies(
    *, bookies: int = 4, seed: int = 1, options: ClientOptions | None = None
) -> AsyncIterator[FaultyBookies]:
    rng = random.Random(seed)
    doubles = {f"b{i}": BookieDouble(f"b{i}") for i in range(bookies)}
    pool = PoolDouble(doubles, rng)
    async with MemoryStore(MemoryTree(), lambda: 0) as store:
        ledgers, registry = LedgerStore(store), BookieRegistry(store)
        for name in doubles:
            info = encode_info(BookieInfo(name, 3181, {SOFTWARE_PROPERTY: OUR_SOFTWARE}))
            await store.create(f"/ledgers/available/{name}", info)
        async with trio.open_nursery() as nursery:
            missed = MissedCopies(UnderreplicationStore(store, "/ledgers", lambda: 0), rng)
            missed.start(nursery)
            opener = Opener(pool, ledgers, registry, missed, options or ClientOptions(), rng)
            opener.start(nursery)
            pool.nursery = nursery
            yield FaultyBookies(doubles, store, ledgers, registry, pool, opener, rng)
            nursery.cancel_scope.cancel()


__all__ = [
    "DIGEST",
    "PASSWORD",
    "BookieDouble",
    "FaultyBookies",
    "LedgerState",
    "make_faulty_bookies",
]
