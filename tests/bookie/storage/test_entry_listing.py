"""Lists of entries out of cache and index: whole, bounded, and in small steps."""

from __future__ import annotations

from array import array

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.caches import WriteCache
from bookie.storage import entry_listing
from bookie.storage.entry_listing import list_entries
from bookie.storage.index.index import Index, PlacedRun
from bookie.testing.memory_key_value import MemoryKeyValue
from ledger.core.availability import decode_entries_held
from ledger.errors import BookieIoError

LEDGER = 7


def index_with(*runs: tuple[int, int]) -> Index:
    """`runs`: first entry and number of entries; other ledgers lie beside."""
    index = Index(MemoryKeyValue())
    placed = [PlacedRun(LEDGER, first, 1, 0, array("I", [50] * count)) for first, count in runs]
    around = [
        PlacedRun(ledger, 0, 1, 0, array("I", [50] * 90)) for ledger in (LEDGER - 1, LEDGER + 1)
    ]
    for _ in index.put_runs([around[0], *placed, around[1]]):
        pass
    return index


def cache_with(*generations: list[int]) -> WriteCache:
    """At most two: what is flushed now, and what came since."""
    cache = WriteCache(1 << 20)
    for number, ids in enumerate(generations):
        if number:
            cache.swap()
        cache.active[LEDGER] = dict.fromkeys(ids, 0)
        cache.active[LEDGER + 1] = {5: 0}
    return cache


async def listed(cache: WriteCache, index: Index) -> set[int]:
    held = await list_entries(cache, index, LEDGER)
    return {
        entry_id
        for first, last in decode_entries_held(held.encode())
        for entry_id in range(first, last + 1)
    }


IDS = st.lists(st.integers(0, 60), max_size=20)


@given(
    st.lists(st.integers(0, 60), unique=True, max_size=30).map(sorted),
    IDS,
    IDS,
    st.integers(1, 3),
)
def test_all_that_is_in_any_of_them(
    stored: list[int], flushing: list[int], active: list[int], step: int
) -> None:
    runs_per_step, ids_per_step = entry_listing._RUNS_PER_STEP, entry_listing._IDS_PER_STEP
    entry_listing._RUNS_PER_STEP = entry_listing._IDS_PER_STEP = step
    try:
        index = index_with(*((entry_id, 1) for entry_id in stored))
        found = trio.run(listed, cache_with(flushing, active), index)
    finally:
        entry_listing._RUNS_PER_STEP, entry_listing._IDS_PER_STEP = runs_per_step, ids_per_step
    assert found == {*stored, *flushing, *active}


async def test_others_run_between_the_steps() -> None:
    runs = [(entry_id, 1) for entry_id in range(0, 20_000, 3)]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        held = await list_entries(
            cache_with(list(range(50_000, 90_000))), index_with(*runs), LEDGER
        )
        nursery.cancel_scope.cancel()
    assert turns >= len(runs) // 100 + 40_000 // 10_000
    assert len(held.encode()) == 64 + 2 * 24, "stripes are one group, and the cache another"


async def test_what_moves_into_the_index_meanwhile_is_listed() -> None:
    """The checkpoint writes a run and then forgets it in the cache."""
    cache, index = cache_with([10, 11, 12]), index_with((0, 5))

    async def checkpoint() -> None:
        cache.swap()
        for _ in index.put_runs([PlacedRun(LEDGER, 10, 2, 0, array("I", [50] * 3))]):
            pass
        cache.flushed()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpoint)
        found = await listed(cache, index)
    assert found == {0, 1, 2, 3, 4, 10, 11, 12}


async def test_a_list_that_fits_no_frame_is_an_error() -> None:
    gaps = [step * (step + 1) // 2 for step in range(2, 360_000)]  # no two distances alike
    with pytest.raises(BookieIoError, match="exceed 4194304 bytes"):
        await list_entries(cache_with(gaps), index_with(), LEDGER)
