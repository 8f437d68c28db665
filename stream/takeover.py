"""Makes, measures and ends the ledgers of a stream. Shell of core/takeover.py.

It executes a `Takeover` against the metadata store and the ledger client. It decides nothing, and
keeps nothing but its addresses.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

import trio

from ledger.client import LedgerClient
from ledger.core.entry import DigestType, Entry
from ledger.core.permissions import STREAM_TAG as STREAM_TAG
from ledger.errors import (
    InvalidArgument,
    LedgerError,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
)
from ledger.reading.reader import LedgerReader
from ledger.runtime.drive import drive
from ledger.writing.writer import LedgerWriter
from stream.core.entry.format import read_header
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.producers import SegmentTally
from stream.core.takeover import (
    Action,
    EndLedger,
    Event,
    LedgerEnded,
    LedgerGone,
    LedgerMade,
    MakeLedger,
    ReadStream,
    StoreConflicted,
    StoreStream,
    StoreUnknown,
    StreamRead,
    StreamStored,
    Takeover,
)
from stream.store.streams import StreamStore

_log = logging.getLogger(__name__)

_DISCARD_S = 1.0
RECENT_MS = 120_000
"""A writer that lives has recorded by then which bookies missed entries of a segment."""
RECENT_MAX = 64
_LEDGER_SETTINGS = (
    "ensemble_size", "write_quorum", "ack_quorum", "digest_type", "placement", "placement_policy",
    "placement_min", "placement_enforce",
)  # fmt: skip

APPLICATION_TAG = "application"
SINK_TAG = "ledgerstream.sink"
"""Custom metadata of a ledger that a task makes for a batch of a sink: see core/sinks.py."""


def makes_same_ledgers(one: NamespaceMetadata, other: NamespaceMetadata) -> bool:
    """Whether two policies make ledgers of the same kind."""
    return all(getattr(one, name) == getattr(other, name) for name in _LEDGER_SETTINGS)


async def _tally(reader: LedgerReader, tally: SegmentTally) -> None:
    """Reads the headers of all entries of a closed ledger."""
    entries = cast(
        "AsyncGenerator[list[Entry], None]", reader.entries(0, reader.last_add_confirmed)
    )
    async with aclosing(entries) as batches:
        async for batch in batches:
            for entry in batch:
                tally.add(read_header(entry.payload))


@dataclass(frozen=True, slots=True)
class StreamLedgers:
    """The ledgers of one stream."""

    client: LedgerClient
    store: StreamStore
    namespace: str
    stream: str

    @property
    def tag(self) -> bytes:
        return f"{self.namespace}/{self.stream}".encode()

    async def ledger_path(self, ledger_id: int) -> str:
        """Returns the path of the ledger's metadata in the metadata store."""
        return await self.client.ledgers.path(ledger_id)

    async def make(self, policy: NamespaceMetadata) -> LedgerWriter:
        """Makes a ledger as the policy requires. Raises NotEnoughBookies, MetadataUnavailable."""
        return await self.client.create_ledger(
            ensemble_size=policy.ensemble_size,
            write_quorum=policy.write_quorum,
            ack_quorum=policy.ack_quorum,
            digest_type=DigestType[policy.digest_type],
            password=None,
            custom={APPLICATION_TAG: b"ledgerstream", STREAM_TAG: self.tag},
            prefer=policy.preferred_bookies,
            placement=policy.bookie_placement,
        )

    async def discard(self, ledger: LedgerWriter) -> None:
        """Discards a ledger that was not published. Never raises: after a failure, or too long a
        wait, the janitor deletes it."""
        ledger.on_confirmed = ledger.on_failed = None
        ledger.abandon()
        with trio.move_on_after(_DISCARD_S) as scope:
            scope.shield = True
            try:
                # It may have been published by a change whose outcome is unknown: read first.
                stream, version = await self.store.read_stream(self.namespace, self.stream)
                # A deleted stream of the name may have it, in the trash: the janitor decides.
                trash = await self.store.list_trash(self.namespace)
                may_be_in_trash = any(name == self.stream for name, _ in trash)
                is_named = await self.store.pages.resolve(
                    stream, lambda present: present.names(ledger.ledger_id)
                )
                if not may_be_in_trash and not is_named:
                    path = await self.ledger_path(ledger.ledger_id)
                    await self.store.delete_orphan(self.namespace, self.stream, version, path)
            except LedgerError as error:
                _log.info("not deleted now ledger=%d cause=%s", ledger.ledger_id, error)

    def check_recent_copies(self, stream: StreamMetadata) -> None:
        """Has the copies of segments checked that were sealed lately: a writer that died may not
        have lived to record which bookies missed entries of them. Those in pages have many behind
        them."""
        since_ms = self.client.now_ms() - RECENT_MS
        recent = [segment.ledger_id for segment in stream.segments if segment.sealed_ms >= since_ms]
        if recent:
            self.client.check_copies(recent[-RECENT_MAX:])

    async def recovered_end(self, ledger_id: int, first_sequence: int) -> SegmentEnd:
        """Fences and closes a ledger if it is open, and returns where it ends.

        `first_sequence` is that of its first record. Raises what `open_ledger` raises.
        """
        async with self.client.open_ledger(ledger_id, recover=True) as reader:
            last_entry = reader.last_add_confirmed
            if last_entry < 0:
                return SegmentEnd(-1, 0, 0)
            first = read_header((await reader.read(0, 0))[0].payload)
            last = read_header((await reader.read(last_entry, last_entry))[0].payload)
            begin = 0 if last.is_sequence_in_segment else first_sequence
            records = last.first_sequence + last.count - begin
            if records <= last_entry or first.first_sequence != begin:
                raise InvalidArgument(
                    f"ledger {ledger_id} is not a segment from sequence {first_sequence}: its "
                    f"first entry begins at {first.first_sequence}, its last ends {records} "
                    f"records later"
                )
            tally = SegmentTally()
            if last.has_producers_before:
                await _tally(reader, tally)
            elif last.producer_id or last_entry == 0:
                tally.add(last)
            is_whole = last.has_producers_before or last_entry == 0
            events = tally.event_range_ms if is_whole else (-1, -1)
            return SegmentEnd(
                last_entry, records, reader.length, first.append_time_ms, last.append_time_ms,
                *events, tally.producers,
            )  # fmt: skip

    async def run(
        self,
        machine: Takeover,
        *,
        end: Callable[[EndLedger], Awaitable[SegmentEnd]] | None = None,
        make: Callable[[MakeLedger], Awaitable[int]] | None = None,
    ) -> StreamMetadata:
        """Runs the machine to its end. `end` defaults to recovery; `make` is needed to begin a
        segment.

        Raises TakenOver, NoSuchStream, and what ending and making ledgers raise.
        """

        async def perform(action: Action) -> Event:
            match action:
                case ReadStream():
                    return StreamRead(*await self.store.read_stream(self.namespace, self.stream))
                case StoreStream(stream, version):
                    try:
                        made = None
                        if machine.made is not None:
                            made = await self.ledger_path(machine.made)
                        stored, version = await self.store.put_stream(
                            self.namespace, stream, version, ledger_path=made
                        )
                    except MetadataConflict:
                        return StoreConflicted()
                    except NoSuchLedger as error:
                        raise MetadataConflict(
                            f"{error}: a janitor took it for an orphan before it was a segment. "
                            "Cure: try again; if that happens often, its orphan_age_ms is too short"
                        ) from error
                    except MetadataUnavailable:
                        return StoreUnknown()
                    return StreamStored(version, stored)
                case EndLedger(ledger_id, first_sequence):
                    try:
                        if end is not None:
                            return LedgerEnded(await end(action))
                        return LedgerEnded(await self.recovered_end(ledger_id, first_sequence))
                    except NoSuchLedger as error:
                        return LedgerGone(error)
                case MakeLedger():
                    assert make is not None, "a takeover that begins a segment needs `make`"
                    return LedgerMade(await make(action))

        return await drive(machine, perform)
