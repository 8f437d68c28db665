"""Columns of an entry as pyarrow arrays that share its buffers.

Arrow trusts its inputs, and unchecked offsets of a damaged entry would read anywhere in the
process: every array is checked before it is returned. Must never copy a column. pyarrow is optional
and is imported when a column is requested.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stream.errors import RecordFormatError

if TYPE_CHECKING:
    from stream.core.entry.columns import BinaryColumn


def arrow() -> Any:
    """Returns the pyarrow module. Raises ImportError."""
    return importlib.import_module("pyarrow")


def binary_array(column: BinaryColumn, kind: Any = None, validity: memoryview | None = None) -> Any:
    """Returns a column of bytes, or of text if `kind` says so. Raises RecordFormatError."""
    pa = arrow()
    bits = None if validity is None else pa.py_buffer(validity)
    made = pa.Array.from_buffers(
        pa.binary() if kind is None else kind,
        column.count,
        [bits, pa.py_buffer(column.offsets), pa.py_buffer(column.data)],
    )
    return _checked(pa, made, column.offset, column.what)


def times_array(times: memoryview, count: int, validity: memoryview | None) -> Any:
    """Returns a column of int64 milliseconds."""
    pa = arrow()
    bits = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(pa.int64(), count, [bits, pa.py_buffer(times)])


def pair_lists_array(
    lists: memoryview,
    count: int,
    offset: int,
    names: BinaryColumn,
    values: BinaryColumn,
    kind: Any,
    validity: memoryview | None,
) -> Any:
    """Returns lists of pairs of a name and a value; `offset` is where the lists begin in the
    payload.

    `kind` is the Arrow type, None for the plain one; `validity` is that of the values. Raises
    RecordFormatError.
    """
    pa = arrow()
    kind = plain_pair_lists() if kind is None else kind
    pairs = pa.Array.from_buffers(
        kind.value_type,
        names.count,
        [None],
        children=[binary_array(names, pa.string()), binary_array(values, validity=validity)],
    )
    made = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(lists)], children=[pairs])
    return _checked(pa, made, offset, "headers")


def plain_pair_lists() -> Any:
    """Returns the Arrow type of headers."""
    pa = arrow()
    return pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))


def _checked(pa: Any, made: Any, offset: int, what: str) -> Any:
    try:
        made.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RecordFormatError(offset, f"{what}: {str(error)[:200]}") from None
    return made
