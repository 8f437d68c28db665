"""Tracks the end of every stream, so that a query without new records costs nothing.

A stream is followed by a watch of its metadata and a long poll of its open ledger. After a
notification a stream is not polled until a query has consumed it: the work grows with the number
of micro-batches, not of appends. Streams beyond the first 200 are not followed but polled in turn.
Belongs to one loop. Must never treat a stream as deleted because the store did not answer, and
never keep an answer that was not given.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field

import trio

from connectors.spark.core.idle_polling import KeptAnswer, Known, Listening, Questions
from connectors.spark.options.options import Selection
from connectors.spark.source.discovery import (
    decode_live,
    discover,
    is_selected,
    read_metadata,
)
from connectors.spark.source.stream_index import StreamIndex
from ledger.client import LedgerClient
from ledger.errors import LedgerError, NoSuchEntry, NoSuchLedger, RetryableError
from ledger.runtime.concurrency import map_bounded
from stream.core.metadata.streams import Segment, StreamMetadata
from stream.store.streams import folder_path, stream_path

_log = logging.getLogger(__name__)

FOLLOWED_MAX = 200
"""Streams that are followed; each costs two tasks and a long poll."""
STALE_AFTER_S = 0.02
"""An end that was received longer ago than this is read again: it has probably moved."""
POLLED_ENDS_MAX = 4
"""Up to this many streams are polled for their ends before a query reports no new records."""
END_POLL_TIMEOUT_S = 1.0
POLL_PAUSE_S = 1.0
"""The minimum pause between two rounds over the streams that are not followed.

