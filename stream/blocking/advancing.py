"""A cursor's position as its caller advances it: one hop for many steps.

Generated from stream/aio by `make faces`. Not to be edited.
"""

from __future__ import annotations

import copy

from ledger.errors import InvalidArgument
from stream.blocking.bridge import Bridge
from stream.consuming.cursor import Cursor as TrioCursor
from stream.core.entry.records import Record, RecordBatch
from stream.core.position import Position


class Advancing:
    """What Cursor does with positions. `_inner` follows `_to` in the trio thread."""

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
            # Reset by the job as its first act: who sees it set is sure that a job will follow.
            self._is_asked = True
            try:
                self._bridge.post(self._follow)
            except BaseException:
                self._is_asked = False
                raise

    def _follow(self) -> None:
        self._is_asked = False
        if self._inner.error is None:
            self._inner.advance(self._to)
