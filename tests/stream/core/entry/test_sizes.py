"""Sizes of records, and the number of records that fill a batch."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from stream.core.entry.sizes import first_to_fill


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
