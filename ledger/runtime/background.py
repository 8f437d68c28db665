"""A nursery for the background tasks of an object, which raises a lone error by itself.

trio's nursery wraps even the body's lone error in an exception group, but callers of a store write
`except NoSuchLedger`. If a task fails as well, the group is raised unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Opens a nursery whose tasks are cancelled when the block ends."""
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
