"""Ledgers as the tasks of a sink leave them."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.client import LedgerClient
from stream.core.entry.encoder import encode
from stream.core.entry.format import read_header
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.producers import SegmentTally
from stream.core.sinks import committed
from stream.sinks.sinks import SinkLedger, ledger_tags


async def write_ledger(
    client: LedgerClient,
    stream: str,
    entries: Sequence[Sequence[bytes]],
    *,
    namespace: str = "n",
    sink_id: str | None = None,
    batch_id: int | None = None,
    event_times: Sequence[Sequence[int]] | None = None,
    quorums: tuple[int, int, int] = (3, 3, 2),
) -> SinkLedger:
    """Returns a closed ledger with these records, one list for each entry."""
    size, write_quorum, ack_quorum = quorums
    custom = ledger_tags(namespace, stream, sink_id=sink_id, batch_id=batch_id, attempt="t")
    tally, records, nbytes = SegmentTally(), 0, 0
    async with client.create_ledger(
        ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum, custom=custom
    ) as ledger:
        for number, values in enumerate(entries):
            payload = encode(
                values,
                first_sequence=records,
                append_time_ms=1,
                event_times=None if event_times is None else event_times[number],
                is_sequence_in_segment=True,
            )
            await ledger.append(payload)
            tally.add(read_header(payload))
            records, nbytes = records + len(values), nbytes + len(payload)
    low, high = tally.event_range_ms
    end = SegmentEnd(
        len(entries) - 1, records, nbytes, event_min_ms=low, event_max_ms=high
    )  # fmt: skip
    return SinkLedger(namespace, stream, ledger.ledger_id, end)


def with_many(stream: StreamMetadata, count: int = 2_000) -> StreamMetadata:
    """Returns the stream with that many segments more, of ledgers that do not exist."""
    ends = [((1 << 40) + n, SegmentEnd(9, 10, 100, 1, 1)) for n in range(count)]
    return committed(stream, ends, 1_764_000_000_000)
