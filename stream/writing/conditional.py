"""Conditional appends: a record is taken only if it gets the sequence its caller expects.

Such records are in entries of their own (`CONDITIONAL`): if a sink commits a batch before they are
in the stream, they are refused, and nothing else is.
"""

from __future__ import annotations

from stream.writing.accumulator import Outbox


async def expect(outbox: Outbox, sequence: int) -> None:
    """Waits until the record at `sequence` is durable, if there is one, and checks the sequence.

    Raises SequenceMismatch if another record has it: that record may be the caller's own.
    """
    if sequence < outbox.next_sequence:
        await outbox.drain()
    outbox.check_sequence(sequence)


async def open_for(outbox: Outbox, sequence: int) -> None:
    """Returns when a record that must have this sequence can be taken.

    Raises SequenceMismatch, and the error of the writer.
    """
    while True:
        await expect(outbox, sequence)
        outbox.open_conditional()
        if outbox.has_room:
            return
        await outbox.wait_room()
