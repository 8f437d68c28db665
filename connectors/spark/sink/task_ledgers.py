"""TaskLedgers: the new ledgers that one task of a sink writes. Must never write to a stream.

The task's thread encodes rows as entries, and the background loop sends them concurrently; a
budget of unconfirmed bytes throttles the task. The ledgers of a failed task are deleted, or the
janitor finds them by their tags. They are in no stream until the driver commits them (sink.py).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from connectors.spark.sink.routing import Target
from connectors.spark.sink.sink_batch import SinkBatch
from ledger.client import LedgerClient
from ledger.core.entry import DigestType
from ledger.errors import LedgerError
from ledger.wire.messages import Buffer
from ledger.writing.frames import FRAME_ROOM_BYTES
from ledger.writing.writer import LedgerWriter
from stream.core.entry.format import read_header
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import SegmentEnd
from stream.core.producers import SegmentTally
from stream.core.sinks import SinkLedger

if TYPE_CHECKING:
    from connectors.spark.client.client_cache import BackgroundCall, ClusterClient

_log = logging.getLogger(__name__)

UNCONFIRMED_BYTES_MAX = 24 << 20
"""Bytes of entries of one task that are not confirmed. Below the in-flight limit of a ledger, so
that a single ledger never refuses an entry for its bytes."""
_DELETE_S = 2.0


async def make_ledger(
    client: LedgerClient,
    target: Target,
    policy: NamespaceMetadata,
    batch: SinkBatch,
    *,
    saves_requests: bool = False,
) -> LedgerWriter:
    """Creates a tagged ledger with the settings of the namespace; `saves_requests` is that of
    `create_ledger`.

    Raises NotEnoughBookies, MetadataUnavailable.
    """
    return await client.create_ledger(
        ensemble_size=policy.ensemble_size,
        write_quorum=policy.write_quorum,
        ack_quorum=policy.ack_quorum,
        digest_type=DigestType[policy.digest_type],
        password=None,
        custom=batch.tags(target),
        prefer=policy.preferred_bookies,
        placement=policy.bookie_placement,
        saves_requests=saves_requests,
    )


@dataclass(slots=True)
class _LedgerEntries:
    """The entries of one ledger, in order. Filled by the task, emptied on the loop."""

    waiting: deque[tuple[bytes | bytearray, int]] = field(default_factory=deque)
    """Payloads with their numbers of records."""
    is_complete: bool = False


class SegmentTotals:
    """Collects the totals of a ledger's entries, for the end of its segment."""

    def __init__(self) -> None:
        self.records = 0
        self._first_ms = -1
        self._last_ms = -1
        self._tally = SegmentTally()

    def add(self, payload: Buffer, records: int) -> None:
        """Adds the next entry."""
        self.records += records
        header = read_header(payload)
        if self._first_ms < 0:
            self._first_ms = header.append_time_ms
        self._last_ms = header.append_time_ms
        self._tally.add(header)

    def end(self, last_entry: int, nbytes: int) -> SegmentEnd:
        return SegmentEnd(
            last_entry, self.records, nbytes, self._first_ms, self._last_ms,
            *self._tally.event_range_ms,
        )  # fmt: skip


class _TargetSender:
    """Writes the ledgers of one target, one after the other. Runs on the loop."""

    def __init__(self, ledgers: TaskLedgers, target: Target, policy: NamespaceMetadata) -> None:
        self.target = target
        self.policy = policy
        self.queue: deque[_LedgerEntries] = deque()
        self.made: list[int] = []
        self.done: list[SinkLedger] = []
        self._ledgers = ledgers
        self._news = trio.Event()
        self._is_complete = False

    def wake(self) -> None:
        self._news.set()

    def complete(self) -> None:
        """Marks the target as complete: no more ledgers follow."""
        self._is_complete = True
        self._news.set()

    async def run(self, client: LedgerClient) -> None:
        while True:
            if self.queue:
                await self._write(client, self.queue[0])
                self.queue.popleft()
            elif self._is_complete:
                return
            else:
                await self._wait_news()

    async def _wait_news(self) -> None:
        await self._news.wait()
        self._news = trio.Event()

    async def _write(self, client: LedgerClient, entries: _LedgerEntries) -> None:
        batch, confirmed = self._ledgers.batch, self._ledgers.confirmed
        writer = await make_ledger(client, self.target, self.policy, batch)
        self.made.append(writer.ledger_id)
        sent: deque[int] = deque()
        facts = SegmentTotals()
        acknowledged = -1

        def on_confirmed(entry: int) -> None:
            nonlocal acknowledged
            count, acknowledged = entry - acknowledged, entry
            confirmed(sum(sent.popleft() for _ in range(count)))

        writer.on_confirmed = on_confirmed
        writer.on_failed = lambda _: self.wake()
        try:
            waiting = entries.waiting
            while True:
                # Read before the entries: the task adds the last entry before it sets this.
                is_complete = entries.is_complete
                while waiting:
                    if not writer.has_room:
                        await writer.wait_room()
                        continue
                    payload, records = waiting.popleft()
                    sent.append(len(payload))
                    if isinstance(payload, bytearray):
                        facts.add(memoryview(payload)[FRAME_ROOM_BYTES:], records)
                        writer.append_frame_nowait(payload)
                    else:
                        facts.add(payload, records)
                        writer.append_nowait(payload)
                if is_complete:
                    break
                await self._wait_news()
                if writer.error is not None:
                    raise writer.error
            metadata = await writer.close()
        except BaseException:
            writer.abandon()
            raise
        end = facts.end(metadata.last_entry_id, metadata.length)
        self.done.append(
            SinkLedger(self.target.namespace, self.target.stream, writer.ledger_id, end)
        )


