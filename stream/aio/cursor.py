"""stream.consuming.cursor for asyncio.

Generated from stream/consuming/cursor.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from ledger.errors import LedgerError
from ledger.runtime.opening import Opened
from stream.aio.bridge import Bridge
from stream.aio.cursor_base import CursorBase
from stream.consuming.cursor import Cursor as TrioCursor
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import Position
from stream.reading.lag import CursorLag


class Cursor(CursorBase, Opened):
    """Made by `Namespace.cursor`; an `async with` object for one consumer.

    `position` is where the next record to be handled is. `advance` moves it, and it is stored in
    the background, at most once per interval, and at the end of the block. After a crash reading
    continues at the last stored position: records are handled at least once.
    """

    _bridge: Bridge
    _inner: TrioCursor

    @classmethod
    def _of(cls, bridge: Bridge, holder: TrioCursor) -> Cursor:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder
        made._to = holder.position
        return made

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def position(self) -> Position:
        return self._to

    @property
    def committed(self) -> Position:
        """The position that was stored last, as far as this object knows."""
        return self._inner.committed

    @property
    def error(self) -> LedgerError | None:
        """Why nothing can be committed any more, if so."""
        return self._inner.error

    def advance(self, to: Position | Record | RecordBatch) -> None:
        """Marks everything before a position, or up to and including a record or batch, as handled.

        Moves forward only; an earlier position changes nothing. It is stored in the background.
        Raises CursorMoved once another client was found to have moved the cursor.
        """
        self._advance(to)

    async def commit(self) -> Position:
        """Stores `position` now; returns it when it is durable. Does nothing if it has not changed.

        Raises CursorMoved, NoSuchCursor (both final), MetadataUnavailable (it may be stored; it is
        tried again in the background).
        """
        return await self._bridge.call(lambda: self._inner.commit())

    async def lag(self) -> CursorLag:
        """Returns how far `position` is behind the end of the stream, asked of metadata and bookies
        now.

        Raises NoSuchStream, and what reading ledgers raises.
        """
        return await self._bridge.call(lambda: self._inner.lag())

    async def check(self) -> None:
        """Checks whether the cursor is still ours. Raises CursorMoved, MetadataUnavailable."""
        await self._bridge.call(lambda: self._inner.check())

    async def close(self) -> None:
        """Stores the position, and closes a cursor that was opened without a block."""
        await self._leave()
