"""The pages of streams in the metadata store: read when a decision needs them, written before they
are named.

Paths: `<namespace>/pages/<stream>~<created_ms>~<ledger>/<bucket>/<number>-<digest>`; the ledger is
that of the first segment of the first page. A page never changes; a writer that made one and lost
its compare-and-set leaves a page that the next change of the stream makes again and finds there, or
that goes with the last segment of the stream. Core: core/metadata/pages.py.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar
from weakref import WeakKeyDictionary

from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import Change, Check, Create, Delete, MetadataStore
from stream.core.metadata.page_format import decode_page, paged
from stream.core.metadata.pages import NewPage, PagesNeeded, page_name
from stream.core.metadata.segments import Run, Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import check_name

PAGES_KEPT_MAX = 256
"""Decoded pages that are kept for each metadata store, at most 64 segments in each."""
SEGMENTS_LISTED_MAX = 1000
_CREATED_AT_ONCE = 20
_log = logging.getLogger(__name__)

_kept: WeakKeyDictionary[MetadataStore, dict[str, tuple[Span, ...]]] = WeakKeyDictionary()

T = TypeVar("T")


class PageLost(MetadataCorrupt):
    """A page of a stream is missing or damaged; `run` is what it has in short."""

    def __init__(self, folder: str, path: str, run: Run, problem: str) -> None:
        super().__init__(
            f"stream {folder.partition('~')[0]!r}: the metadata node {path}, which lists its "
            f"segments {run.number} to {run.last_number} ({run.count:,} segments, "
            f"{run.records:,} records from sequence {run.first_sequence:,} on), {problem}. Other "
            f"segments can be read. Cure: put the node back from a backup of the metadata, or "
            f"truncate the stream to {run.last_number + 1}:0:0"
        )
        self.folder, self.path, self.run, self.problem = folder, path, run, problem

    def __reduce__(self) -> tuple[type[PageLost], tuple[str, str, Run, str]]:
        return type(self), (self.folder, self.path, self.run, self.problem)


def forget_pages(store: MetadataStore) -> None:
    """Forgets the pages that were read from this store, as a new process would not know them."""
    _kept.pop(store, None)


def pages_path(folder: str) -> str:
    """Returns the path of the pages of one stream, whose folder is "namespace/name"."""
    namespace, _, name = folder.partition("/")
    check_name(namespace, "namespace")
    return f"/ledgerstream/namespaces/{namespace}/pages/{name}"


def new_folder(namespace: str, stream: StreamMetadata) -> str:
    """Returns where the pages of a stream without any will be.

    Two streams may get the same name and time, if one is restored under another name, but never the
    same ledger.
    """
    return f"{namespace}/{stream.name}~{stream.created_ms}~{stream.segments[0].ledger_id}"


def none_may_lack(*_: object) -> bool:
    """No page may be missing."""
    return False


def all_may_lack(*_: object) -> bool:
    """What is left is decided without pages that are missing: for truncation and purging."""
    return True


class PageStore:
    """Pages of one metadata store. Stateless, but for pages that were read, which all that share
    the store share."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def resolve(
        self,
        stream: StreamMetadata,
        ask: Callable[[StreamMetadata], T],
        *,
        may_lack: Callable[[Run], bool] = none_may_lack,
    ) -> T:
        """Returns what `ask`, a pure function, says of the stream, once the pages that it needs
        were read.

        Pages that are missing or damaged count as empty if `may_lack` says so: only what was
        truncated, or is to be. Raises what `ask` raises, PageLost, MetadataUnavailable.
        """

        def ask_one(streams: Sequence[StreamMetadata]) -> T:
            return ask(streams[0])

        return await self.resolve_all([stream], ask_one, may_lack=may_lack)

    async def resolve_all(
        self,
        streams: Sequence[StreamMetadata],
        ask: Callable[[Sequence[StreamMetadata]], T],
        *,
        may_lack: Callable[[Run], bool] = none_may_lack,
        loaded: dict[str, tuple[Span, ...]] | None = None,
    ) -> T:
        """As `resolve`, for a question about several streams. `loaded` are pages that were read
        for an earlier one; those for this one are added."""
        loaded = {} if loaded is None else loaded
        lost: set[str] = set()
        for stream in streams:
            loaded |= stream.pages.loaded
        known = [stream.with_pages_read(loaded, lost) for stream in streams]
        while True:
            try:
                return ask(known)
            except PagesNeeded as error:
                needed = error.needed
            for folder, run in needed:
                try:
                    loaded[run.digest] = await self.read(folder, run)
                except PageLost as error:
                    if not may_lack(run):
                        raise
                    _log.warning("decided without a page that was truncated: %s", error)
                    lost.add(run.digest)

    async def read(self, folder: str, run: Run) -> tuple[Span, ...]:
        """Returns what a page has. Raises PageLost, MetadataUnavailable."""
        pages = _kept.setdefault(self._store, {})
        kept = pages.pop(run.digest, None)
        if kept is None:
            path = f"{pages_path(folder)}/{page_name(run)}"
            try:
                kept = decode_page(run, (await self._store.get(path)).data)
            except NoSuchNode:
                raise PageLost(folder, path, run, "is missing") from None
            except MetadataCorrupt as error:
                raise PageLost(folder, path, run, f"is damaged ({error})") from None
        pages[run.digest] = kept  # the last one was used last
        while len(pages) > PAGES_KEPT_MAX:
            del pages[next(iter(pages))]
        return kept

    async def walk(self, stream: StreamMetadata, since: int = 0) -> AsyncGenerator[Segment, None]:
        """Yields all segments from number `since` on, in order, a page in memory at a time. Raises
        PageLost, MetadataUnavailable."""
        since = max(since, stream.pages.first)
        stack: list[Span] = [*stream.segments[::-1], *stream.pages.roots[::-1]]
        while stack:
            span = stack.pop()
            if span.last_number < since:
                continue
            if isinstance(span, Segment):
                yield span
                continue
            spans = await self.read(stream.pages.folder, span)
            known = replace(stream.pages, loaded={span.digest: spans})
            stack += known.below(span)[::-1]

    async def listed(
        self, stream: StreamMetadata, since: int = 0, limit: int = SEGMENTS_LISTED_MAX
    ) -> list[Segment]:
        """Returns up to `limit` segments from number `since` on. Raises as `walk`; InvalidArgument
        for a limit below 0."""
        if limit < 0:
            raise InvalidArgument(f"limit is {limit}: it must be 0 or more")
        found: list[Segment] = []
        async with aclosing(self.walk(stream, since)) as segments:
            async for segment in segments:
                if len(found) == limit:
                    break
                found.append(segment)
        return found

    async def prepare(
        self,
        namespace: str,
        stream: StreamMetadata,
        is_same: Check,
        segments_per_page: int,
        runs_per_page: int,
    ) -> tuple[StreamMetadata, list[Change]]:
        """Writes the pages that the stream makes, while `is_same` holds. Returns the stream as it
        is to be stored, and the changes that go with it: pages that no segment needs any more are
        removed.

        Raises MetadataConflict if `is_same` fails, NoSuchNode if its node is gone.
        """
        folder = stream.pages.folder
        if stream.segments and not folder:
            folder = new_folder(namespace, stream)
        stored, made = paged(stream, folder, segments_per_page, runs_per_page)
        path = pages_path(stored.pages.folder) if stored.pages.folder else ""
        await self.create(path, made, is_same, set())
        dead: list[Change] = [Delete(f"{path}/{name}") for name in stored.pages.dead]
        pages = replace(stored.pages, made=(), dead=(), lost=frozenset(), loaded={})
        return replace(stored, pages=pages), dead

    def forget(self, dead: Sequence[Change]) -> None:
        """Has these pages read again, one of which is missing."""
        for change in dead:
            _kept.setdefault(self._store, {}).pop(change.path.rpartition("-")[2], None)

    async def create(
        self, path: str, made: Sequence[NewPage], is_same: Check, known: set[str]
    ) -> None:
        """Writes these pages below `path`, except those of which the names are `known`, to which
        it adds them, also those of which it is not known whether they were written. Raises as
        `prepare`."""
        left = [page for page in made if page_name(page.run) not in known]
        for begin in range(0, len(left), _CREATED_AT_ONCE):
            some = left[begin : begin + _CREATED_AT_ONCE]
            names = {page_name(page.run) for page in some}
            known.update(names)
            try:
                await self._create(path, some, is_same)
            except (MetadataConflict, NoSuchNode):
                known.difference_update(names)
                raise

    async def remove(self, path: str, names: Iterable[str]) -> None:
        """Removes pages below `path` that no document names, nor ever will."""
        for name in names:
            try:
                await self._store.delete(f"{path}/{name}")
            except NoSuchNode:
                pass

    async def _create(self, path: str, made: Sequence[NewPage], is_same: Check) -> None:
        creates = [Create(f"{path}/{page_name(page.run)}", page.data) for page in made]
        try:
            await self._store.transaction([is_same, *creates])
        except NodeExists:
            if len(made) > 1:
                for page in made:
                    await self._create(path, [page], is_same)
                return
            # Left by a writer that did not come to name it; a damaged one is found by its digest.
            try:
                node = await self._store.get(creates[0].path)
                if node.data != creates[0].data:
                    await self._store.put(creates[0].path, creates[0].data, node.version)
            except NoSuchNode:
                raise MetadataConflict(f"{creates[0].path} was purged meanwhile") from None

    async def remove_all(self, folder: str) -> None:
        """Removes what is left in the folder of a stream that has no segments any more."""
        if folder:
            await self._remove(pages_path(folder))

    async def remove_unnamed(self, namespace: str, stream: StreamMetadata) -> None:
        """Removes the pages of a writer that died before it named the first one, from a stream that
        makes none any more."""
        if stream.segments and not stream.pages.folder:
            await self.remove_all(new_folder(namespace, stream))

    async def _remove(self, path: str) -> None:
        for name in await self._store.children(path):
            await self._remove(f"{path}/{name}")
        try:
            await self._store.delete(path)
        except (NoSuchNode, InvalidArgument):
            pass  # it was removed, or has a node again, of a writer that will conflict