class TaskLedgers:
    """The ledgers of one task. To be used from the task's thread, as a context manager.

    Leaving the block without `close` abandons the ledgers: they are deleted as far as that is
    possible immediately.

    Args:
        cluster: the client of the cluster.
        batch: the tag of the ledgers.
        unconfirmed_bytes_max: how many bytes the task may be ahead of the bookies.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        batch: SinkBatch,
        *,
        unconfirmed_bytes_max: int = UNCONFIRMED_BYTES_MAX,
    ) -> None:
        self.batch = batch
        self._cluster = cluster
        self._bytes_max = unconfirmed_bytes_max
        self._senders: dict[Target, _TargetSender] = {}
        self._open: dict[Target, _LedgerEntries] = {}
        self._unconfirmed = 0
        self._moved = threading.Condition()
        self._has_ended = False
        self._news: trio.Event | None = None
        self._fresh: deque[_TargetSender] = deque()
        self._is_complete = False
        self._running: BackgroundCall[list[SinkLedger]] | None = None

    def __enter__(self) -> TaskLedgers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.cancel()
            try:
                running.result()
            except LedgerError as error:
                _log.debug("given up cause=%s", error)

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes handed over that are not durable yet."""
        return self._unconfirmed

    def append(
        self,
        target: Target,
        policy: NamespaceMetadata,
        payload: bytes | bytearray,
        records: int,
        *,
        begins_ledger: bool = False,
    ) -> None:
        """Hands over an entry to be sent; waits while too many bytes are in flight.

        A bytearray must come from `encode_frame`; the caller must not use it any more. With
        `begins_ledger` the entry is the first of a new ledger of the target, and the previous
        ledger is closed. Raises the error of an earlier entry: LedgerFenced, NotEnoughBookies, ...
        """
        self._wait_budget(len(payload))
        sender = self._senders.get(target)
        if sender is None:
            sender = self._senders[target] = _TargetSender(self, target, policy)
            self._fresh.append(sender)
            begins_ledger = True
        if begins_ledger:
            if (before := self._open.get(target)) is not None:
                before.is_complete = True
            self._open[target] = entries = _LedgerEntries()
            entries.waiting.append((payload, records))
            sender.queue.append(entries)
        else:
            self._open[target].waiting.append((payload, records))
        if self._running is None:
            self._running = self._cluster.start(self._drive)
        self._cluster.post(lambda: self._wake(sender))

    def close(self) -> list[SinkLedger]:
        """Waits until all entries are durable, and returns the closed ledgers.

        Ledgers of one target are in their order. Raises the error of a ledger; all ledgers are
        abandoned then.
        """
        if self._running is None:
            return []
        for entries in self._open.values():
            entries.is_complete = True
        self._cluster.post(self._complete)
        running, self._running = self._running, None
        return running.result()

    def _wait_budget(self, nbytes: int) -> None:
        with self._moved:
            while self._unconfirmed + nbytes > self._bytes_max and self._unconfirmed:
                if self._has_ended:
                    break
                self._moved.wait()
            self._unconfirmed += nbytes
        if self._has_ended and self._running is not None:
            running, self._running = self._running, None
            running.result()
            raise AssertionError("the senders ended before the task was complete")

    # On the loop

    def confirmed(self, nbytes: int) -> None:
        """Releases budget: this number of bytes has become durable."""
        with self._moved:
            self._unconfirmed -= nbytes
            self._moved.notify()

    def _wake(self, sender: _TargetSender) -> None:
        sender.wake()
        if self._fresh:
            self._wake_drive()

    def _wake_drive(self) -> None:
        if self._news is not None:
            self._news.set()

    def _complete(self) -> None:
        """Marks the task as complete: no more entries follow."""
        self._is_complete = True
        for sender in self._senders.values():
            sender.complete()
        self._wake_drive()

    async def _drive(self, client: LedgerClient) -> list[SinkLedger]:
        senders: list[_TargetSender] = []
        errors: list[LedgerError] = []
        is_done = False
        try:
            async with trio.open_nursery() as nursery:

                async def send(sender: _TargetSender) -> None:
                    try:
                        await sender.run(client)
                    except LedgerError as error:
                        errors.append(error)
                        nursery.cancel_scope.cancel()

                while True:
                    self._news = trio.Event()
                    while self._fresh:
                        sender = self._fresh.popleft()
                        senders.append(sender)
                        nursery.start_soon(send, sender)
                    if self._is_complete:
                        break
                    await self._news.wait()
            if errors:
                raise errors[0]
            is_done = True
            return [ledger for sender in senders for ledger in sender.done]
        finally:
            with self._moved:
                self._has_ended = True
                self._moved.notify_all()
            if not is_done:
                await delete_ledgers(
                    client, [ledger for sender in senders for ledger in sender.made]
                )


async def delete_ledgers(client: LedgerClient, ledger_ids: list[int]) -> None:
    """Deletes ledgers unknown to the driver. Never raises: the janitor finds the rest."""
    with trio.move_on_after(_DELETE_S, shield=True):
        for ledger_id in ledger_ids:
            try:
                await client.delete_ledger(ledger_id)
            except LedgerError as error:
                _log.info("not deleted now ledger=%d cause=%s", ledger_id, error)
