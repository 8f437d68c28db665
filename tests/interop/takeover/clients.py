"""The clients of a takeover, one per language: each writes at a pace, takes over, and reads.

The plan determines the ensembles: the Python client sees only the bookies that it may choose
(`NarrowedStore`), and the Java client's placement policy reads them from the custom metadata.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from ledger.client import LedgerClient, wall_ms
from ledger.core.metadata import LedgerMetadata
from ledger.errors import LedgerError
from ledger.metastore.base import ANY_VERSION, Change, MetadataStore, Node
from ledger.options import ClientOptions
from ledger.runtime.network import TcpNetwork
from ledger.writing.writer import LedgerWriter
from tests.interop.java_client import payload
from tests.interop.our_client import PATIENT
from tests.interop.takeover.judge import LedgerEnd, WriterResult
from tests.interop.takeover.plan import Pace, Shape

PLACEMENT_KEY = "interop-bookies"
"""Key in the custom metadata: bookie ids, separated by commas, beginning with the ensemble."""


class RecoveryFailed(Exception):
    """A recovery ended without closing the ledger; it may be retried."""


class NarrowedStore:
    """A metadata store in which only the bookies in `visible` are registered."""

    def __init__(self, store: MetadataStore, visible: Sequence[str], root: str = "/ledgers"):
        self._store = store
        self._available = f"{root}/available"
        self.visible = tuple(visible)

    def bind(self, path: str, data: bytes) -> None:
        self._store.bind(path, data)

    def commit_number(self) -> int | None:
        return self._store.commit_number()

    async def children(self, path: str) -> list[str]:
        names = await self._store.children(path)
        return [n for n in names if n in self.visible] if path == self._available else names

    async def get(self, path: str) -> Node:
        return await self._store.get(path)

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        await self._store.create(path, data, is_ephemeral=is_ephemeral)

    async def put(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return await self._store.put(path, data, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._store.delete(path, version)

    async def transaction(self, changes: Sequence[Change]) -> None:
        await self._store.transaction(changes)

    async def next_id(self, path: str, *, beyond: int = -1) -> int:
        return await self._store.next_id(path, beyond=beyond)

    async def create_numbered(self, prefix: str, data: bytes) -> str:
        return await self._store.create_numbered(prefix, data)

    def watch(self, path: str) -> AsyncGenerator[Node | None, None]:
        return self._store.watch(path)

    def watch_children(self, path: str) -> AsyncGenerator[list[str], None]:
        return self._store.watch_children(path)

    async def aclose(self) -> None:
        """Does nothing: the session belongs to the owner of the store."""


class PacedWriter(Protocol):
    """A writer that appends in the background."""

    ledger_id: int

    async def wait_acked(self, count: int) -> None:
        """Waits until `count` entries are acknowledged, or the writer has ended or is idle."""
        ...

    async def begin_close(self) -> None:
        """Stops appending and closes the ledger with the entries in flight. Does not wait."""
        ...

    async def finish(self) -> WriterResult:
        """Ends the writer; if it has no error yet, it tries to append one more entry."""
        ...


class TakeoverClient(Protocol):
    """The client of one language."""

    name: str

    async def begin(self, shape: Shape, password: bytes, pace: Pace) -> PacedWriter: ...

    async def recover(self, ledger_id: int, shape: Shape, password: bytes) -> LedgerEnd:
        """Opens with recovery. Raises RecoveryFailed."""
        ...

    async def recover_and_stop(
        self, ledger_id: int, shape: Shape, password: bytes, after_ms: float
    ) -> None:
        """Begins a recovery and stops it, as if the process had died."""
        ...

    async def read_closed(
        self, ledger_id: int, shape: Shape, password: bytes
    ) -> tuple[LedgerEnd, list[bytes]]:
        """Opens a closed ledger without recovery; returns its end and all payloads."""
        ...


class PythonTakeoverClient:
    """The Python client; each role is a client of its own, with its own connections.

    Args:
        nursery: for the paced writers.
        bookies: ids that may be used, beginning with the ensemble.
    """

    name = "python"

    def __init__(
        self, store: MetadataStore, nursery: trio.Nursery, bookies: Sequence[str], seed: str
    ) -> None:
        self._store = store
        self._nursery = nursery
        self._bookies = tuple(bookies)
        self._rng = random.Random(seed)

    @asynccontextmanager
    async def client(self, store: NarrowedStore | None = None) -> AsyncIterator[LedgerClient]:
        async with LedgerClient(
            store or NarrowedStore(self._store, self._bookies),
            TcpNetwork(),
            rng=random.Random(self._rng.getrandbits(64)),
            now_ms=wall_ms,
            options=ClientOptions(**PATIENT),
        ) as client:
            yield client

    async def begin(self, shape: Shape, password: bytes, pace: Pace) -> PythonPacedWriter:
        paced: PythonPacedWriter = await self._nursery.start(self._write, shape, password, pace)
        return paced

    async def _write(
        self,
        shape: Shape,
        password: bytes,
        pace: Pace,
        task_status: trio.TaskStatus[PythonPacedWriter],
    ) -> None:
        """Runs the writer, whose client lives as long as the takeover."""
        narrowed = NarrowedStore(self._store, self._bookies[: shape.ensemble_size])
        async with self.client(narrowed) as client:
            writer = await client.create_ledger(
                ensemble_size=shape.ensemble_size,
                write_quorum=shape.write_quorum,
                ack_quorum=shape.ack_quorum,
                digest_type=shape.digest_type,
                password=password,
                custom={PLACEMENT_KEY: ",".join(self._bookies).encode()},
            )
            narrowed.visible = self._bookies
            paced = PythonPacedWriter(writer, pace)
            task_status.started(paced)
            await paced.run()
            await trio.sleep_forever()

    async def recover(self, ledger_id: int, shape: Shape, password: bytes) -> LedgerEnd:
        async with self.client() as client:
            try:
                async with client.open_ledger(ledger_id, password=password) as reader:
                    return LedgerEnd(reader.last_add_confirmed, reader.length)
            except LedgerError as error:
                raise RecoveryFailed(f"{type(error).__name__}: {error}") from error

    async def recover_and_stop(
        self, ledger_id: int, shape: Shape, password: bytes, after_ms: float
    ) -> None:
        async with self.client() as client:
            with trio.move_on_after(after_ms / 1000):
                try:
                    await client.open_ledger(ledger_id, password=password)
                except LedgerError:
                    await trio.sleep_forever()

    async def read_closed(
        self, ledger_id: int, shape: Shape, password: bytes
    ) -> tuple[LedgerEnd, list[bytes]]:
        async with (
            self.client() as client,
            client.open_ledger(ledger_id, password=password, recover=False) as reader,
        ):
            assert reader.is_closed, f"ledger {ledger_id} is not closed"
            payloads = []
            if reader.last_add_confirmed >= 0:
                async for entries in reader.entries(0):
                    payloads += [entry.payload for entry in entries]
            return LedgerEnd(reader.last_add_confirmed, reader.length), payloads

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        async with self.client() as client:
            return await client.ledger_metadata(ledger_id)


class PythonPacedWriter:
    """Appends to one ledger at a pace, and records the results."""

    def __init__(self, writer: LedgerWriter, pace: Pace) -> None:
        self.ledger_id = writer.ledger_id
        self._writer = writer
        self._pace = pace
        self._saw = WriterResult()
        self._changed = trio.Event()
        self._closing = trio.Event()
        self._pacing = trio.CancelScope()
        self._has_ended = trio.Event()
        self._is_idle = False
        writer.on_confirmed = self._confirmed
        writer.on_failed = self._failed

    def _confirmed(self, lac: int) -> None:
        self._saw.acked.extend(range(len(self._saw.acked), lac + 1))
        self._notify()

    def _failed(self, error: LedgerError) -> None:
        self._saw.error = type(error).__name__
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def run(self) -> None:
        """Appends at the pace, and then waits for `begin_close` or `finish`."""
        try:
            with self._pacing:
                await self._append_all()
                self._is_idle = True
                self._notify()
                await trio.sleep_forever()
            if self._closing.is_set():
                metadata = await self._writer.close()
                self._saw.closed_at = metadata.last_entry_id
        except LedgerError as error:
            self._saw.error = type(error).__name__
        self._is_idle = True
        self._notify()
        self._has_ended.set()

    async def _append_all(self) -> None:
        for i, (size, pause_ms) in enumerate(
            zip(self._pace.sizes, self._pace.pauses_ms, strict=True)
        ):
            if pause_ms:
                await trio.sleep(pause_ms / 1000)
            while i - len(self._saw.acked) >= self._pace.window:
                if self._saw.error is not None:
                    return
                await self._changed.wait()
            self._append(payload(self._pace.seed, i, size))
            if not pause_ms:
                await trio.lowlevel.checkpoint()

    def _append(self, data: bytes) -> None:
        entry_id = self._writer.append_nowait(data)
        if entry_id != self._saw.pushed:
            self._saw.wrong_ids.append(f"append {self._saw.pushed} got entry id {entry_id}")
        self._saw.pushed += 1

    async def wait_acked(self, count: int) -> None:
        while len(self._saw.acked) < count and self._saw.error is None:
            if self._is_idle and len(self._saw.acked) == self._saw.pushed:
                return
            await self._changed.wait()

    async def begin_close(self) -> None:
        self._closing.set()
        self._pacing.cancel()

    async def finish(self) -> WriterResult:
        self._pacing.cancel()
        await self._has_ended.wait()
        saw = self._saw
        if saw.error is None and saw.closed_at is None:
            try:
                self._append(payload(self._pace.seed, saw.pushed, 1))
                await self._writer.flush()
            except LedgerError as error:
                saw.error = type(error).__name__
        return saw
