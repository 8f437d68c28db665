"""Receipts of appended records: which bookies fsynced them, as the ledger writer reports it.

Only entries with a record for which a receipt was requested are watched; all records of one entry
share the result. Other appends must pay nothing for it. The receipt itself is core/receipt.py.
"""

from __future__ import annotations

from ledger.core.quorum import write_set
from ledger.errors import InvalidArgument
from stream.core.receipt import Receipt, ReceiptAck
from stream.takeover import StreamLedgers
from stream.writing.batch import Ticket


class ReceiptTicket(Ticket):
    """A record in flight for which a receipt was requested. Made by `StreamWriter.receipt_of`."""

    __slots__ = ("_ledgers", "_wait_s")

    def __init__(self, ticket: Ticket, ledgers: StreamLedgers, wait_s: float) -> None:
        super().__init__(ticket._batch, ticket._slot)
        self._ledgers = ledgers
        self._wait_s = wait_s
        if not self._batch.watch_acks():
            raise InvalidArgument(
                f"stream {ledgers.stream!r}: the record at {ticket.position} is confirmed already, "
                "and its acknowledgements were not kept; call receipt_of right after append_nowait"
            )

    async def receipt(self) -> Receipt:
        """Waits until the record is durable, then up to `WriterOptions.receipt_wait_s` for the
        bookies beyond the ack quorum, and returns the receipt.

        Raises the writer's error if the writer failed: the record may or may not be in the stream
        then; MetadataUnavailable if the record was recovered and the store that knows its bookies
        is unreachable: the record is durable then.
        """
        position = await self.wait()
        batch = self._batch
        segment, acks = batch.segment, batch.acks
        assert segment is not None, "confirmed, but never sent"
        metadata, digest = segment.ledger.metadata, None
        named: tuple[ReceiptAck, ...] = ()
        is_recovered = acks is None or not acks.is_confirmed
        not_yet: tuple[str, ...] = ()
        if acks is not None:
            known = await acks.settle(0.0 if is_recovered else self._wait_s)
            digest, not_yet = known.digest, known.not_yet
            named = tuple(ReceiptAck(ack.bookie, ack.after_ms) for ack in known.acks)
        if is_recovered:
            # Recovery may have replaced some of the bookies that acknowledged it.
            metadata = await self._ledgers.client.ledger_metadata(metadata.ledger_id)
            bookies = metadata.fragment_of(position.entry).bookies
            indices = write_set(position.entry, metadata.ensemble_size, metadata.write_quorum)
            members = [bookies[index] for index in indices]
            named = tuple(ack for ack in named if ack.bookie in members)
            not_yet = tuple(b for b in members if b not in [ack.bookie for ack in named])
        assert metadata.digest_type is not None, "ledgers of streams have a digest type"
        return Receipt(
            namespace=self._ledgers.namespace,
            stream=self._ledgers.stream,
            position=position,
            sequence=self.sequence,
            ledger_id=metadata.ledger_id,
            append_time_ms=batch.append_time_ms,
            digest_type=metadata.digest_type.name,
            digest=digest,
            acks=named,
            not_yet=not_yet,
            is_recovered=is_recovered,
        )
