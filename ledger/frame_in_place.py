"""Adds of large payloads, sent from where they lie: the frame is made around the payload.

For `LedgerWriter.append_frame_nowait`. A payload of a mebibyte is worth more than the scheduler
tick it could gather in; one copy of it costs as much as all that is done for its frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.writing.frames import FRAME_ROOM_BYTES

if TYPE_CHECKING:
    from ledger.writing.writer import LedgerWriter


def append_in_place(writer: LedgerWriter, room_and_payload: bytearray) -> int:
    """Sends the payload behind FRAME_ROOM_BYTES at once, and returns its entry id. The bytes must
    not be changed until it is confirmed. Raises what `append_nowait` raises."""
    payload = memoryview(room_and_payload)[FRAME_ROOM_BYTES:]
    if writer.is_dirty:
        writer.send_gathered()  # what came before goes before
        writer.is_dirty = True  # the loop still has this writer on its list
    if not writer.takes_frames:
        return writer.append_nowait(payload)  # raises, or copies
    head, overhead = writer.frame_heads[len(payload)], writer.frame_overhead
    core = writer.core
    entry_id = core.last_add_pushed + 1
    core.last_add_pushed = entry_id
    writer.length += len(payload)
    header, _ = writer.digest.encode_entry(
        writer.ledger_id, entry_id, core.last_add_confirmed, writer.length, payload
    )
    frame = memoryview(room_and_payload)[FRAME_ROOM_BYTES - overhead :]
    frame[:overhead] = head + header
    writer._bytes_pending += len(frame)
    writer.send_frames(entry_id, frame, len(frame), core.last_add_confirmed)
    return entry_id
