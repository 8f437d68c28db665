"""The oracle of retention: sees every change of the metadata at the instant it happens.

Nothing that policy, cursors and trash keep may go; a ledger may vanish only when nothing names it
that could be read or brought back; and what is due goes within a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ledger.core.metadata_format import decode
from ledger.metastore.base import Change, Check
from ledger.metastore.memory import MemoryTree
from stream.core.metadata.cursors import CursorMetadata, decode_cursor
from stream.core.metadata.format import decode_namespace, decode_stream
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.streams import Segment, StreamMetadata
from stream.core.position import BEGINNING, Position
from stream.store.streams import ROOT, parse_trash_name
from tests.sim.model import Violation
from tests.sim.page_limits import as_one_list, replaced_ledgers

LATE_MS = 10_000
"""A change may happen so long after it was decided (see MetadataOptions)."""

Key = tuple[str, str]
"""Namespace and stream."""


@dataclass(slots=True)
class Life:
    """What users ask of one stream."""

    asked: list[tuple[Position, float]] = field(default_factory=list)
    """Truncations in progress, and until when they may happen."""

    def truncating_to(self, now_ms: int) -> Position:
        self.asked = [ask for ask in self.asked if ask[1] >= now_ms]
        return max((position for position, _ in self.asked), default=BEGINNING)


@dataclass(slots=True)
class RetentionModel:
    """Attach it to a tree before anything is in it."""

    tree: MemoryTree
    fail: Callable[[BaseException], None]
    orphan_age_ms: int
    replaced_ms: int
    counts: dict[str, int] = field(default_factory=dict)
    policies: dict[str, NamespaceMetadata] = field(default_factory=dict)
    streams: dict[str, StreamMetadata] = field(default_factory=dict)
    """By path: streams, tombstones and what is in the trash."""
    cursors: dict[str, CursorMetadata] = field(default_factory=dict)
    lives: dict[Key, Life] = field(default_factory=dict)
    purges: dict[Key, int] = field(default_factory=dict)
    """When a user last asked for a purge."""
    ledgers: dict[int, int] = field(default_factory=dict)
    """Those that exist, and since when."""
    named: dict[int, str] = field(default_factory=dict)
    """The path of the node that needs the ledger."""
    garbage_ms: dict[int, int] = field(default_factory=dict)
    merged: dict[int, tuple[int, int]] = field(default_factory=dict)
    """When all segments of a ledger were merged, and the last of them: readers may have it open."""
    due_ms: dict[str, int] = field(default_factory=dict)
    """What was due at the last audit, and at all audits since then."""
    longest_wait_ms: int = 0
    expired: dict[int, None] = field(default_factory=dict)
    """Ledgers of segments that a policy has dropped."""

    def __post_init__(self) -> None:
        apply = self.tree.apply

        def observed(changes: Sequence[Change], session: object, now_ms: int) -> None:
            apply(changes, session, now_ms)  # type: ignore[arg-type]
            try:
                self._happened(changes, now_ms)
            except Violation as error:
                self.fail(error)

        self.tree.apply = observed  # type: ignore[method-assign]

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def life(self, key: Key) -> Life:
        return self.lives.setdefault(key, Life())

    # Changes

    def _happened(self, changes: Sequence[Change], now_ms: int) -> None:
        touched: dict[str, StreamMetadata | None] = {}
        gone: list[int] = []
        for change in changes:
            if isinstance(change, Check):
                continue
            node = self.tree.get(change.path)
            if change.path.startswith("/ledgers/") and change.path[-5:-4] == "L":
                ledger_id = int("".join(filter(str.isdigit, change.path)))
                if node is None:
                    gone.append(ledger_id)
                elif ledger_id not in self.ledgers:
                    # It may be made later than it was asked for; its age counts from then.
                    self.ledgers[ledger_id] = decode(ledger_id, node.data).created_ms
                continue
            parts = change.path.removeprefix(f"{ROOT}/").split("/")
            data = None if node is None else node.data
            if len(parts) == 1:
                if data:
                    self.policies[parts[0]] = decode_namespace(parts[0], data)
            elif parts[1] == "streams" and len(parts) == 3:
                touched[change.path] = None if data is None else self._decoded(parts[2], data)
            elif parts[1] == "trash" and len(parts) == 3:
                parsed = parse_trash_name(parts[2])
                assert parsed is not None, change.path
                touched[change.path] = None if data is None else self._decoded(parsed[0], data)
            elif parts[1] == "cursors" and len(parts) == 4:
                if data is None:
                    self.cursors.pop(change.path, None)
                else:
                    self.cursors[change.path] = decode_cursor(parts[3], data)
        if touched:
            self._streams_changed(touched, now_ms)
        for ledger_id in gone:
            self._ledger_gone(ledger_id, now_ms)

    def _decoded(self, name: str, data: bytes) -> StreamMetadata:
        def read(path: str) -> bytes:
            node = self.tree.get(path)
            if node is None:
                raise Violation(f"stream {name!r} names page {path}, which is missing")
            return node.data

        stream = decode_stream(name, data)
        self.count("documents with pages", bool(stream.pages))
        flat = as_one_list(stream, read)
        # What was replaced may go, later: nothing but a reader that knows no better needs it.
        replaced = replaced_ledgers(stream, read)
        self.merged |= replaced
        for ledger_id in (*replaced, *stream.garbage):
            _, last = self.merged.get(ledger_id, (0, 0))
            if stream.is_purged or last < stream.pages.first:
                self.merged.pop(ledger_id, None)
        return replace(flat, garbage=(*flat.garbage, *replaced))

    def _streams_changed(self, touched: dict[str, StreamMetadata | None], now_ms: int) -> None:
        before = {path: self.streams.get(path) for path in touched}
        needed_before = _all(before, _needed)
        needed = _all(touched, _needed)
        for path, stream in touched.items():
            old = before[path]
            if old is not None and stream is not None:
                self._changed(path, old, stream, needed, now_ms)
            if stream is None:
                self.streams.pop(path, None)
            else:
                self.streams[path] = stream
        garbage_before = _all(before, lambda s: s.garbage)
        garbage = _all(touched, lambda s: s.garbage)
        for ledger_id in needed:
            if ledger_id in needed_before:
                self.named[ledger_id] = needed[ledger_id]
                continue
            if ledger_id not in self.ledgers:
                self._violated(f"{needed[ledger_id]} needs ledger {ledger_id}, which is deleted")
            if ledger_id in garbage_before:
                self._violated(f"{needed[ledger_id]} needs ledger {ledger_id}, which was garbage")
            if ledger_id in self.named:
                self._violated(
                    f"ledger {ledger_id} is needed by {self.named[ledger_id]} and by "
                    f"{needed[ledger_id]}"
                )
            self.named[ledger_id] = needed[ledger_id]
        for ledger_id in needed_before:
            if ledger_id not in needed:
                self.named.pop(ledger_id, None)
                if ledger_id not in garbage:
                    self._violated(f"ledger {ledger_id} was forgotten without becoming garbage")
        for ledger_id in garbage:
            if ledger_id in self.ledgers:
                self.garbage_ms.setdefault(ledger_id, now_ms)
        for ledger_id in garbage_before:
            if ledger_id not in garbage and ledger_id in self.ledgers:
                self._violated(f"ledger {ledger_id} was forgotten as garbage, and is still there")

    def _changed(
        self,
        path: str,
        old: StreamMetadata,
        new: StreamMetadata,
        needed: dict[int, str],
        now_ms: int,
    ) -> None:
        namespace, _, name = path.removeprefix(f"{ROOT}/").split("/")
        policy = self.policies[namespace]
        has_moved = all(ledger_id in needed for ledger_id in _needed(old))
        if new.is_purged and not old.is_purged and not has_moved:
            name, deleted_ms = parse_trash_name(name) or ("", 0)
            is_asked = now_ms - self.purges.get((namespace, name), -1 << 40) <= LATE_MS
            if now_ms - deleted_ms < policy.trash_ms and not is_asked:
                self._violated(
                    f"{path} was purged {now_ms - deleted_ms} ms after its deletion, the trash "
                    f"keeps {policy.trash_ms}"
                )
            self.count("deleted streams purged")
        if old.is_deleted or new.is_deleted or old.created_ms != new.created_ms:
            return
        key = (namespace, name)
        if new.truncated_to > old.truncated_to:
            self._check_dropped(key, old, new, policy, now_ms)
        elif new.truncated_to < old.truncated_to:
            self.count("segments untruncated", len(_live(new)) - len(_live(old)))
        numbers = {segment.number for segment in new.segments}
        purged = [s for s in old.segments if s.number not in numbers and not s.is_open]
        for segment in purged:
            self._check_purged(key, old, new, segment, policy, now_ms)

    def _check_dropped(
        self,
        key: Key,
        old: StreamMetadata,
        new: StreamMetadata,
        policy: NamespaceMetadata,
        now_ms: int,
    ) -> None:
        by_hand = self.life(key).truncating_to(now_ms)
        dropped = [s for s in _live(old) if not s.is_open and s.end <= new.truncated_to]
        if new.truncated_to > by_hand and (not dropped or dropped[-1].end != new.truncated_to):
            self._violated(f"{key}: retention truncated {new.truncated_to}, inside a segment")
        for segment in dropped:
            if segment.end <= by_hand:
                self.count("segments truncated by hand")
            elif self.may_drop(key, _live(old), segment, old.created_ms, policy, now_ms):
                self.count("segments dropped by policy")
                self.expired[segment.ledger_id] = None
            else:
                self._violated(
                    f"{key}: segment {segment.number} was dropped, and is not expired: {segment}, "
                    f"now {now_ms}, {policy}, asked to truncate to {by_hand}"
                )
        marked = {segment.number: segment.dropped_ms for segment in _dropped(new)}
        for segment in dropped:
            if segment.number in marked and not -1 < now_ms - marked[segment.number] <= LATE_MS:
                self._violated(f"{key}: segment {segment.number} is dropped at no such time")

    def may_drop(
        self,
        key: Key,
        live: Sequence[Segment],
        segment: Segment,
        created_ms: int,
        policy: NamespaceMetadata,
        now_ms: int,
    ) -> bool:
        """The plainest statement of the policy; that older ones go first is seen elsewhere."""
        behind = sum(s.nbytes for s in live if s.number > segment.number and not s.is_open)
        is_old = (
            policy.retention_ms is not None and now_ms - segment.last_time_ms > policy.retention_ms
        )
        is_surplus = policy.retention_bytes is not None and behind >= policy.retention_bytes
        for name in policy.retention_cursors:
            cursor = self.cursors.get(f"{ROOT}/{key[0]}/cursors/{key[1]}/{name}")
            if cursor is None or cursor.is_deleted or cursor.stream_created_ms != created_ms:
                return False
            if cursor.position < segment.end:
                return False
        return is_old or is_surplus

    def _check_purged(
        self,
        key: Key,
        old: StreamMetadata,
        new: StreamMetadata,
        segment: Segment,
        policy: NamespaceMetadata,
        now_ms: int,
    ) -> None:
        self.count("segments purged")
        if segment.end > new.truncated_to:
            self._violated(f"{key}: segment {segment.number} was purged, and not truncated")
        waited_ms = now_ms - segment.dropped_ms if segment.dropped_ms >= 0 else 0
        is_asked = now_ms - self.purges.get(key, -1 << 40) <= LATE_MS
        if waited_ms < policy.trash_ms and not is_asked:
            self._violated(
                f"{key}: segment {segment.number} was purged {waited_ms} ms after it was dropped, "
                f"the trash keeps {policy.trash_ms}"
            )

    def _ledger_gone(self, ledger_id: int, now_ms: int) -> None:
        created_ms = self.ledgers.pop(ledger_id, None)
        if created_ms is None:
            return
        if ledger_id in self.named:
            self._violated(f"ledger {ledger_id} was deleted, {self.named[ledger_id]} needs it")
        merged_ms, _ = self.merged.pop(ledger_id, (now_ms - self.replaced_ms, 0))
        kept_ms = now_ms - merged_ms
        if kept_ms < self.replaced_ms:
            self._violated(f"ledger {ledger_id} was deleted {kept_ms} ms after it was merged")
        if self.garbage_ms.pop(ledger_id, None) is not None:
            self.count("ledgers deleted")
            if ledger_id in self.expired:
                del self.expired[ledger_id]
                self.count("expiries")
        elif now_ms - created_ms < self.orphan_age_ms:
            self._violated(f"ledger {ledger_id} was deleted as an orphan when it was too young")
        else:
            self.count("orphans deleted")

    # What must have gone by now

    def audit(self, now_ms: int, bound_ms: int) -> None:
        """Nothing may be due for longer than `bound_ms`; call it every few seconds."""
        due = {f"ledger {ledger_id} as garbage" for ledger_id in self.garbage_ms}
        for path, stream in self.streams.items():
            namespace, folder, name = path.removeprefix(f"{ROOT}/").split("/")
            policy = self.policies[namespace]
            if folder == "trash":
                if not stream.is_purged and now_ms - stream.deleted_ms >= policy.trash_ms:
                    due.add(f"{path} as a whole")
                continue
            dropped, live = _dropped(stream), [s for s in _live(stream) if not s.is_open]
            if dropped and now_ms - dropped[0].dropped_ms >= policy.trash_ms:
                first = dropped[0]
                due.add(f"{path} segment {first.ledger_id} in the trash from {first.dropped_ms}")
            key = (namespace, name)
            if live and self.may_drop(key, live, live[0], stream.created_ms, policy, now_ms):
                due.add(f"{path} segment {live[0].ledger_id} by policy")
        self.due_ms = {what: self.due_ms.get(what, now_ms) for what in sorted(due)}
        for what, since_ms in self.due_ms.items():
            self.longest_wait_ms = max(self.longest_wait_ms, now_ms - since_ms)
            if now_ms - since_ms > bound_ms:
                self._violated(f"{what} is due for {now_ms - since_ms} ms")
        self.count("audits")

    def _violated(self, text: str) -> None:
        raise Violation(text)


def _live(stream: StreamMetadata) -> list[Segment]:
    return [segment for segment in stream.segments if stream.is_live(segment)]


def _dropped(stream: StreamMetadata) -> list[Segment]:
    return [segment for segment in stream.segments if stream.is_dropped(segment)]


def _needed(stream: StreamMetadata) -> tuple[int, ...]:
    """Ledgers that must not go: garbage may."""
    return stream.ledgers()[: len(stream.ledgers()) - len(stream.garbage)]


def _all(
    nodes: dict[str, StreamMetadata | None],
    ledgers: Callable[[StreamMetadata], tuple[int, ...]],
) -> dict[int, str]:
    return {
        ledger_id: path
        for path, stream in nodes.items()
        if stream is not None
        for ledger_id in ledgers(stream)
    }
