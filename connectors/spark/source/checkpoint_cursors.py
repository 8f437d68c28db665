"""Cursors that follow a Spark checkpoint (option `cursor`), so that retention waits for the query.

Each stream that is read has one. It is where the micro-batches end that Spark has committed. A
query owns its cursors by a number that its checkpoint holds. A cursor must never be beyond what the
checkpoint has committed, and never be taken from another user of it. While a query runs it moves
forward only; at a start it is set to where the checkpoint is. Belongs to one loop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import trio

from connectors.spark.client.client_cache import ClusterClient
from connectors.spark.core.offsets import Offsets, StreamOffset, is_one_reading
from connectors.spark.options.options import Selection
from connectors.spark.source.discovery import is_selected
from connectors.spark.source.end_tracker import EndTracker
from connectors.spark.source.stream_index import StreamIndex
from ledger.client import LedgerClient
from ledger.errors import FinalError, LedgerError, MetadataConflict, NoSuchNode, RetryableError
from ledger.runtime.concurrency import map_bounded
from stream.core.metadata.cursors import CursorMetadata
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.errors import NoSuchCursor, NoSuchStream
from stream.store.cursors import CursorSlot, CursorStore, new_cursor
from stream.store.groups import groups_path
from stream.store.streams import UPDATE_TRIES_MAX, StreamStore, too_many_conflicts

_log = logging.getLogger(__name__)

PAUSE_S = 1.0
SHARE_MAX = 0.1
TIMEOUT_S = 2.0
"""Cursors are moved at most once a second, and in at most this share of the time; a micro-batch
waits at most this long for it."""


class CursorInUse(FinalError):
    """The cursor of the option `cursor` belongs to another query, a program or a consumer group."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A cursor as this object has stored it or found it."""

    cursor: CursorMetadata
    version: int


class CheckpointCursors:
    """The cursors of one query.

    Args:
        name: their name, the same in each stream.
        selection: the streams of the options; only cursors of these are moved.
    """

    def __init__(self, name: str, selection: Selection) -> None:
        self.name = name
        self.owner = ""
        """The number of a query that has none in its checkpoint yet."""
        self._selection = selection
        self._stored: dict[str, _Stored] = {}
        """The cursors by the full names of their streams."""

    @property
    def has_begun(self) -> bool:
        """Whether `begin` has returned."""
        return bool(self.owner)

    async def begin(
        self, tracker: EndTracker, start: Offsets, planned: Offsets | None = None
    ) -> None:
        """Sets the cursors to where a query starts: also back, if its checkpoint is an older one.

        `planned` is the end of the micro-batch that begins there, if that is not committed. A
        stream that `start` does not have gets its cursor with its first micro-batch; retention that
        waits for a cursor keeps a stream without it. Raises CursorInUse, MetadataUnavailable, and
        what reading ledgers raises.
        """
        for namespace in self._selection.by_namespace():
            await self._check_policy(tracker.client, namespace)
        if planned is not None:
            start = await _begin_of(planned, start, tracker.streams)
        await self._move_all(tracker, start)
        self.owner = start.cursor_owner or f"{tracker.client.rng.getrandbits(64):016x}"

    async def move(self, tracker: EndTracker, committed: Offsets) -> None:
        """Moves the cursors to where a micro-batch ended that the checkpoint has committed.

        Raises CursorInUse, MetadataUnavailable (some may have moved; it can be repeated).
        """
        # A micro-batch that was planned without the option says nothing about the owner.
        if committed.cursor_owner:
            await self._move_all(tracker, committed)

    async def _move_all(self, tracker: EndTracker, to: Offsets) -> None:
        token = token_of(to)

        async def move(each: tuple[str, StreamMetadata, StreamOffset]) -> None:
            name, stream, offset = each
            known = self._stored.pop(name, None)
            if known is not None and known.cursor.stream_created_ms != stream.created_ms:
                known = None
            is_passed = known is not None and known.cursor.position >= offset.position
            if known is None or not is_passed or known.cursor.token != token:
                known = await self._set(tracker.client, name, stream, offset.position, token, known)
            if known is not None:
                self._stored[name] = known

        await map_bounded(list(self._moving(tracker.streams, to)), move)

    def _moving(
        self, streams: Mapping[str, StreamIndex], to: Offsets
    ) -> Iterator[tuple[str, StreamMetadata, StreamOffset]]:
        """Yields the streams of `to` that are read, and exist."""
        for name, offset in to.items():
            index = streams.get(name)
            if (
                index is not None
                and index.metadata.created_ms == offset.created_ms
                and not offset.gone_ms
                and is_selected(self._selection, name)
            ):
                yield name, index.metadata, offset

    async def _set(
        self,
        client: LedgerClient,
        name: str,
        stream: StreamMetadata,
        position: Position,
        token: str,
        known: _Stored | None,
    ) -> _Stored | None:
        """Stores the position of one cursor, which is created if the stream has none.

        `known` is what this query has stored last; without it the query starts, or the stream has
        joined it, and the cursor goes to the position from wherever it is. Returns None if the
        stream was deleted.
        """
        cursors, namespace = CursorStore(client.store), name.partition("/")[0]
        for _ in range(UPDATE_TRIES_MAX):
            now_ms = client.now_ms()
            if known is not None:
                slot = CursorSlot(known.cursor, known.version, known.cursor.epoch)
            else:
                slot = await cursors.read_slot(namespace, stream, self.name)
                await self._check_owner(client, name, slot, token)
            present = slot.cursor
            if present is None:
                present = new_cursor(stream, self.name, position, slot.last_epoch, now_ms)
            elif (present.position, present.token) == (position, token) and known is None:
                assert slot.version is not None, "a cursor without a node"
                return _Stored(present, slot.version)
            elif known is None and position < present.position:
                _log.warning(
                    "stream=%s: cursor %r goes back from %s to %s, where the checkpoint is",
                    name, self.name, present.position, position,
                )  # fmt: skip
                present = present.moved(position, now_ms)
            wanted = present.committed(max(position, present.position), token, now_ms)
            try:
                version = await cursors.put(namespace, wanted, slot.version)
            except (MetadataConflict, NoSuchCursor):
                known = None  # moved or deleted by hand, taken by another, or a late change of ours
            except NoSuchStream:
                return None
            else:
                return _Stored(wanted, version)
        raise too_many_conflicts(f"cursor {self.name!r}")

    async def _check_owner(
        self, client: LedgerClient, name: str, slot: CursorSlot, token: str
    ) -> None:
        """Raises CursorInUse if a cursor is not free, and not that of this checkpoint."""
        present = slot.cursor
        if present is None or (present.token and present.token == token):
            return
        if present.holder or (present.epoch and await self._is_of_group(client, name)):
            user = "a consumer group"
        elif present.token:
            user = "another query or program" if token else "a query or program"
        else:
            return  # free: set by hand, or created by a query that has not committed yet
        raise CursorInUse(
            f"option cursor={self.name!r}: this cursor of stream {name!r} is used by {user}; it is "
            f"at {present.position}. Cure: give this query a cursor of its own; or, if it belonged "
            f"to an earlier checkpoint of this query, `ledgerstream cursor delete "
            f"{name.partition('#')[0]} {self.name}`"
        )

    async def _is_of_group(self, client: LedgerClient, name: str) -> bool:
        namespace, _, stream = name.partition("#")[0].partition("/")
        try:
            await client.store.get(f"{groups_path(namespace, stream)}/{self.name}")
        except NoSuchNode:
            return False
        return True

    async def _check_policy(self, client: LedgerClient, namespace: str) -> None:
        """Warns if the namespace's retention does not wait for the cursor."""
        policy, _ = await StreamStore(client.store).read_namespace(namespace)
        is_dropping = policy.retention_ms is not None or policy.retention_bytes is not None
        if is_dropping and self.name not in policy.retention_cursors:
            names = ",".join((*policy.retention_cursors, self.name))
            _log.warning(
                "namespace=%s: retention does not wait for the cursor %r of this query. "
                "Cure: ledgerstream namespace set %s --retention-cursors %s",
                namespace, self.name, namespace, names,
            )  # fmt: skip


