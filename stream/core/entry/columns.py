"""Columns of an entry: values of one kind, decoded without a Python object per record."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal

from stream.errors import RecordFormatError

_IS_LITTLE_ENDIAN: Final = sys.byteorder == "little"


def _numbers(view: memoryview, typecode: Literal["i", "q"]) -> list[int]:
    if _IS_LITTLE_ENDIAN:
        return view.cast(typecode).tolist()
    return list(struct.unpack(f"<{len(view) // struct.calcsize('<' + typecode)}{typecode}", view))


class BinaryColumn:
    """A column of byte strings: int32 offsets and bytes, as in an Arrow BinaryArray. Both are
    views, not copies."""

    __slots__ = ("_checked", "count", "data", "offset", "offsets", "what")

    def __init__(
        self, offsets: memoryview, data: memoryview, count: int, offset: int, what: str
    ) -> None:
        self.offsets = offsets
        self.data = data
        self.count = count
        self.offset = offset
        self.what = what
        self._checked: list[int] | None = None

    def bounds(self) -> list[int]:
        """Returns the count+1 offsets, which never decrease and are inside the data. Raises
        RecordFormatError."""
        if self._checked is None:
            bounds = _numbers(self.offsets, "i")
            if sorted(bounds) != bounds:
                raise RecordFormatError(self.offset, f"offsets of the {self.what} decrease")
            self._checked = bounds
        return self._checked

    def items(self, first: int = 0, stop: int | None = None) -> list[bytes]:
        """Returns the items from `first` up to `stop` as bytes."""
        stop = self.count if stop is None else min(stop, self.count)
        if first == 0 and stop == self.count:
            if (unpack := self._unpack_even()) is not None:
                return list(unpack(self.data))
            data, bounds = bytes(self.data), self.bounds()
        else:
            # A caller may need a few of many items: only their bytes are copied.
            bounds = self.bounds()[first : stop + 1]
            base = bounds[0]
            data = bytes(self.data[base : bounds[-1]])
            bounds = [bound - base for bound in bounds]
        return [data[low:high] for low, high in pairwise(bounds)]

    def _unpack_even(self) -> Callable[[memoryview], tuple[bytes, ...]] | None:
        """Returns what unpacks all items if they have one length: that takes no look at each
        offset, and one call of struct is several times faster than slices."""
        if not self.count or not self.data or len(self.data) % self.count:
            return None
        offsets, unpack = _even_items(self.count, len(self.data) // self.count)
        return unpack if bytes(self.offsets) == offsets else None


@lru_cache(maxsize=16)
def _even_items(count: int, width: int) -> tuple[bytes, Callable[[memoryview], tuple[bytes, ...]]]:
    """Returns the offsets of items of one length as they are stored, and what unpacks the items."""
    offsets = struct.pack(f"<{count + 1}i", *range(0, count * width + 1, width))
    return offsets, struct.Struct(f"{width}s" * count).unpack
