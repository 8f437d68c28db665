"""CursorBase: keeps a cursor's position in the caller's thread; many steps cross in one hop.

Generated from stream/aio by `make faces`. Not to be edited.
"""

from __future__ import annotations

import copy

from ledger.errors import InvalidArgument
from ledger.runtime.bridge import Job
from stream.blocking.bridge import Bridge
from stream.consuming.cursor import Cursor as TrioCursor
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import Position


class CursorBase:
    """The hand-written half of Cursor. `_inner` follows `_to` in the trio thread."""

    _bridge: Bridge
    _inner: TrioCursor
    _to: Position
    _is_asked = False

    def _advance(self, to: Position | Record | RecordBatch) -> None:
        error = self._inner.error
        if error is not None:
            raise copy.copy(error)
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
        if position <= self._to:
            return
        self._to = position
        if not self._is_asked:
            # The job resets it first: while it is set, a job is certain to follow.
            self._is_asked = True
            try:
                self._bridge.post(Job(self._follow))
            except BaseException:
                self._is_asked = False
                raise

    def _follow(self) -> None:
        self._is_asked = False
        if self._inner.error is None:
            self._inner.advance(self._to)
