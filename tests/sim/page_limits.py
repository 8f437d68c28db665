"""Streams whose pages have two segments, and are purged a few at a time, so that a simulation
crosses these bounds all the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

from stream.core import segment_merging, trash
from stream.core.metadata.page_format import decode_page
from stream.core.metadata.pages import Pages, page_name
from stream.core.metadata.segments import Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.store.pages import pages_path
from stream.store.streams import StreamStore

PURGED_AT_ONCE = 20


@contextmanager
def page_limits(segments: int = 2, runs: int = 2) -> Iterator[None]:
    """Has all streams use small pages, as a context or as a decorator."""
    before = StreamStore.page_sizes, trash.PURGED_AT_ONCE
    StreamStore.page_sizes, trash.PURGED_AT_ONCE = (segments, runs), PURGED_AT_ONCE  # type: ignore[misc]
    try:
        yield
    finally:
        StreamStore.page_sizes, trash.PURGED_AT_ONCE = before  # type: ignore[misc]


@contextmanager
def small_merges() -> Iterator[None]:
    """Has a few fresh segments merged at a time, as a context or as a decorator."""
    names = ("LEDGERS_MIN", "LEDGERS_MAX", "SEGMENTS_MAX", "AGE_MS", "RETENTION_SHARE")
    before = [getattr(segment_merging, name) for name in names]
    for name, value in zip(names, (2, 5, 48, 0, 1), strict=True):
        setattr(segment_merging, name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(segment_merging, name, value)


def replaced_ledgers(
    stream: StreamMetadata, read: Callable[[str], bytes]
) -> dict[int, tuple[int, int]]:
    """Returns the ledgers of which all segments were merged lately: when, and the last of them;
    `read` as for `as_one_list`."""
    found: dict[int, tuple[int, int]] = {}
    for one in stream.pages.replaced:
        stack: list[Span] = [one.run]
        while stack:
            span = stack.pop()
            if not one.has(span):
                continue
            if isinstance(span, Segment):
                _, last = found.get(span.ledger_id, (0, 0))
                found[span.ledger_id] = one.replaced_ms, max(last, span.number)
            else:
                data = read(f"{pages_path(stream.pages.folder)}/{page_name(span)}")
                stack += _decoded(span, data)
    return found


def as_one_list(stream: StreamMetadata, read: Callable[[str], bytes]) -> StreamMetadata:
    """Returns the stream with all its segments in one list; `read` returns the data of a node."""
    older: list[Segment] = []
    stack: list[Span] = list(stream.pages.roots[::-1])
    while stack:
        span = stack.pop()
        if isinstance(span, Segment):
            older.append(span)
        elif span.last_number >= stream.pages.first:
            data = read(f"{pages_path(stream.pages.folder)}/{page_name(span)}")
            known = replace(stream.pages, loaded={span.digest: _decoded(span, data)})
            stack += known.below(span)[::-1]
    pages = Pages(folder=stream.pages.folder)
    return replace(stream, segments=(*older, *stream.segments), pages=pages)


_decoded = lru_cache(10_000)(decode_page)
