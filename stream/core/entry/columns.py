"""Columns of an entry: values of one kind, decoded without a Python object per record."""

from __future__ import annotations

import struct
import sys
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
        bounds = self.bounds()
        if first or (stop is not None and stop < self.count):
            bounds = bounds[first : (self.count if stop is None else stop) + 1]
            # A caller may need a few of many items: only their bytes are copied.
            base = bounds[0]
            data = bytes(self.data[base : bounds[-1]])
            if base:
                bounds = [bound - base for bound in bounds]
        else:
            data = bytes(self.data)
        count = len(bounds) - 1
        start, total = bounds[0], bounds[-1] - bounds[0]
        width = total // count if count else 0
        if (
            width
            and width * count == total
            and bounds == list(range(start, start + total + 1, width))
        ):
            # All items have one length: one call of struct is several times faster than slices.
            return list(struct.unpack_from(f"{width}s" * count, data, start))
        return [data[low:high] for low, high in pairwise(bounds)]
