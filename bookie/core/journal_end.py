"""Where a journal ended when it last told somebody: the bytes of the file `END`.

A journal cut off between two groups looks like one that was never written any further; this file
says that it was. The layout is in docs/formats.md.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from bookie.core.journal import Buffer, Mark

_MAGIC: Final = 0x4C534A454E440001  # "LSJEND", version 1
_FIELDS: Final = struct.Struct(">QQQ")
_CRC: Final = struct.Struct(">I")
END_BYTES: Final = _FIELDS.size + _CRC.size
"""In one sector: a crash leaves this or what was there before."""


def encode_end(end: Mark) -> bytes:
    fields = _FIELDS.pack(_MAGIC, end.file_id, end.offset)
    return fields + _CRC.pack(crc32c(fields))


def decode_end(data: Buffer) -> Mark | None:
    """None if it is damaged: then nothing is known, as if it were not there."""
    if len(data) < END_BYTES:
        return None
    fields = data[: _FIELDS.size]
    magic, file_id, offset = _FIELDS.unpack(fields)
    (crc,) = _CRC.unpack(data[_FIELDS.size : END_BYTES])
    if magic != _MAGIC or crc != crc32c(fields):
        return None
    return Mark(file_id, offset)
