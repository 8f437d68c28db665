"""Sizes of records, and the number of records that fill a batch."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stream.core.entry.record_columns import RecordColumns
from stream.core.entry.records import NULL
from stream.core.entry.sizes import first_to_fill, many_bytes, record_bytes


def one_after_the_other(sizes: list[int], budget: int) -> tuple[int, int]:
    count = taken = 0
    for size in sizes:
        count += 1
        taken += size
        if taken >= budget:
            break
    return count, taken


SIZES = st.integers(16, 40)
LISTS = st.one_of(
    st.lists(SIZES, min_size=1, max_size=30),
    st.builds(lambda size, count: [size] * count, SIZES, st.integers(1, 30)),
)


@given(LISTS, st.integers(-20, 600))
@example([20, 20, 20], 40)
@example([20, 20, 20], 41)
@example([20, 20, 20], 0)
@example([16, 40, 16], 32)
def test_a_batch_is_filled_as_if_records_came_one_by_one(sizes: list[int], budget: int) -> None:
    assert first_to_fill(sizes, budget) == one_after_the_other(sizes, budget)


def test_a_null_value_that_was_read_is_not_appended_in_silence() -> None:
    for value, headers in ((NULL, ()), (b"v", (("n", NULL),))):
        with pytest.raises(
            TypeError, match=r"null value, .*Cure: .* bytes\(value\), which is empty"
        ):
            record_bytes(value, b"k", None, headers)
    with pytest.raises(TypeError, match="null value"):
        many_bytes(RecordColumns([b"v", NULL]))
    assert record_bytes(bytes(NULL), b"k", None, (("n", bytes(NULL)),)) > 0
