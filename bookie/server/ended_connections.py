"""Frees what connections leave behind in cycles of references: errors with their tracebacks, and
objects of libraries.

The collector of a bookie is tuned for millions of ledgers: it examines old objects so seldom that a
peer that connects again and again would take memory almost without bound.
"""

from __future__ import annotations

import gc
from collections.abc import Callable


class EndedConnections:
    """Runs the collector after each `every` connections that have ended. It takes about 0.1 s for a
    million ledgers in memory."""

    def __init__(self, every: int, collect: Callable[[], object] = gc.collect) -> None:
        self._every = every
        self._collect = collect
        self._count = 0

    def count(self) -> None:
        """Counts one connection."""
        self._count += 1
        if self._count % self._every == 0:
            self._collect()
