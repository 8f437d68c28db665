"""Which ledgers the pages of streams name, for a janitor's search for those that nothing names.

Each page is read once per process. Must never leave out a ledger that a page may name.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stream.core.metadata.segments import Run, Segment
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import NUMBER_MAX
from stream.store.pages import PageLost, PageStore

_log = logging.getLogger(__name__)


class _Page(NamedTuple):
    """What a page names: other pages, by their digests, or ledgers, also of segments that were
    purged: those are garbage of their stream until they are deleted."""

    last_number: int
    pages: tuple[str, ...]
    ledgers: tuple[int, ...]


class PagedLedgers:
    """The ledgers in pages that one janitor knows of."""

    def __init__(self, pages: PageStore) -> None:
        self._store = pages
        self._known: dict[str, _Page] = {}
        """By digest."""

    async def named(self, streams: Sequence[StreamMetadata], wanted: Iterable[int]) -> set[int]:
        """Returns those of these ledgers that pages of the streams name, or may name if they cannot
        be read; and others that they name. Raises MetadataUnavailable."""
        self._forget(streams)
        found = {ledger for page in self._known.values() for ledger in page.ledgers}
        unknown = sorted(set(wanted) - found)
        for stream in streams:
            stack = _trees(stream)
            while stack:
                run, since, until = stack.pop()
                asked = {
                    *_between(unknown, run.ledger_min, run.ledger_max),
                    *_between(unknown, run.merged_min, run.merged_max),
                }
                if not asked or run.last_number < since or run.number > until:
                    continue
                try:
                    spans = await self._store.read(stream.pages.folder, run)
                except PageLost as error:
                    # Damaged, or another janitor has purged it just now.
                    _log.warning("stream=%s: orphans are left: %s", stream.name, error)
                    found |= asked
                    continue
                below = [span for span in spans if isinstance(span, Run)]
                ledgers = tuple(span.ledger_id for span in spans if isinstance(span, Segment))
                stack += [(each, since, until) for each in below]
                found.update(ledgers)
                self._known[run.digest] = _Page(
                    run.last_number, tuple(each.digest for each in below), ledgers
                )
        return found

    def _forget(self, streams: Sequence[StreamMetadata]) -> None:
        """Forgets pages that no stream names any more: they were purged, or lost, or the metadata
        were put back to an older state."""
        named: dict[str, _Page] = {}
        for stream in streams:
            stack = [(run.digest, since) for run, since, _ in _trees(stream)]
            while stack:
                digest, since = stack.pop()
                page = self._known.get(digest)
                if page is not None and page.last_number >= since:
                    named[digest] = page
                    stack += [(below, since) for below in page.pages]
        self._known = named


def _between(ledgers: Sequence[int], least: int, most: int) -> Sequence[int]:
    """Returns those of these ascending ids."""
    return ledgers[bisect_left(ledgers, least) : bisect_right(ledgers, most)]


def _trees(stream: StreamMetadata) -> list[tuple[Run, int, int]]:
    """Returns the pages that the document names, each with the first and the last segment that it
    names them for: of those that were merged lately, as they were, also if they were purged."""
    pages = stream.pages
    found = [(run, pages.first, NUMBER_MAX) for run in pages.roots]
    return found + [(one.run, one.first, one.last) for one in pages.replaced]
