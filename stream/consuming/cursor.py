"""Cursor: a durable position in one stream, committed at most once per interval.

Core: core/metadata/cursors.py. Must never commit over another client's commit, never move back, and
never take an unknown outcome for a failure: a late commit of ours is recognized by its token, and
the cursor continues from it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ledger.client import LedgerClient
from ledger.errors import (
    InvalidArgument,
    LedgerClosed,
    LedgerError,
    MetadataConflict,
    RetryableError,
)
from ledger.runtime.background import open_background
from ledger.runtime.opening import Closable
from stream.core.entry.records import Record, RecordBatch
from stream.core.metadata.cursors import CursorMetadata, CursorMoved
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import EARLIEST, Position, Start
from stream.errors import NoSuchCursor
from stream.reading.lag import CursorLag, lag_of
from stream.reading.seek import find
from stream.store.cursors import CursorStore, new_cursor
from stream.store.streams import UPDATE_TRIES_MAX, StreamStore

_log = logging.getLogger(__name__)

COMMIT_INTERVAL_MS = 1000
LEAVE_TIMEOUT_S = 2.0
"""How long the end of a cancelled block waits for its last commit."""


class Cursor(Closable):
    """Made by `Namespace.cursor`; an `async with` object for one consumer.

    `position` is where the next record to be handled is. `advance` moves it, and it is stored in
    the background, at most once per interval, and at the end of the block. After a crash reading
    continues at the last stored position: records are handled at least once.
    """

    def __init__(
        self,
        client: LedgerClient,
        namespace: str,
        stream: StreamMetadata,
        stored: CursorMetadata,
        version: int,
        *,
        token: str,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
    ) -> None:
        self.name = stored.name
        self.stream = stored.stream
        self.position = stored.position
        self.token = token
        self._client = client
        self._namespace = namespace
        self._metadata = stream
        self._cursors = CursorStore(client.store)
        self._stored = stored
        self._version = version
        self._interval_s = check_interval_ms(commit_interval_ms) / 1000
        self._putting = trio.Lock()
        self._advanced = trio.Event()
        self._error: LedgerError | None = None
        self._failing_since_s: float | None = None

    @property
    def committed(self) -> Position:
        """The position that was stored last, as far as this object knows."""
        return self._stored.position

    @property
    def epoch(self) -> int:
        """The epoch of the holder of the cursor in its group; 0 outside of groups."""
        return self._stored.epoch

    @property
    def error(self) -> LedgerError | None:
        """Why nothing can be committed any more, if so."""
        return self._error

    @property
    def failing_since_s(self) -> float | None:
        """Since when (`trio.current_time()`) every attempted commit has failed; None if none
        has."""
        return self._failing_since_s

    def advance(self, to: Position | Record | RecordBatch) -> None:
        """Marks everything before a position, or up to and including a record or batch, as handled.

        Moves forward only; an earlier position changes nothing. It is stored in the background.
        Raises CursorMoved once another client was found to have moved the cursor.
        """
        if self._error is not None:
            raise self._error
        if type(to) is Record:
            position = to.position.after
        elif type(to) is RecordBatch:
            position = to.after
        elif isinstance(to, Position):
            position = to
        else:
            raise InvalidArgument(
                f"a cursor advances to a Position, Record or RecordBatch, not {type(to).__name__}"
            )
        if position > self.position:
            self.position = position
            self._advanced.set()

    async def commit(self) -> Position:
        """Stores `position` now; returns it when it is durable. Does nothing if it has not changed.

        Raises CursorMoved, NoSuchCursor (both final), MetadataUnavailable (it may be stored; it is
        tried again in the background).
        """
        await self._put(is_release=False)
        return self._stored.position

    async def lag(self) -> CursorLag:
        """Returns how far `position` is behind the end of the stream, asked of metadata and bookies
        now.

        Raises NoSuchStream, and what reading ledgers raises.
        """
        return await lag_of(self._client, self._namespace, self._metadata, self.position)

    def _description(self) -> str:
        return f"{self.name!r} of {self.stream!r} at {self.position}"

    # For the owner of the cursor

    async def release(self) -> None:
        """Commits, and releases the cursor to its group. Raises as `commit`."""
        await self._put(is_release=True)
        self.end()

    async def check(self) -> None:
        """Checks whether the cursor is still ours. Raises CursorMoved, MetadataUnavailable."""
        async with self._putting:
            if self._error is not None:
                raise self._error
            await self._look_again(self.position)

    def end(self) -> None:
        """Ends the cursor: nothing more can be committed."""
        if self._error is None:
            self._error = LedgerClosed(f"cursor {self.name!r} of {self.stream!r} is closed")

    async def run(self) -> None:
        """Commits what was advanced, at most once per interval, until nothing more can be
        committed."""
        while True:
            await self._advanced.wait()
            try:
                await self._put(is_release=False)
            except RetryableError as error:
                _log.info("cursor=%s stream=%s: %s", self.name, self.stream, error)
                self._advanced.set()
            except LedgerError:
                return  # the next advance or commit raises it
            await trio.sleep(self._interval_s)

    async def _put(self, *, is_release: bool) -> None:
        async with self._putting:
            for _ in range(UPDATE_TRIES_MAX):
                if self._error is not None:
                    raise self._error
                if self._advanced.is_set():  # otherwise `run` waits for this event
                    self._advanced = trio.Event()
                now_ms, position = self._client.now_ms(), self.position
                if is_release:
                    wanted = self._stored.released(position, now_ms)
                elif position == self._stored.position:
                    return
                else:
                    wanted = self._stored.committed(position, self.token, now_ms)
                try:
                    version = await self._cursors.put(self._namespace, wanted, self._version)
                except MetadataConflict:
                    if await self._look_again(position, is_release=is_release):
                        return
                except NoSuchCursor as error:
                    self._error = error
                    self._advanced.set()  # `run` ends
                    raise
                except BaseException as error:
                    # Also when cancelled: it is unknown whether it was stored.
                    self._advanced.set()
                    if isinstance(error, RetryableError) and self._failing_since_s is None:
                        self._failing_since_s = trio.current_time()
                    raise
                else:
                    self._note_stored(wanted, version)
                    return
        raise MetadataConflict(f"cursor {self.name!r}: its version rose {UPDATE_TRIES_MAX} times")

    async def _look_again(self, position: Position, *, is_release: bool = False) -> bool:
        """Continues from a late change of our own, or raises CursorMoved.

        Returns True if it is a release of ours that happened after all.
        """
        slot = await self._cursors.read_slot(self._namespace, self._metadata, self.name)
        present = slot.cursor
        if present is not None and slot.version is not None:
            if (present.epoch, present.token) == (self.epoch, self.token):
                self._note_stored(present, slot.version)
                return False
            if slot.version == self._version:
                return False  # neither this object nor another has changed it since
            released = (self.epoch, "", "", position)
            found = (present.epoch, present.holder, present.token, present.position)
            if is_release and found == released:
                return True
        theirs = None if present is None else present.position
        self._error = CursorMoved(self.stream, self.name, position, theirs)
        self._advanced.set()  # `run` ends
        raise self._error

    def _note_stored(self, stored: CursorMetadata, version: int) -> None:
        self._stored, self._version = stored, version
        self._failing_since_s = None


@asynccontextmanager
async def open_cursor(
    client: LedgerClient,
    store: StreamStore,
    namespace: str,
    stream: str,
    name: str,
    *,
    start: Start = EARLIEST,
    commit_interval_ms: int = COMMIT_INTERVAL_MS,
) -> AsyncIterator[Cursor]:
    """Opens the cursor of this name, created at `start` if the stream has none."""
    check_interval_ms(commit_interval_ms)
    metadata = await store.read_living_stream(namespace, stream)
    cursors = CursorStore(client.store)
    while True:
        slot = await cursors.read_slot(namespace, metadata, name)
        if slot.cursor is not None and slot.version is not None:
            stored, version = slot.cursor, slot.version
            break
        position = await find(client, metadata, start, namespace)
        stored = new_cursor(metadata, name, position, slot.last_epoch, client.now_ms())
        try:
            version = await cursors.put(namespace, stored, slot.version)
        except (MetadataConflict, NoSuchCursor):
            continue  # another client created it meanwhile
        break
    cursor = Cursor(
        client, namespace, metadata, stored, version,
        token=f"{client.rng.getrandbits(64):016x}", commit_interval_ms=commit_interval_ms,
    )  # fmt: skip
    async with open_background() as nursery:
        nursery.start_soon(cursor.run)
        try:
            yield cursor
        except BaseException:
            # Handled records are committed even if the block failed or was cancelled.
            with trio.move_on_after(LEAVE_TIMEOUT_S, shield=True):
                try:
                    await cursor.commit()
                except LedgerError as error:
                    _log.info("cursor=%s stream=%s: not committed: %s", name, stream, error)
            raise
        else:
            await cursor.commit()
        finally:
            cursor.end()


def check_interval_ms(commit_interval_ms: int) -> int:
    """Returns the interval. Raises InvalidArgument."""
    if not 0 <= commit_interval_ms <= 3_600_000:
        raise InvalidArgument(f"commit_interval_ms is {commit_interval_ms}, legal is 0 to 3600000")
    return commit_interval_ms
