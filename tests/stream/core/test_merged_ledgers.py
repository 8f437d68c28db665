"""Ledgers of merged segments: how they are found by id and counted, and when they go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.segment_merging import MergePlan
from stream.core.trash import purged
from stream.reading.seek import ledgers_of
from tests.stream.core.merge_world import World, grown_world

LATE_MS = 10**9


def merge(world: World, first: int, last: int, ledger_id: int) -> None:
    segments = tuple(one for one in world.segments() if first <= one.number <= last)
    world.carry_out(MergePlan(segments, len({one.ledger_id for one in segments})), ledger_id, 1)


def purge(world: World, through: int) -> None:
    """Truncates and purges until there is nothing left to do."""
    to = Position(through + 1, 0, 0)
    world.change(partial(StreamMetadata.truncated, position=to, now_ms=5))
    first = -1
    while world.head.pages.first > first or world.head.pages.has_purged:
        first = world.head.pages.first
        world.change(partial(purged, through=through))


def left(world: World) -> set[int]:
    """Deletes the garbage, and returns the ledgers that are left."""
    world.check_kept()
    return set(world.ledgers)


@pytest.mark.parametrize("question", [StreamMetadata.segment_on, StreamMetadata.needs])
def test_a_ledger_is_looked_for_in_one_page_of_each_level(
    question: Callable[[StreamMetadata, int], object],
) -> None:
    world = grown_world(1600, per_page=16)
    while world.merge(10**6 + world.merges, 1):
        pass
    while world.head.pages.replaced:
        world.collect(LATE_MS)
    levels = len(world.head.pages.levels)
    for ledger_id, most in ((10**5, 0), (10**7, 0), (800, levels), (10**6, levels)):
        reads = world.nodes.reads
        world.nodes.ask(world.head, partial(question, ledger_id=ledger_id))
        assert world.nodes.reads - reads <= most


def test_a_ledger_that_begins_in_purged_segments_is_counted() -> None:
    world = grown_world(300)
    merge(world, 1, 100, 1000)
    merge(world, 102, 192, 2000)
    for through, ledgers in ((0, 3), (40, 3), (64, 3), (70, 3), (100, 2), (128, 1)):
        purge(world, through)
        spans = world.nodes.ask(world.head, StreamMetadata.live)
        assert ledgers_of(spans) == ledgers + 108


# What was purged goes at once, also as it was before a merge.


def test_a_purge_frees_what_segments_were_on_before_they_were_merged() -> None:
    world = grown_world(300)
    merge(world, 1, 192, 1000)
    for through in (64, 100, 128):
        purge(world, through)
        assert left(world) == {*range(through + 1, 301), 1000}
        assert min(one.first for one in world.head.pages.replaced) == through + 1
    purge(world, 192)
    assert left(world) == set(range(193, 301))
    assert not world.head.pages.replaced
    world.check_ledgers()


def test_a_ledger_that_was_merged_again_stays_until_its_last_segment_is_purged() -> None:
    """Also where that is in another page than the first one."""
    world = grown_world(300)
    merge(world, 60, 70, 1000)
    merge(world, 1, 192, 2000)
    for through in (10, 64, 65):
        purge(world, through)
        assert left(world) == {*range(through + 1, 301), 1000, 2000}
    purge(world, 70)
    assert left(world) == {*range(71, 301), 2000}
    purge(world, 192)
    assert left(world) == set(range(193, 301))
    world.check_ledgers()


def test_merges_of_purged_segments_are_taken_a_few_at_a_time() -> None:
    world = grown_world(300)
    for number in range(1, 193, 16):
        merge(world, number, number + 15, 1000 + number)
    pages, taken = replace(world.head.pages, first=193), list[int]()
    while pages.has_purged:
        stream = replace(world.head, pages=pages)
        some, pages = world.nodes.ask(stream, lambda known: known.pages.without_purged(20))
        assert len(some) == 32
        taken += [segment.ledger_id for segment in some]
    assert taken == list(range(1, 193))
