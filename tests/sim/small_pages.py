"""Streams whose pages have two segments, so that a simulation crosses their bounds all the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from stream.core.metadata.page_format import decode_page
from stream.core.metadata.pages import Pages, PagesNeeded, page_name
from stream.core.metadata.segments import Segment
from stream.core.metadata.streams import StreamMetadata
from stream.store.pages import pages_path
from stream.store.streams import StreamStore


@contextmanager
def small_pages() -> Iterator[None]:
    """Has all streams use pages of two, as a context or as a decorator."""
    before = StreamStore.page_sizes
    StreamStore.page_sizes = (2, 2)
    try:
        yield
    finally:
        StreamStore.page_sizes = before


def as_one_list(stream: StreamMetadata, read: Callable[[str], bytes]) -> StreamMetadata:
    """Returns the stream with all its segments in one list; `read` returns the data of a node."""
    while stream.pages:
        try:
            found = [
                part for span in stream.spans() for part in stream.pages.split(span, lambda _: True)
            ]
            segments = tuple(one for one in found if isinstance(one, Segment))
            return replace(stream, segments=segments, pages=Pages(folder=stream.pages.folder))
        except PagesNeeded as needed:
            data = read(f"{pages_path(needed.folder)}/{page_name(needed.run)}")
            loaded = {**stream.pages.loaded, needed.run.digest: decode_page(needed.run, data)}
            stream = replace(stream, pages=replace(stream.pages, loaded=loaded))
    return stream
