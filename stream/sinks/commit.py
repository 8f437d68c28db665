"""Commits one batch to its streams: seals their open segments and changes all in one transaction.

Each attempt decides by what it reads again; an unknown outcome is looked up. Must never admit a
batch twice, nor in part. The calls are in sinks/sinks.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import trio

from ledger.client import LedgerClient
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
)
from ledger.metastore.base import ANY_VERSION, Change, Check, Create, Put
from ledger.metastore.paths import TRANSACTION_CHANGES_MAX
from ledger.runtime.concurrency import map_bounded
from stream.core.backoff import conflict_pause_s, should_give_up
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.sink_order import check_order, check_streams
from stream.core.sink_owner import SinkOwner, SinkQuery, owner_after
from stream.core.sinks import (
    STREAMS_REMEMBERED_MAX,
    CommittedRange,
    SinkLedger,
    SinkMetadata,
    added_range,
    are_all_committed,
    by_stream,
    committed,
    committed_now,
    encode_sink,
    interrupted,
    range_in_stream,
)
from stream.errors import NoSuchStream
from stream.sinks.prepared import SinkMemory, UnclosedLedger, UnclosedLedgers, VersionedStreams
from stream.store.pages import PageLost
from stream.store.sinks import read_sink_node, sink_path
from stream.store.streams import StreamStore, stream_path
from stream.takeover import STREAM_TAG, StreamLedgers

_log = logging.getLogger(__name__)

TRANSACTION_BYTES_MAX = 1_000_000
"""What ZooKeeper accepts in one transaction (1 MiB), less a reserve."""

_CHANGE_BYTES = 48
"""Bytes of a change, besides its path and data."""

_SOME_END = SegmentEnd(last_entry=0, records=1, nbytes=0)
"""Stands for the end of an open segment that is not known yet."""

_UNAVAILABLE_MAX_S = 30.0
"""How long a commit retries while the metadata store does not answer, or does not report what it
did."""
_PAUSE_S = 0.1
_PAUSE_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """The outcome of a batch. `is_repeat`: it was committed before, and these ledgers are not
    needed unless they are those of that commit. `streams`: what it added to each stream; for a
    repeated batch as far as it is remembered."""

    is_repeat: bool
    streams: tuple[CommittedRange, ...]


class BatchCommitter:
    """The attempts to commit one batch."""

    def __init__(
        self,
        client: LedgerClient,
        ledgers: Sequence[SinkLedger],
        sink_id: str | None,
        batch_id: int | None,
        origin: str = "",
        query: SinkQuery | None = None,
        unclosed: Sequence[UnclosedLedger] = (),
        memory: SinkMemory | None = None,
    ) -> None:
        self._client = client
        self._store = client.store
        self._streams = StreamStore(client.store)
        self._ledgers = ledgers
        self._sink_id = sink_id
        self._batch_id = batch_id
        self._origin = origin
        self._query = query
        self._unclosed = UnclosedLedgers(client, unclosed)
        self._memory = SinkMemory() if memory is None else memory
        self._targets = by_stream(ledgers)
        self._checked: set[int] = set()
        self._ended: dict[int, SegmentEnd] = {}
        """Ends of open segments that were sealed, by ledger: they are final."""
        self._may_have_committed = False
        """A transaction of ours may have been executed, or may still be."""
        self._conflicts = 0
        self._conflict_s = 0.0
        """When the first conflict occurred."""

    async def run(self) -> BatchCommit:
        """Commits the batch; retries after conflicts and while the store is unavailable."""
        self._check_count()
        try:
            return await self._by_memory() or await self._by_reading()
        except MetadataUnavailable:
            self._unclosed.note_closed()
            raise

    async def _by_memory(self) -> BatchCommit | None:
        """Commits ledgers of this process without reading; None if that cannot be or failed."""
        if self._memory.precedes(self._batch_id, self._query) and not self._closed():
            try:
                return await self._try(self._memory)
            except LedgerError as error:
                _log.debug("sink=%s batch=%s: reads: %s", self._sink_id, self._batch_id, error)
                self._memory.forget()
        return None

    async def _by_reading(self) -> BatchCommit:
        give_up_at, pause_s = math.inf, _PAUSE_S
        while True:
            try:
                return await self._try()
            except (MetadataConflict, NodeExists, NoSuchNode, PageLost) as error:
                give_up_at = math.inf
                if isinstance(error, NoSuchNode):
                    await self._check_existing()
                await self._back_off(error)
            except MetadataUnavailable as error:
                give_up_at = min(give_up_at, trio.current_time() + _UNAVAILABLE_MAX_S)
                if trio.current_time() + pause_s > give_up_at:
                    raise
                _log.info("sink=%s batch=%s: retrying: %s", self._sink_id, self._batch_id, error)
                await trio.sleep(pause_s * (0.5 + self._client.rng.random()))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _back_off(self, error: LedgerError) -> None:
        """Waits after a conflict. Raises MetadataConflict after too many of them."""
        now_s = trio.current_time()
        if not self._conflicts:
            self._conflict_s = now_s
        self._conflicts += 1
        waited_s = now_s - self._conflict_s
        if should_give_up(self._conflicts, waited_s):
            if isinstance(error, PageLost):  # and not purged just before it was read
                raise error
            raise MetadataConflict(
                f"streams of batch {self._batch_id} of sink {self._sink_id!r}: others changed the "
                f"metadata first, {self._conflicts} times in {waited_s:.0f} s. Cure: let fewer "
                f"sinks write to the same stream at once, or less often (a longer trigger)"
            ) from error
        await trio.sleep(conflict_pause_s(self._conflicts, waited_s, self._client.rng))

    async def _try(self, memory: SinkMemory | None = None) -> BatchCommit:
        """Makes one attempt, by what is in the metadata, or by what `memory` says about it."""
        sink, sink_version = None, -1
        none_gone = await self._none_gone() if memory is None else memory.none_gone
        if self._sink_id is not None and self._batch_id is not None:
            sink, sink_version = (
                await read_sink_node(self._store, self._sink_id)
                if memory is None
                else (memory.sink, memory.sink_version)
            )
            check_order(sink, self._sink_id, self._batch_id, self._origin, self._query)
            if sink is not None and sink.is_committed(self._batch_id):
                return await self._repeated(sink, sink_version)
        streams = await self._read_streams(None if memory is None else memory.streams)
        created_ms = self._created_ms(streams)
        if sink is not None:
            check_streams(sink, self._query, created_ms)
        if self._sink_id is None and await self._are_all_committed(streams):
            self._unclosed.note_closed()
            return BatchCommit(not self._may_have_committed, await self._present_ranges(streams))
        if self._conflicts > 1:
            await self._unclosed.close()
        closing = await self._unclosed.changes()
        await self._check_ledgers()
        now_ms = self._client.now_ms()
        restores = await self._memory.counted_restores(self._client, is_known=memory is not None)
        await self._check_fits(streams, now_ms)
        await self._end_open_segments(streams)
        added, after, changes = await self._continued(streams, restores, now_ms)
        shown: SinkMetadata | None = None
        if self._sink_id is not None and self._batch_id is not None:
            owner = self._owner(sink, created_ms)
            shown = committed_now(self._sink_id, self._batch_id, added, now_ms, self._origin, owner)
            path, data = sink_path(self._sink_id), encode_sink(shown)
            changes.insert(0, Create(path, data) if sink is None else Put(path, data, sink_version))
        if not changes:
            return BatchCommit(False, ())
        if memory is not None:
            changes += memory.conditions
        changes = await self._with_ledgers(changes, closing)
        _check_size(changes, len(streams))
        self._may_have_committed = True
        await self._store.transaction(changes)
        self._unclosed.note_closed()
        client_node = self._unclosed.client_node
        self._memory.note(shown, sink_version + 1, after, client_node, none_gone)
        return BatchCommit(False, tuple(added))

    async def _none_gone(self) -> Check | None:
        """Returns the condition under which another commit may rely on the versions of this one;
        None if none can: it would have to read other ledgers."""
        if self._sink_id is None or self._unclosed.client_node is None:
            return None
        return await self._streams.gone.none_since()

    async def _with_ledgers(self, changes: list[Change], closing: Sequence[Put]) -> list[Change]:
        """Returns the changes with those that close the ledgers, and the condition that the others
        exist. Ledgers whose metadata do not fit into the transaction are closed now."""
        checks = [Check(await self._path(ledger), ANY_VERSION) for ledger in self._closed()]
        if closing and _nbytes([*changes, *closing, *checks]) > TRANSACTION_BYTES_MAX:
            await self._unclosed.close()
            closing = ()
            checks = [Check(await self._path(ledger), ANY_VERSION) for ledger in self._closed()]
        return [*changes, *closing, *checks]

    async def _continued(
        self, streams: Sequence[tuple[StreamMetadata, int]], restores: int, now_ms: int
    ) -> tuple[list[CommittedRange], VersionedStreams, list[Change]]:
        """Returns what the batch adds to each stream, the streams after it, and the changes of
        their nodes. Writes the pages that these need."""
        added: list[CommittedRange] = []
        after: dict[tuple[str, str], tuple[StreamMetadata, int]] = {}
        changes: list[Change] = []
        for (target, sources), (stream, version) in zip(
            self._targets.items(), streams, strict=True
        ):
            ends = [(ledger.ledger_id, ledger.end) for ledger in sources]
            if stream.open_segment is not None:
                stream = interrupted(stream, self._ended[stream.open_segment.ledger_id], now_ms)
            stream = stream.continued_after(restores)
            added.append(added_range(target[0], stream, ends))
            grown = await self._committed(stream, ends, now_ms)
            path = stream_path(*target)
            stored, change, dead = await self._streams.prepared(target[0], path, grown, version)
            after[target] = stored, version + 1
            changes += [change, *dead]
        return added, after, changes

    def _check_count(self) -> None:
        """Checks the number of changes before anything is done. Raises InvalidArgument."""
        count = len(self._full()) + len(self._targets) + 1
        if count > TRANSACTION_CHANGES_MAX:
            raise InvalidArgument(
                f"this batch has {len(self._full())} ledgers for {len(self._targets)} streams, and "
                f"one transaction takes {TRANSACTION_CHANGES_MAX - 1} of both: use fewer tasks "
                f"(each makes a ledger for each stream), or repartition by the stream or the key"
            )

    async def _committed(
        self, stream: StreamMetadata, ends: Sequence[tuple[int, SegmentEnd]], now_ms: int
    ) -> StreamMetadata:
        return await self._streams.pages.resolve(
            stream, lambda known: committed(known, ends, now_ms)
        )

    async def _check_fits(self, streams: Sequence[tuple[StreamMetadata, int]], now_ms: int) -> None:
        """Raises InvalidArgument for a batch that cannot be committed, before a writer is
        interrupted for it.

        Otherwise a batch that is retried again and again would fill the metadata with segments.
        """
        for sources, (stream, _) in zip(self._targets.values(), streams, strict=True):
            if stream.open_segment is not None:
                ends = [(ledger.ledger_id, ledger.end) for ledger in sources]
                await self._committed(interrupted(stream, _SOME_END, now_ms), ends, now_ms)

    def _created_ms(self, streams: Sequence[tuple[StreamMetadata, int]]) -> dict[str, int]:
        return {
            f"{namespace}/{name}": stream.created_ms
            for (namespace, name), (stream, _) in zip(self._targets, streams, strict=True)
        }

    def _owner(self, sink: SinkMetadata | None, created_ms: dict[str, int]) -> SinkOwner | None:
        before = None if sink is None else sink.owner
        if self._query is None or self._batch_id is None:
            return before
        return owner_after(self._query, self._batch_id, before, created_ms, STREAMS_REMEMBERED_MAX)

    async def _repeated(self, sink: SinkMetadata, sink_version: int) -> BatchCommit:
        """Returns the outcome of a batch that is committed: by an earlier call, or by ours, whose
        answer was lost. A run that repeats it is noted: it may do so once."""
        is_repeat = True
        if sink.owner is not None and self._query is not None and self._query.is_consecutive:
            owner = sink.owner.repeated(self._query.run_id, sink.batch_id)
            if owner is not None:
                data = encode_sink(replace(sink, owner=owner))
                await self._store.put(sink_path(sink.sink_id), data, sink_version)
        if self._may_have_committed:
            streams = await self._read_streams()
            is_repeat = not await self._are_all_committed(streams)
        if not is_repeat:
            self._unclosed.note_closed()
        return BatchCommit(is_repeat, sink.streams)

    async def _are_all_committed(self, streams: Sequence[tuple[StreamMetadata, int]]) -> bool:
        return await self._streams.pages.resolve_all(
            [stream for stream, _ in streams], lambda known: are_all_committed(known, self._targets)
        )

    async def _present_ranges(
        self, streams: Sequence[tuple[StreamMetadata, int]]
    ) -> tuple[CommittedRange, ...]:
        def ranges(known: Sequence[StreamMetadata]) -> list[CommittedRange | None]:
            return [
                range_in_stream(namespace, stream, {ledger.ledger_id for ledger in sources})
                for ((namespace, _), sources), stream in zip(
                    self._targets.items(), known, strict=True
                )
            ]

        found = await self._streams.pages.resolve_all([stream for stream, _ in streams], ranges)
        return tuple(share for share in found if share is not None)

    def _full(self) -> list[SinkLedger]:
        return [ledger for ledger in self._ledgers if ledger.end.records > 0]

    def _closed(self) -> list[SinkLedger]:
        return [ledger for ledger in self._full() if ledger.ledger_id not in self._unclosed]

    async def _path(self, ledger: SinkLedger) -> str:
        return await self._client.ledgers.path(ledger.ledger_id)

    async def _read_streams(
        self, known: VersionedStreams | None = None
    ) -> list[tuple[StreamMetadata, int]]:
        """Returns the streams in the order of the targets; reads those that are not `known`. Raises
        NoSuchStream."""
        found = {target: known[target] for target in self._targets if known and target in known}

        async def read(target: tuple[str, str]) -> None:
            stream, version = await self._streams.read_stream(*target)
            if stream.is_deleted:
                raise NoSuchStream(
                    f"stream {target[0]}/{target[1]} was deleted: batch {self._batch_id} of sink "
                    f"{self._sink_id!r} cannot be committed"
                )
            found[target] = stream, version

        await map_bounded([each for each in self._targets if each not in found], read)
        return [found[target] for target in self._targets]

    async def _end_open_segments(self, streams: Sequence[tuple[StreamMetadata, int]]) -> None:
        """Seals the open segments. From here on their writers wait for the outcome of the
        commit."""

        async def end(one: tuple[tuple[str, str], tuple[StreamMetadata, int]]) -> None:
            (namespace, name), seen = one
            segment = seen[0].open_segment
            if segment is None or segment.ledger_id in self._ended:
                return
            ledgers = StreamLedgers(self._client, self._streams, namespace, name)
            try:
                self._ended[segment.ledger_id] = await ledgers.recovered_end(
                    segment.ledger_id, segment.first_sequence
                )
            except NoSuchLedger:
                if await self._streams.read_stream(namespace, name) == seen:
                    raise
                raise MetadataConflict(f"stream {name!r} has changed") from None

        await map_bounded(zip(self._targets, streams, strict=True), end)

    async def _check_ledgers(self) -> None:
        """Raises InvalidArgument for a ledger that is not closed, or not as its task reported."""

        async def check(ledger: SinkLedger) -> None:
            metadata = await self._client.ledger_metadata(ledger.ledger_id)
            target = f"{ledger.namespace}/{ledger.stream}"
            what = f"ledger {ledger.ledger_id} for {target}"
            if not metadata.is_closed:
                raise InvalidArgument(f"{what} is not closed: its task has not finished")
            is_like = (metadata.last_entry_id, metadata.length)
            if is_like != (ledger.end.last_entry, ledger.end.nbytes):
                raise InvalidArgument(
                    f"{what} has its last entry at {metadata.last_entry_id} and "
                    f"{metadata.length} bytes; its task reported {ledger.end.last_entry} and "
                    f"{ledger.end.nbytes}"
                )
            tag = metadata.custom.get(STREAM_TAG)
            if tag is not None and tag != target.encode():
                # The janitor of that stream might delete it as an orphan.
                raise InvalidArgument(f"{what} was made for {tag.decode(errors='replace')}")

            self._checked.add(ledger.ledger_id)

        unchecked = [one for one in self._closed() if one.ledger_id not in self._checked]
        await map_bounded(unchecked, check)

    async def _check_existing(self) -> None:
        """Finds out what a transaction lacked. Raises NoSuchLedger if it is a ledger; the next
        attempt reports anything else."""
        for ledger in self._full():
            if not await self._client.ledgers.exists(ledger.ledger_id):
                raise NoSuchLedger(
                    f"ledger {ledger.ledger_id} for {ledger.namespace}/{ledger.stream} was deleted "
                    f"before batch {self._batch_id} of sink {self._sink_id!r} was committed: no "
                    f"stream named it for too long, or the batch was discarded"
                )


def _nbytes(changes: Sequence[Change]) -> int:
    """Returns the bytes of these changes in a transaction."""
    data = sum(len(change.data) for change in changes if isinstance(change, Create | Put))
    return data + sum(_CHANGE_BYTES + len(change.path.encode()) for change in changes)


def _check_size(changes: Sequence[Change], streams: int) -> None:
    """Raises InvalidArgument for more than the metadata store accepts in one transaction."""
    every = _nbytes(changes)
    if every > TRANSACTION_BYTES_MAX:
        nbytes = sum(len(change.data) for change in changes if isinstance(change, Create | Put))
        raise InvalidArgument(
            f"the metadata of the {streams} streams of this batch is {nbytes} bytes, {every} with "
            f"all {len(changes)} changes, and one transaction takes {TRANSACTION_BYTES_MAX}: "
            f"truncate them, set a retention, or write to fewer streams, or with fewer tasks, at "
            f"once"
        )
