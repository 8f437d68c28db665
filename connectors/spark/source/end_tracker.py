"""Keeps the end of every stream known, so that asking for it costs nothing when nothing happened.

A stream is followed by a watch of its metadata and a long poll of its open ledger. After news of a
stream it is left alone until somebody has taken them: work goes with the queries, not with the
appends. Streams beyond the first 200 are not followed but looked at in turn. Lives on one loop;
must never take a stream for gone because the store did not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import dataclass, field

import trio

from connectors.spark.options.options import Selection
from connectors.spark.source.discovery import discover, is_meant, read_metadata
from connectors.spark.source.stream_offsets import StreamPlaces
from ledger.client import LedgerClient
from ledger.errors import LedgerError, NoSuchEntry, NoSuchLedger, RetryableError
from ledger.metastore.base import Node
from ledger.runtime.concurrency import map_bounded
from stream.core.metadata.format import decode_stream
from stream.core.metadata.streams import Segment, StreamMetadata
from stream.errors import IsPartitioned
from stream.store.streams import folder_path, stream_path

_log = logging.getLogger(__name__)

FOLLOWED_MAX = 200
"""Streams that are followed; each has two tasks and a long poll."""
FRESH_S = 0.02
"""News older than this are looked at once more: there is more of it by then."""
GLANCED_AT_MAX = 4
"""So few streams are asked for their ends before it is said that there is nothing."""
GLANCE_S = 1.0
SWEEP_PAUSE_S = 1.0
"""Between looks at the streams that are not followed; a look at all of them takes no more than
half of the time."""
_POLL_S = 30.0
_PAUSE_S = 0.5
_LISTING_PAUSE_S = 0.1
_LOOK_S = 10.0
"""How long bookies may be silent where an exact answer is needed."""


@dataclass(slots=True, eq=False)
class _Followed:
    """A stream that is followed, there or not."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    changed: trio.Event = field(default_factory=trio.Event)
    """Its metadata changed."""
    has_news: bool = False
    is_known: bool = False
    """Whether the news are all there was when they came."""
    told_s: float = 0.0
    taken: trio.Event = field(default_factory=trio.Event)

    def tell_changed(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    def tell(self, *, is_known: bool) -> None:
        self.has_news, self.is_known, self.told_s = True, is_known, trio.current_time()

    def take(self) -> None:
        self.has_news = False
        taken, self.taken = self.taken, trio.Event()
        taken.set()


class Followers:
    """The streams of a selection, as far as they are known.

    `begin` finds them; `run` is the task that follows them then. All for one loop, but `version`
    may be read anywhere: as long as it is the same nothing has changed.
    """

    def __init__(
        self, client: LedgerClient, selection: Selection, *, followed_max: int = FOLLOWED_MAX
    ) -> None:
        self.client = client
        self.version = 0
        self.streams: dict[str, StreamPlaces] = {}
        """Those that are there now, by full name."""
        self.failure: LedgerError | None = None
        """What kept a stream from being followed; it is for whoever asks next."""
        self._selection = selection
        self._followed_max = followed_max
        self._followed: dict[str, _Followed] = {}
        self._swept: dict[str, None] = {}
        self._nursery: trio.Nursery | None = None

    # For whoever plans

    async def begin(self, may_be_gone: Collection[str] = ()) -> None:
        """Finds the streams and their ends of now. Those that may be gone may also come back.

        Raises NoSuchNamespace, and what reading ledgers raises.
        """
        found = await discover(self.client, self._selection)
        # One that is gone may be made again, under a node that is there all the time.
        gone = [name for name in may_be_gone if is_meant(self._selection, name)]
        names = dict.fromkeys((*found.names, *found.missing, *gone))
        await map_bounded(names, self._look_closely)
        for name in names:
            self._join(name)

    async def catch_up(self) -> None:
        """Makes ends known of which there are news, as they are now; takes the news."""
        now_s = trio.current_time()
        news = [(name, each) for name, each in self._followed.items() if each.has_news]
        stale = [name for name, each in news if not each.is_known or now_s - each.told_s > FRESH_S]
        await map_bounded(stale, self._look_again)
        for _, each in news:
            each.take()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    async def look_closely(self) -> None:
        """Asks for everything anew: which streams there are, and what is confirmed of each now.

        Raises NotEnoughBookies, MetadataUnavailable when that cannot be known.
        """
        found = await discover(self.client, self._selection)
        await map_bounded(dict.fromkeys((*found.names, *self._known)), self._look_closely)
        for name in found.names:
            self._join(name)

    async def glance(self) -> None:
        """Looks whether there is something of which no news has come yet, if the streams are few.

        News are a few milliseconds late, and who has just been told that his record is durable
        may ask Spark for it at once (`processAllAvailable`).
        """
        if len(self._known) <= GLANCED_AT_MAX:
            with trio.move_on_after(GLANCE_S):
                await map_bounded(list(self._known), self._sweep_one)

    @property
    def _known(self) -> dict[str, None]:
        """All that were ever meant and may be there again."""
        return dict.fromkeys((*self._followed, *self._swept))

    async def refresh(self, name: str) -> None:
        """Reads the metadata of a stream anew."""
        self._note(name, await read_metadata(self.client, name))

    async def _look_closely(self, name: str) -> None:
        deadline = trio.current_time() + _LOOK_S
        while True:
            try:
                await self.refresh(name)
                if name in self.streams:
                    await self.streams[name].look()
            except (NoSuchLedger, NoSuchEntry):
                # The segment was purged between two looks.
                if trio.current_time() > deadline:
                    raise
            except RetryableError as error:
                if trio.current_time() > deadline:
                    raise
                _log.info("stream=%s: asking again: %s", name, error)
                await trio.sleep(_PAUSE_S)
            else:
                return

    async def _look_again(self, name: str) -> None:
        """As far as it goes: who follows the stream meets what is wrong with it, too."""
        places = self.streams.get(name)
        if places is None:
            return
        try:
            await places.look()
        except (RetryableError, NoSuchLedger, NoSuchEntry) as error:
            _log.info("stream=%s: its end is not known for now: %s", name, error)

    # Following

    async def run(self) -> None:
        """Follows the streams until it is cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for name, followed in self._followed.items():
                    self._nursery.start_soon(self._follow, name, followed)
                for namespace in self._selection.by_namespace():
                    self._nursery.start_soon(self._watch_listing, namespace)
                self._nursery.start_soon(self._sweep)
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                for places in self.streams.values():
                    await places.aclose()

    def _join(self, name: str) -> None:
        if name in self._followed or name in self._swept:
            return
        if len(self._followed) >= self._followed_max:
            if not self._swept:
                _log.info(
                    "more than %d streams: the others are not followed but looked at in turn",
                    self._followed_max,
                )
            self._swept[name] = None
            return
        followed = self._followed[name] = _Followed()
        if self._nursery is not None:
            self._nursery.start_soon(self._follow, name, followed)

    def _leave(self, name: str) -> None:
        self._swept.pop(name, None)
        followed = self._followed.pop(name, None)
        if followed is not None:
            followed.scope.cancel()

    def _note(self, name: str, stream: StreamMetadata | None) -> None:
        """The stream is as this says; None: it is not there."""
        places = self.streams.get(name)
        if places is not None and places.metadata == stream:
            return
        if stream is None:
            if places is None:
                return
            del self.streams[name]
        elif places is None or places.metadata.created_ms != stream.created_ms:
            self.streams[name] = StreamPlaces(self.client, name, stream)
        elif _is_older(stream, places.metadata):
            return  # a watch tells late what was read meanwhile; it tells the rest, too
        else:
            places.update(stream)
        self.version += 1
        if name in self._followed:
            self._followed[name].tell_changed()

    async def _follow(self, name: str, followed: _Followed) -> None:
        with followed.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_metadata, name)
                while True:
                    changed = followed.changed
                    places = self.streams.get(name)
                    segment = None if places is None else places.metadata.open_segment
                    try:
                        if places is not None and segment is not None:
                            await self._follow_ledger(places, segment, followed)
                    except RetryableError as error:
                        _log.info("stream=%s: following it again: %s", name, error)
                        await trio.sleep(_PAUSE_S)
                        continue
                    except (NoSuchLedger, NoSuchEntry):
                        pass  # metadata will tell what became of it
                    except LedgerError as error:
                        self._fail(error)
                    await changed.wait()

    async def _follow_ledger(
        self, places: StreamPlaces, segment: Segment, followed: _Followed
    ) -> None:
        """Until the ledger is closed, or the stream is another one: what was deleted may stay open
        until the janitor gets round to closing it."""
        reader = await places.reader(segment)
        while self.streams.get(places.name) is places and (
            not reader.is_closed or reader.last_add_confirmed > places.confirmed(segment)
        ):
            while followed.has_news:
                await followed.taken.wait()
            known = places.confirmed(segment)
            confirmed = await reader.wait_lac_after(known, _POLL_S)
            if confirmed > known:
                entry = reader.take_piggybacked(confirmed)
                if entry is not None:
                    places.note_entry(segment, entry)
                followed.tell(is_known=entry is not None)
                self.version += 1

    async def _watch_metadata(self, name: str) -> None:
        namespace, _, stream = name.partition("/")
        while True:
            try:
                watching = self.client.store.watch(stream_path(namespace, stream))
                async with aclosing(watching) as nodes:
                    async for node in nodes:
                        self._note(name, None if node is None else _plain(stream, node))
            except RetryableError as error:
                _log.info("stream=%s: waiting for its metadata: %s", name, error)
            except LedgerError as error:
                self._fail(error)
            await trio.sleep(_PAUSE_S)

    async def _watch_listing(self, namespace: str) -> None:
        """Streams that are made join, and partitions; what left no trace leaves."""
        folder = folder_path(namespace, "streams")
        while True:
            try:
                async with aclosing(self.client.store.watch_children(folder)) as listings:
                    async for _ in listings:
                        await self._find_streams()
                        await trio.sleep(_LISTING_PAUSE_S)
            except RetryableError as error:
                _log.info("namespace=%s: waiting for its streams: %s", namespace, error)
            except LedgerError as error:
                self._fail(error)
            await trio.sleep(_PAUSE_S)

    async def _find_streams(self) -> None:
        known = self._known
        found = (await discover(self.client, self._selection)).names
        by_namespace = self._selection.by_namespace()
        fresh = [name for name in found if name not in known]
        await map_bounded(fresh, self.refresh)
        for name in fresh:
            self._join(name)
        for name in known:
            namespace, _, stream = name.partition("/")
            if name not in found and not by_namespace[namespace].is_named(stream):
                self._leave(name)
                self._note(name, None)

    async def _sweep(self) -> None:
        while True:
            began_s = trio.current_time()
            await map_bounded(list(self._swept), self._sweep_one)
            await trio.sleep(max(SWEEP_PAUSE_S, trio.current_time() - began_s))

    async def _sweep_one(self, name: str) -> None:
        try:
            await self.refresh(name)
            places = self.streams.get(name)
            if places is None:
                return
            before = places.end.sequence
            await places.look()
            if places.end.sequence != before:
                self.version += 1
        except (RetryableError, NoSuchLedger, NoSuchEntry) as error:
            _log.info("stream=%s: its end is not known for now: %s", name, error)
        except LedgerError as error:
            self._fail(error)

    def _fail(self, error: LedgerError) -> None:
        self.failure = error
        self.version += 1


def _plain(name: str, node: Node) -> StreamMetadata | None:
    """The stream that can be read under its own name; None: it is deleted, or another one of its
    name is partitioned, whose partitions join by theirs."""
    try:
        stream = decode_stream(name, node.data)
    except IsPartitioned:
        return None
    return None if stream.is_deleted else stream


def _is_older(stream: StreamMetadata, than: StreamMetadata) -> bool:
    return stream.next_segment < than.next_segment or stream.next_sequence < than.next_sequence
