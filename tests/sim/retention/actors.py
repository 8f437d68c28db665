"""Who keeps, drops, brings back, reads and moves cursors, all at once, on streams of metadata.

Every permanent refusal must have its reason; the oracle is notified in advance of what they
ask for by hand.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable

import trio

from ledger.client import LedgerClient, Opening
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.metadata_format import encode
from ledger.errors import BookieUnavailable, LedgerError, MetadataUnavailable, NoSuchLedger
from ledger.metastore.base import Create, MetadataStore
from ledger.reading.reader import LedgerReader
from ledger.runtime.network import Listener, Transport
from stream.core.metadata.streams import Segment, SegmentEnd
from stream.core.position import Position
from stream.core.sinks import committed
from stream.core.takeover import EndLedger, MakeLedger, Takeover
from stream.errors import NoSuchStream, StreamBusy
from stream.namespace import Namespace, delete_namespace
from stream.retention.policies import NamespaceSettings
from stream.retention.segment_merging import plan_merge, publish_merge
from stream.store.cursors import CursorStore
from stream.store.streams import StreamStore
from stream.takeover import STREAM_TAG, StreamLedgers
from tests.sim.model import Violation
from tests.sim.retention.model import LATE_MS, RetentionModel

CURSORS = ("billing", "search")
Role = Callable[["MetadataClient", random.Random], Awaitable[None]]


class NoNetwork:
    """There are no bookies."""

    async def connect(self, host: str, port: int) -> Transport:
        raise BookieUnavailable(f"{host}:{port}: there are no bookies here")

    async def listen(self, host: str, port: int) -> Listener:
        raise BookieUnavailable("nobody listens here")


class CrashingStore:
    """Counts down calls; at the last one the process dies, before or after it took effect."""

    def __init__(self, inner: MetadataStore, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng
        self._calls_left = math.inf
        self._scope: trio.CancelScope | None = None

    def crash_later(self, scope: trio.CancelScope, calls: int) -> None:
        self._scope, self._calls_left = scope, calls

    def __getattr__(self, name: str) -> object:
        inner = getattr(self._inner, name)
        if name.startswith("watch") or not callable(inner):
            return inner

        async def counted(*args: object, **settings: object) -> object:
            self._calls_left -= 1
            if self._calls_left > 0:
                return await inner(*args, **settings)
            if self._rng.random() < 0.5:
                with trio.CancelScope(shield=True):
                    try:
                        await inner(*args, **settings)
                    except LedgerError:
                        pass
            assert self._scope is not None, "nobody said when to crash"
            self._scope.cancel()
            await trio.sleep_forever()
            raise AssertionError("it was cancelled")

        return counted


class MetadataClient(LedgerClient):
    """A client whose ledgers have metadata and no entries."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        rng: random.Random,
        now_ms: Callable[[], int],
        next_id: Callable[[], int],
    ) -> None:
        self._crashing = CrashingStore(store, rng)
        super().__init__(self._crashing, NoNetwork(), rng=rng, now_ms=now_ms)  # type: ignore[arg-type]
        self.next_id = next_id

    def crash_later(self, scope: trio.CancelScope, calls: int) -> None:
        """Cancels the scope after this number of calls of the metadata store."""
        self._crashing.crash_later(scope, calls)

    def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool = True,
        digest_type: DigestType | None = None,
    ) -> Opening[LedgerReader]:
        async def fenced() -> LedgerReader:
            metadata = await self.ledger_metadata(ledger_id)
            if not metadata.is_closed:
                await self.ledgers.update(ledger_id, lambda m: m.closed(-1, 0))
            return await LedgerClient.open_ledger(self, ledger_id)

        return Opening(fenced)

    def ledger(self, namespace: str, stream: str, state: LedgerState) -> LedgerMetadata:
        is_closed = state is LedgerState.CLOSED
        return LedgerMetadata(
            ledger_id=self.next_id(), ensemble_size=1, write_quorum=1, ack_quorum=1, state=state,
            fragments=(Fragment(0, ("b:1",)),), digest_type=DigestType.CRC32C,
            last_entry_id=9 if is_closed else -1, length=100 if is_closed else 0,
            created_ms=self.now_ms(), custom={STREAM_TAG: f"{namespace}/{stream}".encode()},
        )  # fmt: skip

    async def make_ledgers(self, namespace: str, stream: str, count: int) -> list[int]:
        made = [self.ledger(namespace, stream, LedgerState.CLOSED) for _ in range(count)]
        await self.store.transaction(
            [Create(await self.ledgers.path(m.ledger_id), encode(m)) for m in made]
        )
        return [metadata.ledger_id for metadata in made]

    async def delete_namespace(self, name: str) -> None:
        await delete_namespace(self, name)


