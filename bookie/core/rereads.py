"""Which parts of entry logs are read more than once, and so are worth the system's page cache.

Most of what is read from a disk is read once, in order, by somebody who catches up: to put it into
the page cache would cost more than the reading (docs/adr/0013). What is read again, because there
are several readers or one that begins anew, is cheaper from there.
"""

from __future__ import annotations

from collections import OrderedDict

STRETCH_BYTES = 1 << 20
"""Logs are looked at in stretches of so many bytes."""
_AGAIN = 1 << 63


class Rereads:
    """Remembers how far the last stretches that were read were read, in some 200 bytes each."""

    def __init__(self, stretches_max: int = 16_384) -> None:
        assert stretches_max > 0
        self._stretches_max = stretches_max
        self._ends: OrderedDict[tuple[int, int], int] = OrderedDict()
        """Per log and stretch: the offset it was read to, or _AGAIN."""

    def is_again(self, log_id: int, offset: int, size: int) -> bool:
        """Notes a read of `size` bytes; whether it begins before the end of a former one in a
        stretch that it touches. Such a stretch counts as read again until it is forgotten."""
        ends, end = self._ends, offset + size
        is_any_again = False
        for stretch in range(offset // STRETCH_BYTES, (end - 1) // STRETCH_BYTES + 1):
            key = (log_id, stretch)
            read_to = ends.pop(key, 0)
            is_again = offset < read_to
            is_any_again = is_any_again or is_again
            ends[key] = _AGAIN if is_again else end
        while len(ends) > self._stretches_max:
            ends.popitem(last=False)
        return is_any_again
