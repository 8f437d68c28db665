"""Fetches the entries of a range in order, ahead of their consumer. Bounded by bytes.

Each request in flight is a *span* of entries with a task of its own; spans are delivered in
order. The tasks live in the client's nursery, so the iterator may simply be dropped: what was
requested is discarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from ledger.core.entry import Entry
from ledger.errors import LedgerClosed, LedgerError
from ledger.reading.replica_fetch import ReplicaFetch

_SPANS_MAX = 64

Spawn = Callable[[Callable[..., Awaitable[Any]], Any], None]
"""Starts an async function with one argument as a task that outlives the call."""


@dataclass(slots=True)
class _Span:
    first: int
    last: int
    entries: list[Entry] = field(default_factory=list)
    error: LedgerError | None = None
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class EntryRange:
    """Iterates over entries first..last in lists as they arrive. For one consumer."""

    def __init__(
        self, fetch: ReplicaFetch, spawn: Spawn, first: int, last: int, *, bytes_max: int
    ) -> None:
        self._fetch = fetch
        self._spawn = spawn
        self._next = first
        self._last = last
        self._bytes_max = bytes_max
        self._spans: deque[_Span] = deque()
        self._error: LedgerError | None = None

    def __aiter__(self) -> EntryRange:
        return self

    async def __anext__(self) -> list[Entry]:
        """Returns the next entries, at least one. After an error it raises the same error again."""
        if self._error is not None:
            raise self._error
        if not self._spans:
            if self._next > self._last:
                await trio.lowlevel.checkpoint()
                raise StopAsyncIteration
            if not self._fetch.is_size_known or self._fits_one_span():
                # No read-ahead to gain: no task either.
                entries = await self._fetch.fetch(self._next, self._last)
                self._next += len(entries)
                return entries
        self._fill()
        span = self._spans[0]
        await span.done.wait()
        entries = []
        while self._spans and self._spans[0].done.is_set():
            span = self._spans[0]
            if span.error is not None:
                self._error = span.error
                await self.aclose()
                if entries:
                    return entries
                raise span.error
            # A batch is delivered as it is, single entries of a striped ledger together.
            if entries and len(entries) + len(span.entries) > self._fetch.batch_entries:
                break
            entries = entries + span.entries if entries else span.entries
            self._spans.popleft()
        self._fill()
        return entries

    async def aclose(self) -> None:
        """Stops reading ahead."""
        self._next = self._last + 1
        while self._spans:
            self._spans.popleft().scope.cancel()

    def _fits_one_span(self) -> bool:
        return self._last - self._next < self._fetch.span_entries(self._next, self._last)

    def _fill(self) -> None:
        """Requests as much as the bound allows, at least one span."""
        entries_max = max(1, int(self._bytes_max / (self._fetch.entry_bytes + 100)))
        entries = sum(span.last - span.first + 1 for span in self._spans)
        while self._next <= self._last and len(self._spans) < _SPANS_MAX:
            count = self._fetch.span_entries(self._next, self._last)
            if self._spans and entries + count > entries_max:
                return
            span = _Span(self._next, self._next + count - 1)
            self._spawn(self._run, span)
            self._spans.append(span)
            self._next += count
            entries += count

    async def _run(self, span: _Span) -> None:
        try:
            with span.scope:
                first = span.first
                while first <= span.last:
                    entries = await self._fetch.fetch(first, span.last)
                    span.entries = span.entries + entries if span.entries else entries
                    first += len(entries)
        except LedgerError as error:
            span.error = error
        finally:
            if span.error is None and len(span.entries) <= span.last - span.first:
                span.error = LedgerClosed("the read was given up: its client was closed")
            span.done.set()
