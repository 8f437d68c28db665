"""Closing: fixes the end of a ledger in its metadata, once all its entries are confirmed."""

from __future__ import annotations

from typing import Protocol

from ledger.core.metadata import LedgerMetadata, closed_by_writer
from ledger.errors import LedgerClosed, LedgerError, LedgerFenced
from ledger.writing.send_loop import SendLoop
from ledger.writing.trailing_acks import EndingWriter, TrailingAcks


class ClosableWriter(EndingWriter, Protocol):
    """The writer, as seen from here."""

    error: LedgerError | None
    length: int
    refuses: bool
    """Whether no further entry may be appended."""

    @property
    def is_sync_deferred(self) -> bool: ...

    async def flush(self) -> None: ...

    async def force(self) -> int: ...

    def failure(self) -> LedgerError: ...

    def end(self, error: LedgerError) -> None: ...


class Closing:
    """The close of one writer: see `LedgerWriter.close`, `prepare_close` and `note_closed`."""

    def __init__(self, writer: ClosableWriter, loop: SendLoop) -> None:
        self.is_done = False
        """Whether the end of the ledger is stored."""
        self._writer = writer
        self._loop = loop
        self._trailing: TrailingAcks | None = None

    @property
    def has_begun(self) -> bool:
        """Whether all entries are confirmed, and no more can follow."""
        return self._trailing is not None

    async def close(self) -> LedgerMetadata:
        writer = self._writer
        if not self.is_done:
            trailing = await self._end_adding()
            own, last = writer.metadata.last_fragment, writer.core.last_add_confirmed
            with trailing:
                writer.metadata = await self._loop.ledgers.update(
                    writer.ledger_id,
                    lambda stored: closed_by_writer(stored, own, last, writer.length),
                )
            self.is_done = True
        return writer.metadata

    async def prepare(self) -> LedgerMetadata:
        writer = self._writer
        if self.is_done:
            return writer.metadata
        await self._end_adding()
        own, last = writer.metadata.last_fragment, writer.core.last_add_confirmed
        return closed_by_writer(writer.metadata, own, last, writer.length) or writer.metadata

    def note(self, metadata: LedgerMetadata) -> None:
        if self.is_done:
            return
        assert self._trailing is not None, "prepare_close was not called"
        with self._trailing:
            self._writer.metadata = metadata
        self.is_done = True

    async def _end_adding(self) -> TrailingAcks:
        """Ends the writer once all its entries are confirmed. Raises the writer's error."""
        writer = self._writer
        if self._trailing is None:
            writer.refuses = True  # no entry may follow those that are flushed here
            try:
                await writer.flush()
                if writer.is_sync_deferred and writer.error is None:
                    await writer.force()
            finally:
                writer.refuses = False
            if writer.error is not None and not self._is_fenced_when_done:
                raise writer.failure()
            self._trailing = TrailingAcks(writer, self._loop)
            if writer.error is None:
                end = writer.core.last_add_confirmed
                writer.end(LedgerClosed(f"ledger {writer.ledger_id} is closed at entry {end}"))
        return self._trailing

    @property
    def _is_fenced_when_done(self) -> bool:
        """Fenced with nothing in flight: the metadata still decides where the ledger ends."""
        core = self._writer.core
        is_in_flight = core.last_add_confirmed < core.last_add_pushed
        return isinstance(self._writer.error, LedgerFenced) and not is_in_flight
