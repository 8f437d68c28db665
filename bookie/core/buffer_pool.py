"""Reuses receive buffers: a new buffer costs a page fault for every 4 KiB."""

from __future__ import annotations

_SPARE_BYTES_MIN = 1024 * 1024
_SPARE_SHRINKS_MAX = 64 * 1024
"""A spare loses a byte each time it is used again."""
_SPARES_MAX = 8


class SegmentPool:
    """A few spare segments, shared by all connections and caches of a bookie."""

    def __init__(self) -> None:
        self._spares: list[bytearray] = []

    def take_segment(self, size: int) -> bytearray:
        """Returns a buffer of `size` bytes, or slightly fewer, to receive into. It holds zeros or
        old bytes."""
        for index, spare in enumerate(self._spares):
            if size - _SPARE_SHRINKS_MAX <= len(spare) <= size:
                return self._spares.pop(index)
        return bytearray(size)

    def give_back(self, segment: memoryview) -> None:
        """Keeps a freed segment for `take_segment` if no other view of it exists."""
        buffer = segment.obj
        assert isinstance(buffer, bytearray), "segments are receive buffers"
        segment.release()
        if len(buffer) < _SPARE_BYTES_MIN:
            return
        try:
            # A bytearray cannot be resized while any view of it exists: a journal group that is
            # being written, a reply that is being sent, another cache.
            buffer.pop()
        except BufferError:
            return
        self._spares.append(buffer)
        if len(self._spares) > _SPARES_MAX:
            # The large ones save most, and a busy connection uses no others.
            sizes = list(map(len, self._spares))
            del self._spares[sizes.index(min(sizes))]
