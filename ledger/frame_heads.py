"""What comes before the entry in the frames of a ledger's adds: the same for all of a size."""

from __future__ import annotations

from ledger.payload import check_size
from ledger.wire import v2

_ADD_HEADER = (v2.ADD_HEADER | v2.RANGE_ACKS).to_bytes(4, "big")
_SIZES_MAX = 4096
_FIXED_BYTES = 4 + 20 + 32
"""Packet header, master key, header of the entry; the digest and the payload follow."""


class FrameHeads(dict[int, bytes]):
    """By size of the payload, in bytes; made when asked for. Raises InvalidArgument for more than
    an entry may have."""

    __slots__ = ("_digest_bytes", "_key")

    def __init__(self, digest_bytes: int, key: bytes) -> None:
        super().__init__()
        self._digest_bytes = digest_bytes
        self._key = key

    def __missing__(self, size: int) -> bytes:
        check_size(size)
        if len(self) >= _SIZES_MAX:
            self.clear()
        length = _FIXED_BYTES + self._digest_bytes + size
        head = self[size] = length.to_bytes(4, "big") + _ADD_HEADER + self._key
        return head