class Actors:
    """Those of one namespace."""

    def __init__(
        self, model: RetentionModel, namespace: str, streams: int, orphan_age_ms: int
    ) -> None:
        self._model = model
        self._name = namespace
        self._streams = [f"s{number}" for number in range(streams)]
        self._orphan_age_ms = orphan_age_ms

    def roles(self) -> list[tuple[str, Role]]:
        """Names and what they do, once in a while."""
        half = max(1, len(self._streams) * 3 // 4)
        sinks = [(f"sink{n}", self._sink(name)) for n, name in enumerate(self._streams[:half])]
        writers = [
            (f"writer{n}-{rival}", self._writer(name))
            for n, name in enumerate(self._streams[half:])
            for rival in range(2)
        ]
        return [
            *sinks, *writers, ("operator", self._operate), ("ruler", self._rule),
            ("mover", self._move_cursors), ("reader0", self._read), ("reader1", self._read),
            ("merger0", self._merge), ("merger1", self._merge),
        ]  # fmt: skip

    def _pick(self, chance: random.Random) -> str:
        return chance.choice(self._streams)

    # Writing

    def _sink(self, stream: str) -> Role:
        async def commit(client: MetadataClient, chance: random.Random) -> None:
            """Many segments in one change, as a sink of batches."""
            ledgers = await client.make_ledgers(self._name, stream, chance.randint(1, 60))
            if chance.random() < 0.02:
                self._model.count("ledgers left as orphans", len(ledgers))
                return
            now_ms = client.now_ms()
            ends = [(ledger, _end(chance, now_ms)) for ledger in ledgers]
            try:
                await StreamStore(client.store).update_stream(
                    self._name, stream, lambda s: committed(s, ends, now_ms)
                )
            except StreamBusy:
                machine = Takeover(stream, client.now_ms(), begins_next=False)
                await self._ledgers(client, stream).run(machine, end=_ending(client, chance))

        return commit

    def _writer(self, stream: str) -> Role:
        async def write(client: MetadataClient, chance: random.Random) -> None:
            """Takes the stream over and rolls some times."""
            ledgers = self._ledgers(client, stream)

            async def make(_: MakeLedger) -> int:
                metadata = client.ledger(self._name, stream, LedgerState.OPEN)
                await client.ledgers.create(metadata)
                if chance.random() < 0.02:
                    self._model.count("ledgers left as orphans")
                    raise MetadataUnavailable("the writer dies between making and publishing")
                return metadata.ledger_id

            end = _ending(client, chance)
            machine = Takeover(stream, client.now_ms())
            present = await ledgers.run(machine, end=end, make=make)
            epoch = present.epoch
            self._model.count("takeovers")
            for _ in range(chance.randint(0, 8)):
                await trio.sleep(chance.expovariate(2))
                present, version = await ledgers.store.read_stream(self._name, stream)
                if present.is_deleted or present.epoch != epoch:
                    return
                machine = Takeover(
                    stream, client.now_ms(), epoch=epoch, stream=present, version=version,
                    is_recovery=False,
                )  # fmt: skip
                await ledgers.run(machine, end=end, make=make)
                self._model.count("rolls")

        return write

    def _ledgers(self, client: MetadataClient, stream: str) -> StreamLedgers:
        return StreamLedgers(client, StreamStore(client.store), self._name, stream)

    # Operators

    async def _operate(self, client: MetadataClient, chance: random.Random) -> None:
        await trio.sleep(chance.expovariate(1))
        act = chance.choice(
            (self._truncate, self._truncate, self._untruncate, self._delete, self._undelete,
             self._undelete, self._create, self._create, self._purge)
        )  # fmt: skip
        stream = self._pick(chance)
        await act(Namespace(client, self._name), stream, chance)
        self._model.count(act.__name__.strip("_"))

    async def _truncate(self, namespace: Namespace, stream: str, chance: random.Random) -> None:
        present = await namespace.stream_metadata(stream)
        segments = await namespace.store.pages.listed(present)
        sealed = [segment for segment in segments if not segment.is_open]
        if not sealed:
            return
        segment = sealed[int(len(sealed) * chance.random() ** 2)]
        position = Position(segment.number, chance.randint(0, segment.last_entry + 1), 0)
        life, ask = self._model.life((self._name, stream)), (position, math.inf)
        life.asked.append(ask)
        until_ms = namespace.client.now_ms() + LATE_MS
        try:
            await namespace.truncate(stream, position)
        finally:
            until_ms = namespace.client.now_ms() + LATE_MS
            if ask in life.asked:
                life.asked.remove(ask)
            life.asked.append((position, until_ms))

    async def _untruncate(self, namespace: Namespace, stream: str, chance: random.Random) -> None:
        await namespace.untruncate(stream)

    async def _delete(self, namespace: Namespace, stream: str, chance: random.Random) -> None:
        await namespace.delete_stream(stream)

    async def _create(self, namespace: Namespace, stream: str, chance: random.Random) -> None:
        await namespace.ensure_stream(stream)

    async def _undelete(self, namespace: Namespace, stream: str, chance: random.Random) -> None:
        entries = [entry for entry in await namespace.trash() if entry.is_deleted]
        if entries:
            entry = chance.choice(entries)
            as_name = stream if chance.random() < 0.3 else None
            await namespace.undelete_stream(entry.stream, as_name)

    async def _purge(self, namespace: Namespace, stream: str, chance: random.Random) -> None:
        key = (self._name, stream)
        self._model.purges[key] = 1 << 60
        try:
            await namespace.purge(stream)
        finally:
            self._model.purges[key] = namespace.client.now_ms()

    async def _rule(self, client: MetadataClient, chance: random.Random) -> None:
        """Changes the policy: often for a while, and then not for long."""
        await trio.sleep(chance.choice((0.2, 1, 5, 60)))
        settings: NamespaceSettings = {
            "retention_ms": chance.choice((None, 0, 1000, 3000, 3000, 10_000)),
            "retention_bytes": chance.choice((None, None, 0, 100_000, 1_000_000)),
            "retention_cursors": chance.choice(((), (), (), CURSORS[:1], CURSORS)),
            "trash_ms": chance.choice((0, 1000, 2000, 10_000)),
        }
        namespace = Namespace(client, self._name)
        await namespace.set_policy(allow_drop=chance.random() < 0.9, **settings)
        self._model.count("policies set")

    # Merging

    async def _merge(self, client: MetadataClient, chance: random.Random) -> None:
        """Merges segments, which have no entries here."""
        stream = self._pick(chance)
        policy, _ = await StreamStore(client.store).read_namespace(self._name)
        present = await StreamStore(client.store).read_living_stream(self._name, stream)
        plan = (await plan_merge(client, policy, present)).plan
        if plan is None:
            return
        metadata = client.ledger(self._name, stream, LedgerState.CLOSED)
        await client.ledgers.create(metadata)
        if chance.random() < 0.05:
            self._model.count("ledgers left as orphans")
            return
        await trio.sleep(chance.expovariate(5))
        await publish_merge(client, self._name, stream, plan, metadata.ledger_id)
        self._model.count("segments merged", len(plan.segments))

    # Cursors and readers

    async def _move_cursors(self, client: MetadataClient, chance: random.Random) -> None:
        store, streams = CursorStore(client.store), StreamStore(client.store)
        for stream in self._streams:
            for cursor in CURSORS:
                await trio.sleep(chance.expovariate(2))
                try:
                    present = await streams.read_living_stream(self._name, stream)
                    if chance.random() < 0.02:
                        await store.delete(self._name, present, cursor, client.now_ms())
                        continue
                    segments = await streams.pages.listed(present)
                    live = [segment for segment in segments if present.is_live(segment)]
                    back = 1 if chance.random() < 0.9 else 10
                    at = live[max(0, len(live) - back)].number if live else present.next_segment
                    position = Position(at, 0, 0)
                    await store.move(self._name, present, cursor, position, client.now_ms())
                except LedgerError as error:
                    self._model.count(f"cursors: {type(error).__name__}")

    async def _read(self, client: MetadataClient, chance: random.Random) -> None:
        """A segment that was there a moment ago may go, but never without a reason."""
        stream = self._pick(chance)
        store = StreamStore(client.store)
        present = await store.read_living_stream(self._name, stream)
        segments = await store.pages.listed(present)
        live = [segment for segment in segments if present.is_live(segment)]
        for segment in chance.sample(live, min(len(live), 5)):
            await trio.sleep(chance.expovariate(20))
            try:
                await client.ledger_metadata(segment.ledger_id)
                self._model.count("segments read")
            except NoSuchLedger:
                await self._explain(store, stream, segment)

    async def _explain(self, store: StreamStore, stream: str, segment: Segment) -> None:
        try:
            now = await store.read_living_stream(self._name, stream)
        except NoSuchStream:
            self._model.count("readers found the stream deleted")
            return
        ledger_id = segment.ledger_id
        there = await store.pages.resolve(now, lambda known: known.segment_on(ledger_id))
        if there is not None and there.ledger_id == ledger_id:
            error = Violation(f"{self._name}/{stream} names a ledger that is gone: {segment}")
            self._model.fail(error)
            raise error
        self._model.count("readers found it truncated")


def _end(chance: random.Random, now_ms: int) -> SegmentEnd:
    records = chance.randint(1, 1000)
    last_ms = now_ms - chance.randint(0, 2000)
    return SegmentEnd(9, max(10, records), 100 * records, last_ms, last_ms)


def _ending(
    client: LedgerClient, chance: random.Random
) -> Callable[[EndLedger], Awaitable[SegmentEnd]]:
    """How a writer's segment ends: as recovery would find it."""

    async def end(action: EndLedger) -> SegmentEnd:
        metadata = await client.ledger_metadata(action.ledger_id)  # NoSuchLedger: it was deleted
        if not metadata.is_closed:
            await client.ledgers.update(action.ledger_id, lambda m: m.closed(9, 100))
        elif metadata.last_entry_id < 0:
            return SegmentEnd(-1, 0, 0)  # fenced while its stream was in the trash
        return _end(chance, client.now_ms())

    return end
