"""Ledgers of merged segments: how they are found by id and counted."""

from __future__ import annotations

from collections.abc import Callable
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
    to = Position(through + 1, 0, 0)
    world.change(partial(StreamMetadata.truncated, position=to, now_ms=5))
    world.change(partial(purged, through=through))


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
