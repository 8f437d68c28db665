"""Checks entries that were read from an entry log against the checksums that are stored with them.

Nearly every entry ends its header with a CRC over itself, which costs no further read. The entries
of ledgers with another digest are checked by the checksum of the run record that holds them, for
which the whole record is read. An entry is unverified only if neither is possible: its ledger has
another digest, and the index knows a part of the record alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from crc32c import crc32c

from bookie.core.entry_log import (
    RUN_HEADER_BYTES,
    check_run_body,
    check_run_lengths,
    decode_run_header,
)
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.index.index import PlacedRun
from ledger.core.entry import HEADER_BYTES, KEEP_INTERPRETER
from ledger.errors import BookieIoError

_crc32c_of = struct.Struct(">I").unpack_from
_crc32_of = struct.Struct(">q").unpack_from
_CRC32C_BODY_AT = HEADER_BYTES + 4
_CRC32_BODY_AT = HEADER_BYTES + 8


def first_unproved(data: bytes | bytearray, ends: Sequence[int]) -> int:
    """Returns the place of the first entry that does not prove itself by a CRC in its header, or
    the number of entries. `ends`: where each ends in `data`. About 0.4 us each, and 0.04 ns a
    byte.
    """
    view = memoryview(data)
    begin = proved = 0
    for end in ends:
        payload_at = begin + _CRC32C_BODY_AT
        if end < payload_at or (
            crc32c(
                view[payload_at:end], crc32c(view[begin : begin + HEADER_BYTES]), KEEP_INTERPRETER
            )
            != _crc32c_of(data, begin + HEADER_BYTES)[0]
        ):
            break
        begin = end
        proved += 1
    for i in range(proved, len(ends)):
        end, payload_at = ends[i], begin + _CRC32_BODY_AT
        if end < payload_at:
            return i
        crc = zlib.crc32(view[payload_at:end], zlib.crc32(view[begin : begin + HEADER_BYTES]))
        if crc != _crc32_of(data, begin + HEADER_BYTES)[0]:
            return i
        begin = end
    return len(ends)


async def is_run_whole(logs: EntryLogs, run: PlacedRun) -> bool | None:
    """Returns whether the record of a run matches its checksums; None if that cannot be decided:
    the index has a part of the record alone, or another part of it cannot be read."""
    packed_bytes = 4 * len(run.lengths)
    head_bytes = RUN_HEADER_BYTES + packed_bytes
    if run.offset < head_bytes:
        return None
    try:
        data = await logs.read(run.log_id, run.offset - head_bytes, head_bytes + sum(run.lengths))
    except BookieIoError:
        return None  # another entry of the record is on a bad sector
    try:
        header = decode_run_header(data[:RUN_HEADER_BYTES])
        if (header.ledger_id, header.first) != (run.ledger_id, run.first):
            return None
        lengths = check_run_lengths(
            header, data[:RUN_HEADER_BYTES], data[RUN_HEADER_BYTES:head_bytes]
        )
    except ValueError:
        return None
    if lengths != run.lengths:
        return None
    try:
        check_run_body(header, data[head_bytes:])
    except ValueError:
        return False
    return True
