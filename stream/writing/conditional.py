"""Conditional appends: a record is taken only if it gets the sequence its caller expects.

Such records are in entries of their own (`CONDITIONAL`): if a sink commits a batch before they are
in the stream, they are refused, and nothing else is.
"""

from __future__ import annotations

from stream.writing.accumulator import RecordAccumulator


async def expect(accumulator: RecordAccumulator, sequence: int) -> None:
    """Waits until the record at `sequence` is durable, if there is one, and checks the sequence.

    Raises SequenceMismatch if another record has it: that record may be the caller's own.
    """
    if sequence < accumulator.next_sequence:
        await accumulator.drain()
    accumulator.check_sequence(sequence)


async def open_for(accumulator: RecordAccumulator, sequence: int) -> None:
    """Returns when a record that must have this sequence can be taken.

    Raises SequenceMismatch, and the error of the writer.
    """
    while True:
        await expect(accumulator, sequence)
        accumulator.open_conditional()
        if accumulator.has_room:
            return
        await accumulator.wait_room()
