"""stream.reading.backward for asyncio.

Generated from stream/reading/backward.py by `make faces`. Not to be edited.
"""

from __future__ import annotations

from types import TracebackType

from stream.aio.bridge import Bridge
from stream.core.entry.records import RecordBatch
from stream.core.position import Position
from stream.reading.backward import BackwardBatches as TrioBackwardBatches


class BackwardBatches:
    """Made by `Namespace.backward_batches`: an async iterator of batches, the newest first.

    The records within a batch are in the order of the stream. A call that was cancelled or failed
    loses nothing: the next one continues before `position`. Use it in `async with`, or `aclose` it.
    """

    _bridge: Bridge
    _inner: TrioBackwardBatches

    @classmethod
    def _of(cls, bridge: Bridge, holder: TrioBackwardBatches) -> BackwardBatches:
        made = cls.__new__(cls)
        made._bridge, made._inner = bridge, holder
        return made

    @property
    def stream(self) -> str:
        return self._inner.stream

    async def __aenter__(self) -> BackwardBatches:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the ledger. Closing twice is allowed."""
        await self._bridge.call(lambda: self._inner.aclose())

    @property
    def position(self) -> Position | None:
        """The position of the first record returned so far: records before it come next. None
        before the first call, if none was given."""
        return self._inner.position

    def __aiter__(self) -> BackwardBatches:
        return self

    async def __anext__(self) -> RecordBatch:
        """Returns the records before those of the last call.

        Raises NoSuchStream, and what reading ledgers raises. Records that were truncated meanwhile
        no longer exist: the stream begins behind them.
        """
        inner = self._inner
        return await self._bridge.call(lambda: anext(inner), inner._take_back)
