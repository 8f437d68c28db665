"""Background tasks of an object, whose block raises what its body raised and no group.

A nursery wraps even the body's lone error in an exception group; callers of a store want to
write `except NoSuchLedger`. If a task fails too, the group leaves as it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled when the block ends."""
    only: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        only = group.exceptions[0]
    if only is not None:
        raise only