class CursorMoves:
    """Moves the cursors of a query, for the thread in which Spark calls its source.

    Not with each micro-batch, which may be short, but at most once a second.

    Args:
        tracker: returns the tracker of the query's streams.
    """

    def __init__(
        self, cluster: ClusterClient, cursors: CheckpointCursors, tracker: Callable[[], EndTracker]
    ) -> None:
        self._cluster = cluster
        self._cursors = cursors
        self._tracker = tracker
        self._committed: Offsets | None = None
        """Where the cursors are to be moved; None: they are there."""
        self._due_s = -math.inf

    def note_committed(self, end: Offsets, now_s: float) -> None:
        """Takes the end of a micro-batch that Spark has committed. Raises as `move`."""
        self._committed = end
        self.move(now_s)

    def move(self, now_s: float) -> None:
        """Moves the cursors if that is due. A store that does not answer is asked again later.

        Raises CursorInUse.
        """
        if self._committed is not None and now_s >= self._due_s:
            took_s = self._move(self._committed)
            self._due_s = now_s + max(PAUSE_S, took_s / SHARE_MAX)

    def finish(self) -> None:
        """Moves the cursors now, if they are not there yet; logs an error."""
        try:
            if self._committed is not None:
                self._move(self._committed)
        except LedgerError as error:
            _log.warning("cursor=%s: not moved at the end: %s", self._cursors.name, error)

    def _move(self, committed: Offsets) -> float:
        is_moved, took_s = self._cluster.run(_move, self._cursors, self._tracker(), committed)
        if is_moved:
            self._committed = None
        return took_s


async def _move(
    _client: LedgerClient, cursors: CheckpointCursors, tracker: EndTracker, committed: Offsets
) -> tuple[bool, float]:
    """Returns whether the cursors were moved in time, and how long it took."""
    begun_s, is_moved = trio.current_time(), False
    try:
        with trio.move_on_after(TIMEOUT_S):
            if not cursors.has_begun:
                await cursors.begin(tracker, committed)
            await cursors.move(tracker, committed)
            is_moved = True
    except RetryableError as error:
        _log.warning("cursor=%s: not moved yet: %s", cursors.name, error)
    return is_moved, trio.current_time() - begun_s


async def _begin_of(
    planned: Offsets, start: Offsets, streams: Mapping[str, StreamIndex]
) -> Offsets:
    """Returns where a planned micro-batch begins.

    That is before `start` if Spark has asked for the initial offset again (`is_one_reading`).
    """
    found = dict(start)
    for name, end in planned.items():
        index, offset = streams.get(name), start.get(name)
        if (
            index is not None
            and offset is not None
            and index.metadata.created_ms == end.created_ms
            and not is_one_reading(offset, end)
        ):
            first = await index.first()
            is_gone = first.sequence > end.begin
            found[name] = first if is_gone else await index.at_sequence(end.begin)
    return Offsets(found, start.cursor_owner)


def token_of(offsets: Offsets) -> str:
    """Returns the token of the cursors of a checkpoint; empty for one without an owner of any."""
    return f"spark-{offsets.cursor_owner}" if offsets.cursor_owner else ""
