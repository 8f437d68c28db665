"""Conditional appends: a record is taken only if it gets the sequence that its caller expects.

Such records have entries of their own (`BatchKind.CONDITIONAL`): if a sink commits a batch before
they are in the stream, they are refused, and no other record is.
"""

from __future__ import annotations

from ledger.errors import InvalidArgument
from stream.writing.accumulator import RecordAccumulator


async def open_conditional(accumulator: RecordAccumulator, sequence: int, nbytes: int = 0) -> None:
    """Returns when records of `nbytes` that must begin at this sequence can be taken.

    Raises SequenceMismatch, the writer's error, and InvalidArgument if they can never be pending
    together.
    """
    if nbytes > accumulator.pending_bytes_max:
        raise InvalidArgument(
            f"{nbytes} bytes are too many for one conditional append; at most "
            f"{accumulator.pending_bytes_max} fit (pending_bytes_max of the writer's options)"
        )
    while True:
        await _expect(accumulator, sequence)
        accumulator.open_conditional()
        if accumulator.has_room:
            return
        await accumulator.wait_room()


async def _expect(accumulator: RecordAccumulator, sequence: int) -> None:
    """Waits until the record at `sequence` is durable, if there is one, and checks the sequence.

    Raises SequenceMismatch if another record has it: that record may be the caller's own.
    """
    if sequence < accumulator.next_sequence:
        await accumulator.drain()
    accumulator.check_sequence(sequence)
