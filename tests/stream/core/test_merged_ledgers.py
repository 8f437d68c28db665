"""Ledgers of merged segments: how they are found by id and counted, when they go, and documents
that are wrong about them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ledger.errors import MetadataConflict, MetadataCorrupt
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.page_format import decode_page, rewritten
from stream.core.metadata.pages import Replaced, page_name
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.segment_merging import REPLACED_MAX, MergePlan, merged
from stream.core.trash import purged, without_replaced
from stream.reading.seek import ledgers_of
from tests.stream.core.merge_world import POLICY, World, grown_world, world_of

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


Question = Callable[[StreamMetadata, int], object]


def reads_of(world: World, question: Question, ledger_id: int) -> int:
    before = world.nodes.reads
    world.nodes.ask(world.head, lambda stream: question(stream, ledger_id))
    return world.nodes.reads - before


@pytest.mark.parametrize("question", [StreamMetadata.segment_on, StreamMetadata.needs])
def test_a_ledger_is_looked_for_in_one_page_of_each_level(question: Question) -> None:
    world = grown_world(1600, per_page=16)
    while world.merge(10**6 + world.merges, 1):
        pass
    while world.head.pages.replaced:
        world.collect(LATE_MS)
    levels = len(world.head.pages.levels)
    for ledger_id, most in ((10**5, 0), (10**7, 0), (800, levels), (10**6, levels)):
        assert reads_of(world, question, ledger_id) <= most


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


# Documents that are wrong.


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (3, {"ledger_id": 1}),
        (3, {"ledger_id": 1, "made_on": 3}),
        (2, {"ledger_id": 1}),
        (2, {"ledger_id": 1, "made_on": 2}),
        (121, {"base_entry": 1}),
        (121, {"base_bytes": 1}),
        (2, {"made_on": 5, "base_entry": 1}),
        (70, {"base_entry": 4}),
        (70, {"base_entry": 6}),
        (70, {"base_bytes": 51}),
        (70, {"made_on": -1}),
        (70, {"ledger_id": 70}),
    ],
)
def test_a_page_is_refused_in_which_a_ledger_has_no_neighbours(
    number: int, change: dict[str, int]
) -> None:
    world = grown_world(300)
    merge(world, 65, 120, 1000)
    (segment,) = (one for one in world.segments() if one.number == number)
    wrong = {number: replace(segment, **change)}  # type: ignore[arg-type]
    pages = world.nodes.ask(world.head, lambda known: rewritten(known.pages, wrong, 1))
    with pytest.raises(MetadataCorrupt, match="do not follow each other"):
        decode_page(pages.made[0].run, pages.made[0].data)


def test_what_is_in_use_is_not_removed_as_what_was_replaced() -> None:
    world = grown_world(300)
    root, changed = world.head.pages.roots[0], {1: replace(world.segments()[0], sealed_ms=9)}
    pages = world.nodes.ask(world.head, lambda known: rewritten(known.pages, changed, 1))
    other = pages.made[0]  # which is not of the stream, but lists the same ledgers
    world.nodes.nodes[page_name(other.run)] = other
    for run, last in ((root, 40), (root, 64), (other.run, 40), (other.run, 64)):
        pages = replace(world.head.pages, replaced=(Replaced(1, 1, last, run),))
        wrong = replace(world.head, pages=pages)
        with pytest.raises(MetadataCorrupt, match="Nothing is deleted"):
            world.nodes.ask(wrong, partial(without_replaced, until_ms=LATE_MS))
    pages = replace(world.head.pages, replaced=(Replaced(1, 1, 40, root),))
    wrong = replace(world.head, pages=pages, truncated_to=Position(41, 0, 0))
    with pytest.raises(MetadataCorrupt, match="segments 1 to 64 are in it"):
        world.nodes.ask(wrong, partial(purged, through=40))


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([(1, 9, 8)], "segments 9 to 8 are replaced"),
        ([(1, 0, 8)], "segments 0 to 8 are replaced in a page of 1 to 64"),
        ([(1, 1, 65)], "segments 1 to 65 are replaced"),
        ([(1, 1, 64)] * 257, "257 pages are replaced, limit 256"),
    ],
)
def test_what_was_replaced_is_in_the_page_that_is_named(
    rows: list[tuple[int, int, int]], error: str
) -> None:
    def change(document: dict[str, Any]) -> None:
        root = document["pages"]["levels"][0][0]
        document["pages"]["replaced"] = [[*row, *root] for row in rows]

    check_refused(change, error)


def test_only_pages_have_merged_segments() -> None:
    def change(document: dict[str, Any]) -> None:
        document["segment_columns"].append("base_entry")
        for row in document["segments"]:
            row.append(0)

    check_refused(change, "unknown columns")


def test_only_a_deleted_stream_has_no_segments_behind_its_pages() -> None:
    check_refused(lambda document: document.update(is_purged=True, segments=[]), "not deleted")


def check_refused(change: Callable[[dict[str, Any]], object], error: str) -> None:
    document = json.loads(zlib.decompress(encode_stream(grown_world(300).head)))
    change(document)
    with pytest.raises(MetadataCorrupt, match=error):
        decode_stream("s", json.dumps(document).encode())


def test_a_merge_that_others_came_before_adds_no_page_to_too_many() -> None:
    """One document names all pages that were replaced, and is read only up to a limit."""
    world = world_of([10] * 128)
    found = world.look(POLICY, 10**9)
    assert found.plan is not None
    rows = (Replaced(0, 1, 1, world.head.pages.roots[0]),) * REPLACED_MAX
    for count, is_refused in ((REPLACED_MAX - 1, False), (REPLACED_MAX, True)):
        head = replace(world.head, pages=replace(world.head.pages, replaced=rows[:count]))
        with pytest.raises(MetadataConflict) if is_refused else nullcontext():
            world.nodes.ask(head, partial(merged, plan=found.plan, ledger_id=10**6, now_ms=1))
