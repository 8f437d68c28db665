"""Lists which entries of a ledger are stored, from write cache and index. No entry is read.

A ledger may have a hundred million entries, so other tasks run between the steps, and what is built
is bounded. The cache is read first, so that an entry that moves into the index is seen in one of
them; entries added meanwhile may be missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice

import trio

from bookie.core.caches import WriteCache
from bookie.storage.index.index import Index
from ledger.core.availability import EntriesHeld
from ledger.errors import BookieIoError

LIST_BYTES_MAX = 4 * 1024 * 1024
"""A longer list would not fit into the frame of its reply."""
_IDS_PER_STEP = 10_000
_RUNS_PER_STEP = 100


async def list_entries(cache: WriteCache, index: Index, ledger_id: int) -> EntriesHeld:
    """Lists the entries of a ledger that are stored. Raises BookieIoError for a damaged index, and
    for a list above LIST_BYTES_MAX."""
    held = EntriesHeld()
    cached = await _cached_ranges(cache, ledger_id)
    taken = at = 0
    is_all = False
    while not is_all:
        stored = list(islice(_ranges_from(index, ledger_id, at), _RUNS_PER_STEP))
        is_all = len(stored) < _RUNS_PER_STEP
        end = len(cached)
        if not is_all:
            at = stored[-1][1] + 1
            end = bisect_left(cached, (at, 0))
        await _add(held, merge(cached[taken:end], stored), ledger_id)
        taken = end
    return held


async def _add(held: EntriesHeld, ranges: Iterable[tuple[int, int]], ledger_id: int) -> None:
    every = iter(ranges)
    while step := list(islice(every, _IDS_PER_STEP)):
        for first, last in step:
            held.add(first, last)
        if held.nbytes > LIST_BYTES_MAX:
            raise BookieIoError(
                f"ledger {ledger_id} has too many gaps here: its list of entries would "
                f"exceed {LIST_BYTES_MAX} bytes: read the entries instead"
            )
        await trio.lowlevel.checkpoint()


def _ranges_from(index: Index, ledger_id: int, at: int) -> Iterator[tuple[int, int]]:
    """Yields what the index holds from entry `at` on. Must not be kept over an await."""
    for run in index.runs(ledger_id, at):
        yield max(run.first, at), run.last


async def _cached_ranges(cache: WriteCache, ledger_id: int) -> list[tuple[int, int]]:
    """Returns ranges in the order of their first entries: no more than the cache has entries."""
    ids: list[int] = []
    for half in (cache.flushing, cache.active):
        ids += (half or {}).get(ledger_id, ())
    ranges: list[tuple[int, int]] = []
    first = last = -1
    for start in range(0, len(ids), _IDS_PER_STEP):
        for entry_id in ids[start : start + _IDS_PER_STEP]:
            if entry_id == last + 1 and first >= 0:
                last = entry_id
                continue
            if first >= 0:
                ranges.append((first, last))
            first = last = entry_id
        await trio.lowlevel.checkpoint()
    if first >= 0:
        ranges.append((first, last))
    ranges.sort()
    return ranges
