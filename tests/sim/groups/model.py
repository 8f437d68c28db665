"""The oracle of consumer groups: what was handed out, handled, and may therefore be committed.

It stands at the metadata store itself and sees every change of a cursor as it happens, whatever
makes it: [G1] committed positions never go back; [G2] one epoch of a partition has one holder,
and epochs rise; [G3] nothing is committed that nobody handled; [G4] in the end all of a stream
is handled, at least once; [G5] in calm the group comes to rest, balanced; [G6] nothing is taken
from a living holder before its time to hand over has passed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bookie.testing.scheduler import Simulation
from ledger.metastore.base import Change, Check, Delete, Put
from ledger.metastore.memory import MemoryTree
from stream.core.entry.records import Record
from stream.core.metadata.cursors import CursorMetadata, decode_cursor
from stream.core.metadata.groups import decode_group
from stream.core.position import Position
from tests.sim.model import Violation

_SLOW_S = 15.0
"""Within so long after a death others may act on it, though the member is back."""


@dataclass(slots=True)
class PartitionHistory:
    """What is known of one partition. `handled_to` is the first sequence nobody has handled."""

    handed_out: list[tuple[Position, int]] = field(default_factory=list)
    sequences: dict[int, Position] = field(default_factory=dict)
    handled: dict[int, None] = field(default_factory=dict)
    handled_to: int = 0
    holders: dict[int, str] = field(default_factory=dict)
    cursor: CursorMetadata | None = None


class GroupModel:
    """Everything known of one group on one stream."""

    def __init__(
        self, root: str, stream: str, group: str, tree: MemoryTree, simulation: Simulation
    ) -> None:
        self.counts: dict[str, int] = {}
        self.partitions: dict[str, PartitionHistory] = {}
        self._cursors_prefix = f"{root}/cursors/"
        self._cursors_suffix = f"/{group}"
        self._group = group
        self._group_path = f"{root}/groups/{stream}/{group}"
        self._tree = tree
        self._simulation = simulation
        self._hand_over_s = 0.0
        self._assignment: dict[str, tuple[str, float]] = {}
        """Who should have a partition, and since when."""
        self._deaths: dict[str, float] = {}
        """When the node of a member vanished last."""

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def of(self, partition: str) -> PartitionHistory:
        return self.partitions.setdefault(partition, PartitionHistory())

    # What members report.

    def handed_out(self, partition: str, record: Record) -> None:
        history = self.of(partition)
        there = history.sequences.setdefault(record.sequence, record.position)
        if there != record.position:
            self.violated(f"{partition}: record {record.sequence} is at {record.position}, {there}")
        if record.sequence in history.handled:
            self.count("records handed out again")
        place = (record.position, record.sequence)
        index = bisect_left(history.handed_out, place)
        if index == len(history.handed_out) or history.handed_out[index] != place:
            insort(history.handed_out, place)

    def handled(self, partition: str, record: Record) -> None:
        history = self.of(partition)
        history.handled[record.sequence] = None
        while history.handled_to in history.handled:
            history.handled_to += 1
        self.count("records handled")

    # What the store sees.

    def watch(self, hand_over_s: float) -> None:
        """Looks at every change of the tree from now on."""
        self._hand_over_s = hand_over_s
        tree = self._tree
        change_tree, drop_ephemerals = tree.apply, tree.drop_ephemerals

        def apply(changes: Sequence[Change], session: Any, now_ms: int) -> None:
            change_tree(changes, session, now_ms)
            for change in changes:
                self._saw(change)

        def drop(session: Any) -> None:
            for path in session.ephemerals:
                self._member_died(path)
            drop_ephemerals(session)

        tree.apply = apply  # type: ignore[method-assign]
        tree.drop_ephemerals = drop  # type: ignore[method-assign]

    def _saw(self, change: Change) -> None:
        path = change.path
        if isinstance(change, Check):
            return
        if path.startswith(self._cursors_prefix) and path.endswith(self._cursors_suffix):
            node = self._tree.get(path)
            assert node is not None, "nobody removes cursors here"
            partition = path[len(self._cursors_prefix) : -len(self._cursors_suffix)]
            self._cursor_changed(partition, decode_cursor(self._group, node.data))
        elif isinstance(change, Put) and path == self._group_path:
            group = decode_group(self._group, change.data)
            for partition, member in group.assignment.items():
                if self._assignment.get(partition, ("", 0))[0] != member:
                    self._assignment[partition] = (member, self._simulation.now_s)
            self.count("changes of the assignment")
        elif isinstance(change, Delete):
            self._member_died(path)

    def _member_died(self, path: str) -> None:
        prefix = f"{self._group_path}/members/"
        if path.startswith(prefix):
            self._deaths[path[len(prefix) :]] = self._simulation.now_s

    def _cursor_changed(self, partition: str, cursor: CursorMetadata) -> None:
        history = self.of(partition)
        before, history.cursor = history.cursor, cursor
        if before is not None:
            if cursor.position < before.position:
                self.violated(
                    f"[G1] {partition}: committed {before.position}, then {cursor.position}"
                )
            if cursor.epoch < before.epoch or cursor.epoch > before.epoch + 1:
                self.violated(f"[G2] {partition}: epoch {before.epoch}, then {cursor.epoch}")
            if cursor.epoch > before.epoch:
                self._check_taken(partition, before, cursor)
            elif not before.holder and cursor.holder:
                self.violated(f"[G2] {partition}: epoch {cursor.epoch} has a second holder")
        if cursor.holder:
            token = history.holders.setdefault(cursor.epoch, cursor.token)
            if token != cursor.token:
                self.violated(f"[G2] {partition}: {token} and {cursor.token} at {cursor.epoch}")
        self._check_handled(partition, history, cursor.position)
        self.count("changes of cursors")

    def _check_taken(self, partition: str, before: CursorMetadata, cursor: CursorMetadata) -> None:
        if not before.holder:
            self.count("partitions acquired that were released")
            return
        node = self._tree.get(f"{self._group_path}/members/{before.holder}")
        if node is None or node.data != before.token.encode() or before.token == cursor.token:
            self.count("partitions acquired of the dead")
            return
        self.count("partitions acquired by force")
        now_s = self._simulation.now_s
        since_s = self._assignment.get(partition, ("", -1e9))[1]
        was_dead_s = self._deaths.get(before.holder, -1e9)
        if now_s - since_s < self._hand_over_s and now_s - was_dead_s > _SLOW_S:
            self.violated(
                f"[G6] {partition}: taken from {before.holder}, which is alive and had only "
                f"{now_s - since_s:.1f} s to hand it over"
            )

    def _check_handled(self, partition: str, history: PartitionHistory, position: Position) -> None:
        index = bisect_left(history.handed_out, (position, -1))
        if not index:
            return
        last_before = history.handed_out[index - 1][1]
        if last_before >= history.handled_to:
            self.violated(
                f"[G3] {partition}: {position} committed, record {last_before} is before it, "
                f"and nobody has handled record {history.handled_to}"
            )

    # The end.

    def whole(self, partition: str, records: list[Record]) -> None:
        """All that is in a partition."""
        history = self.of(partition)
        missing = [record.sequence for record in records if record.sequence not in history.handled]
        if missing:
            self.violated(f"[G4] {partition}: records {missing[:5]} were never handled")
        self.count("records there", len(records))

    def violated(self, text: str) -> None:
        error = Violation(f"group: {text}")
        self._simulation.fail(error)
        raise error