A round takes at most half of the time.
"""
_LONG_POLL_S = 30.0
_RETRY_PAUSE_S = 0.5
_LISTING_PAUSE_S = 0.1
_METADATA, _LEDGER = "metadata", "ledger"
_EXACT_END_TIMEOUT_S = 10.0
"""How long to wait for bookies where the exact end is needed."""


@dataclass(slots=True, eq=False)
class _Followed:
    """The state of following one stream, which may not exist."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    changed: trio.Event = field(default_factory=trio.Event)
    """Set when the metadata of the stream has changed."""
    is_notified: bool = False
    is_known: bool = False
    """Whether the notification included the last entry, so that the end is known."""
    notified_s: float = 0.0
    consumed: trio.Event = field(default_factory=trio.Event)

    def notify_changed(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    def notify(self, *, is_known: bool) -> None:
        self.is_notified, self.is_known, self.notified_s = True, is_known, trio.current_time()

    def consume(self) -> None:
        self.is_notified = False
        consumed, self.consumed = self.consumed, trio.Event()
        consumed.set()


class EndTracker:
    """Tracks the streams of a selection and their ends.

    `begin` finds the streams; `run` is the task that then follows them. To be used on one loop,
    except that any thread may read `version`: nothing has changed while it is the same.
    `on_change` is called in the loop after each change of it.
    """

    def __init__(
        self, client: LedgerClient, selection: Selection, *, followed_max: int = FOLLOWED_MAX
    ) -> None:
        self.client = client
        self.version = 0
        self.streams: dict[str, StreamIndex] = {}
        """The streams that exist now, by full name."""
        self.failure: LedgerError | None = None
        """The error that prevented following a stream; the next call raises it."""
        self._selection = selection
        self._followed_max = followed_max
        self._followed: dict[str, _Followed] = {}
        self._polled: dict[str, None] = {}
        self._nursery: trio.Nursery | None = None
        self._listening = Listening()
        self._answer = KeptAnswer()
        self.has_missing = False
        """Whether `begin` did not find all streams that are named."""
        self.on_change: Callable[[], None] = _nothing

    # For planning

    async def begin(self, may_be_gone: Collection[str] = ()) -> None:
        """Finds the streams and their current ends. Streams in `may_be_gone` are watched, too.

        Raises NoSuchNamespace, and what reading ledgers raises.
        """
        found = await discover(self.client, self._selection)
        self.has_missing = bool(found.missing)
        # A deleted stream keeps its node, and may be created again under it.
        gone = [name for name in may_be_gone if is_selected(self._selection, name)]
        names = dict.fromkeys((*found.names, *found.missing, *gone))
        await map_bounded(names, self._read_exact_end)
        for name in names:
            self._add(name)

    async def catch_up(self) -> None:
        """Reads the current ends of the streams with notifications, and consumes these."""
        now_s = trio.current_time()
        notified = [(name, each) for name, each in self._followed.items() if each.is_notified]
        stale = [
            name
            for name, each in notified
            if not each.is_known or now_s - each.notified_s > STALE_AFTER_S
        ]
        await map_bounded(stale, self._try_read_end)
        for _, each in notified:
            each.consume()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    async def read_ends(self) -> None:
        """Finds the streams again, and reads what is confirmed of each now.

        Raises NotEnoughBookies, MetadataUnavailable if this cannot be determined.
        """
        found = await discover(self.client, self._selection)
        await map_bounded(dict.fromkeys((*found.names, *self._known)), self._read_exact_end)
        for name in found.names:
            self._add(name)

    def _note_change(self) -> None:
        self.version += 1
        self.on_change()

    async def poll_ends(self) -> None:
        """Polls the ends of the streams, if there are few, for records not yet notified.

        Notifications arrive a few milliseconds late, and a program whose append has just been
        confirmed may ask Spark for the record at once (`processAllAvailable`). Nothing is asked
        that is known: the metadata are as they were while the store has the same number of
        commits, and bookies that hold a long poll would answer it.
        """
        names = list(self._known)
        if len(names) > POLLED_ENDS_MAX:
            return
        listening = None if self._polled else self._listening.number
        commits = self.client.store.commit_number()
        known = Known(trio.current_time(), self.version, listening, commits)
        questions = self._answer.questions(known)
        if questions is Questions.NONE:
            return
        is_answered = False
        poll = self._poll_end if questions is Questions.METADATA_AND_BOOKIES else self._poll_stream
        with trio.move_on_after(END_POLL_TIMEOUT_S):
            is_answered = all(await map_bounded(names, poll))
            if questions is Questions.METADATA and self.version != known.version:
                await map_bounded(names, self._poll_end)  # a segment may have records already
        self._answer.asked(questions, known, is_answered=is_answered)

    @property
    def _known(self) -> dict[str, None]:
        """The names of all tracked streams, whether they exist now or not."""
        return dict.fromkeys((*self._followed, *self._polled))

    async def refresh(self, name: str) -> None:
        """Reads the metadata of a stream again."""
        self._update(name, await read_metadata(self.client, name))

    async def _read_exact_end(self, name: str) -> None:
        deadline = trio.current_time() + _EXACT_END_TIMEOUT_S
        while True:
            try:
                await self.refresh(name)
                if name in self.streams:
                    await self.streams[name].read_end()
            except (NoSuchLedger, NoSuchEntry):
                # The segment was purged between two reads.
                if trio.current_time() > deadline:
                    raise
            except RetryableError as error:
                if trio.current_time() > deadline:
                    raise
                _log.info("stream=%s: reading its end again: %s", name, error)
                await trio.sleep(_RETRY_PAUSE_S)
            else:
                return

    async def _try_read_end(self, name: str) -> None:
        """Reads the end of a stream; logs errors, which the task that follows it raises, too."""
        index = self.streams.get(name)
        if index is not None:
            await self._has_answered(name, index.read_end)

    # Following

    async def run(self) -> None:
        """Follows the streams until it is cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                for name, followed in self._followed.items():
                    self._nursery.start_soon(self._follow, name, followed)
                for namespace in self._selection.by_namespace():
                    self._nursery.start_soon(self._watch_listing, namespace)
                self._nursery.start_soon(self._poll_rest)
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True):
                for index in self.streams.values():
                    await index.aclose()

    def _add(self, name: str) -> None:
        if name in self._followed or name in self._polled:
            return
        if len(self._followed) >= self._followed_max:
            if not self._polled:
                _log.info(
                    "more than %d streams: the others are not followed but polled in turn",
                    self._followed_max,
                )
            self._polled[name] = None
            return
        followed = self._followed[name] = _Followed()
        self._listening.misses(_METADATA, name)
        self._listening.misses(_LEDGER, name)
        if self._nursery is not None:
            self._nursery.start_soon(self._follow, name, followed)

    def _remove(self, name: str) -> None:
        self._polled.pop(name, None)
        followed = self._followed.pop(name, None)
        if followed is not None:
            followed.scope.cancel()
            self._listening.hears(_METADATA, name)
            self._listening.hears(_LEDGER, name)

    def _update(self, name: str, stream: StreamMetadata | None) -> None:
        """Takes the metadata of a stream; None means that it does not exist."""
        index = self.streams.get(name)
        if index is not None and index.metadata == stream:
            return
        followed = _open_ledger(None if index is None else index.metadata)
        if stream is None:
            if index is None:
                return
            del self.streams[name]
        elif index is None or index.metadata.created_ms != stream.created_ms:
            self.streams[name] = StreamIndex(self.client, name, stream)
        elif _is_older(stream, index.metadata):
            return  # the watch is behind what was read in the meantime, and will catch up
        else:
            index.update(stream)
        self._note_change()
        if name in self._followed:
            if followed != _open_ledger(stream):
                self._listening.misses(_LEDGER, name)  # until its task has seen the change
            self._followed[name].notify_changed()

    async def _follow(self, name: str, followed: _Followed) -> None:
        with followed.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_metadata, name)
                while True:
                    changed = followed.changed
                    index = self.streams.get(name)
                    segment = None if index is None else index.metadata.open_segment
                    try:
                        if index is not None and segment is not None:
                            await self._follow_ledger(index, segment, followed)
                        if followed.changed is changed:  # otherwise a ledger may be open again
                            self._listening.hears(_LEDGER, name)
                    except RetryableError as error:
                        self._listening.misses(_LEDGER, name)
                        _log.info("stream=%s: following it again: %s", name, error)
                        await trio.sleep(_RETRY_PAUSE_S)
                        continue
                    except (NoSuchLedger, NoSuchEntry):
                        # The metadata will show what happened to the segment.
                        self._listening.misses(_LEDGER, name)
                    except LedgerError as error:
                        self._listening.misses(_LEDGER, name)
                        self._fail(error)
                    await changed.wait()

    async def _follow_ledger(
        self, index: StreamIndex, segment: Segment, followed: _Followed
    ) -> None:
        """Follows a ledger until it is closed, or until another stream has replaced this one.

        The ledger of a deleted stream may stay open until the janitor closes it.
        """
        reader = await index.reader(segment)
        while self.streams.get(index.name) is index and (
            not reader.is_closed or reader.last_add_confirmed > index.confirmed(segment)
        ):
            while followed.is_notified:
                await followed.consumed.wait()
            known = index.confirmed(segment)
            if _open_ledger(index.metadata) == segment.ledger_id:
                self._listening.hears(_LEDGER, index.name)
            confirmed = await reader.wait_lac_after(known, _LONG_POLL_S)
            if confirmed > known:
                entry = reader.take_piggybacked(confirmed)
                if entry is not None:
                    index.note_entry(segment, entry)
                followed.notify(is_known=entry is not None)
                self._note_change()

    async def _watch_metadata(self, name: str) -> None:
        namespace, _, stream = name.partition("/")
        while True:
            try:
                watching = self.client.store.watch(stream_path(namespace, stream))
                async with aclosing(watching) as nodes:
                    async for node in nodes:
                        self._update(name, None if node is None else decode_live(stream, node))
                        self._listening.hears(_METADATA, name)
            except RetryableError as error:
                _log.info("stream=%s: waiting for its metadata: %s", name, error)
            except LedgerError as error:
                self._fail(error)
            self._listening.misses(_METADATA, name)
            await trio.sleep(_RETRY_PAUSE_S)

    async def _watch_listing(self, namespace: str) -> None:
        """Adds streams and partitions that are created; removes those whose node is deleted."""
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
            await trio.sleep(_RETRY_PAUSE_S)

    async def _find_streams(self) -> None:
        known = self._known
        found = (await discover(self.client, self._selection)).names
        by_namespace = self._selection.by_namespace()
        fresh = [name for name in found if name not in known]
        await map_bounded(fresh, self.refresh)
        for name in fresh:
            self._add(name)
        for name in known:
            namespace, _, stream = name.partition("/")
            if name not in found and not by_namespace[namespace].is_named(stream):
                self._remove(name)
                self._update(name, None)

    async def _poll_rest(self) -> None:
        while True:
            began_s = trio.current_time()
            await map_bounded(list(self._polled), self._poll_end)
            await trio.sleep(max(POLL_PAUSE_S, trio.current_time() - began_s))

    async def _poll_stream(self, name: str) -> bool:
        """Asks the metadata store for a stream. Returns whether it has answered."""
        return await self._has_answered(name, lambda: self.refresh(name))

    async def _poll_end(self, name: str) -> bool:
        """Asks the metadata store, and the bookies for the end. Returns whether they answered."""

        async def ask() -> None:
            await self.refresh(name)
            index = self.streams.get(name)
            if index is None:
                return
            before = index.end.sequence
            await index.read_end()
            if index.end.sequence != before:
                self._note_change()

        return await self._has_answered(name, ask)

    async def _has_answered(self, name: str, ask: Callable[[], Awaitable[None]]) -> bool:
        """Runs `ask`; logs errors that may pass, and keeps others for the next call."""
        try:
            await ask()
        except (RetryableError, NoSuchLedger, NoSuchEntry) as error:
            _log.info("stream=%s: its end is not known for now: %s", name, error)
        except LedgerError as error:
            self._fail(error)
        else:
            return True
        return False

    def _fail(self, error: LedgerError) -> None:
        self.failure = error
        self._note_change()


def _nothing() -> None:
    pass


def _open_ledger(stream: StreamMetadata | None) -> int | None:
    segment = None if stream is None else stream.open_segment
    return None if segment is None else segment.ledger_id


def _is_older(stream: StreamMetadata, than: StreamMetadata) -> bool:
    return stream.next_segment < than.next_segment or stream.next_sequence < than.next_sequence
