"""A stream in pages whose segments are merged, beside the same one in a list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from stream.core import segment_merging
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.pages import Pages, page_name
from stream.core.metadata.segments import Segment, SegmentEnd
from stream.core.metadata.streams import StreamMetadata
from stream.core.segment_merging import (
    AGE_MS,
    WHOLE_STREAM,
    MergeOutlook,
    MergePlan,
    MergeScope,
    explain_merging,
    merged,
)
from stream.core.sinks import committed
from stream.core.trash import without_replaced
from tests.stream.core.metadata.test_pages import (
    PageNodes,
    attempt,
)

POLICY = NamespaceMetadata(name="n", created_ms=0)
Place = tuple[int, int]
"""Number of a segment, and an entry of it."""


def every(stream: StreamMetadata) -> Iterator[Segment]:
    for span in stream.spans():
        for part in stream.pages.split(span, lambda _: True):
            assert isinstance(part, Segment)
            yield part


def as_made(segment: Segment) -> Segment:
    """Returns the segment as it was before it was merged."""
    if not segment.is_merged:
        return segment
    return replace(segment, ledger_id=segment.made_on, made_on=-1, base_entry=0, base_bytes=0)


class World:
    """A stream in pages whose segments are merged, the same one in a list, and its ledgers."""

    def __init__(self, segments_per_page: int = 2, runs_per_page: int = 2) -> None:
        self.nodes = PageNodes(segments_per_page, runs_per_page)
        self.plain = StreamMetadata(name="s", created_ms=1).taken_over()
        self.head = self.nodes.stored(self.plain)
        self.ledgers: dict[int, list[Place]] = {}
        """What each ledger has; None of those that are deleted."""
        self.made: set[int] = set()
        self.merges = self.copied = self.collected_ms = 0

    def change(self, change: object) -> None:
        assert callable(change)
        wanted = attempt(change, self.plain)
        found = self.nodes.ask(self.head, partial(attempt, change))
        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted
            return
        self.plain, self.head = wanted, self.nodes.stored(found)
        for segment in self.plain.segments:
            if not segment.is_open and segment.ledger_id not in self.made:
                self.made.add(segment.ledger_id)
                self.ledgers[segment.ledger_id] = [
                    (segment.number, entry) for entry in range(segment.last_entry + 1)
                ]

    def look(
        self, policy: NamespaceMetadata, now_ms: int, scope: MergeScope = WHOLE_STREAM
    ) -> MergeOutlook:
        question = partial(explain_merging, policy=policy, now_ms=now_ms, scope=scope)
        found = self.nodes.ask(self.head, question)
        assert found.reason
        return found

    def merge(self, ledger_id: int, now_ms: int, policy: NamespaceMetadata = POLICY) -> bool:
        plan = self.look(policy, now_ms + AGE_MS).plan
        if plan is not None:
            self.carry_out(plan, ledger_id, now_ms)
        return plan is not None

    def carry_out(self, plan: MergePlan, ledger_id: int, now_ms: int) -> None:
        self.ledgers[ledger_id] = [
            self.ledgers[segment.ledger_id][segment.base_entry + entry]
            for segment in plan.segments
            for entry in range(segment.last_entry + 1)
        ]
        change = partial(merged, plan=plan, ledger_id=ledger_id, now_ms=now_ms)
        self.head = self.nodes.stored(self.nodes.ask(self.head, change))
        self.merges += 1
        self.copied += plan.nbytes

    def collect(self, until_ms: int) -> None:
        """Deletes what merges have replaced, and the garbage."""
        self.collected_ms = max(self.collected_ms, until_ms)
        change = partial(without_replaced, until_ms=until_ms)
        self.head = self.nodes.stored(self.nodes.ask(self.head, change))
        for ledger_id in self.head.garbage:
            self.ledgers.pop(ledger_id, None)
        self.head = self.nodes.stored(self.head.forgotten(self.head.garbage))
        self.plain = self.plain.forgotten(self.plain.garbage)

    def segments(self) -> list[Segment]:
        return self.nodes.ask(self.head, lambda stream: list(every(stream)))

    def check(self) -> None:
        """Each entry is where its position says, and nothing else has changed."""
        segments = self.segments()
        assert [as_made(segment) for segment in segments] == list(self.plain.segments)
        for segment in segments:
            if segment.is_open:
                continue
            place = slice(segment.base_entry, segment.base_entry + segment.last_entry + 1)
            found = self.ledgers[segment.ledger_id][place]
            assert found == [(segment.number, entry) for entry in range(segment.last_entry + 1)]
        same = {"segments": (), "pages": Pages(), "garbage": ()}
        assert replace(self.head, **same) == replace(self.plain, **same)  # type: ignore[arg-type]

    def check_kept(self) -> None:
        """Deletes the garbage. Each ledger is there while segments are on it, or were before a
        merge, unless they were purged, and no longer."""
        for ledger_id in self.head.garbage:
            self.ledgers.pop(ledger_id, None)
        needed = {segment.ledger_id for segment in self.segments() if not segment.is_open}
        allowed = set(needed)
        for one in self.head.pages.replaced:
            assert one.first >= self.head.pages.first
            was = self.nodes.ask(
                self.head,
                lambda stream, one=one: list(stream.pages.split(one.run, one.has)),  # type: ignore[misc]
            )
            there = {s.ledger_id for s in was if isinstance(s, Segment) and one.has(s)}
            allowed |= there
            if one.replaced_ms > self.collected_ms:
                needed |= there
        assert needed <= self.ledgers.keys() <= allowed

    def check_ledgers(self) -> None:
        """No ledger is left that nothing needs, once all that was replaced is gone."""
        while self.head.pages.replaced:
            self.collect(1 << 40)
        self.collect(1 << 40)
        needed = {segment.ledger_id for segment in self.segments()} & self.ledgers.keys()
        assert set(self.ledgers) == needed
        # Pages that nothing names are removed, too.
        named, stack = set[str](), list(self.head.pages.roots)
        while stack:
            run = stack.pop()
            if run.last_number < self.head.pages.first:
                continue
            named.add(page_name(run))
            page = self.nodes.nodes[page_name(run)]
            below = self.nodes.ask(
                self.head,
                lambda stream, run=page.run: stream.pages.stored(run),  # type: ignore[misc]
            )
            stack += [span for span in below if not isinstance(span, Segment)]
        assert named == set(self.nodes.nodes)


def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has few segments merged at a time, up to 64 of them on a ledger."""
    monkeypatch.setattr(segment_merging, "LEDGERS_MIN", 2)
    monkeypatch.setattr(segment_merging, "LEDGERS_MAX", 6)
    monkeypatch.setattr(segment_merging, "SEGMENTS_MAX", 64)


def grown_world(count: int, nbytes: int = 10, per_page: int = 64) -> World:
    return world_of([nbytes] * count, per_page=per_page)


def world_of(sizes: list[int], *, per_page: int = 64, step_ms: int = 1) -> World:
    """A world of segments of these bytes, `step_ms` apart."""
    world = World(per_page, 16)
    at_once = 50 if step_ms == 1 else 1
    for begin in range(0, len(sizes), at_once):
        ends = [
            (n + 1, SegmentEnd(0, 1, sizes[n], step_ms * (n + 1), step_ms * (n + 1)))
            for n in range(begin, min(begin + at_once, len(sizes)))
        ]
        world.change(partial(committed, ends=ends, now_ms=step_ms * (begin + 1)))
    return world
