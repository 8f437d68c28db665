"""What a policy does to a stream and when, with the reason: `explain` decides.

The janitor executes the plan that operators are shown. Retention never goes past the open segment,
never backwards, and never below what the policy promises to keep; a cursor that cannot be found
keeps everything, because unknown never means absent.

`retention_bytes` of a partitioned stream counts all partitions as one: the sealed segments of all
partitions are put in one order, by the time of their newest record; then the rule is that of a
plain stream. A partition that is not known here counts nothing, so that more is kept. All of this
is pure: sums over metadata, with the time as an argument. Of the segments that are in pages, only
those around a boundary are looked at one by one; their pages are asked for by PagesNeeded.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ledger.errors import FinalError
from ledger.units import duration_text, size_text
from stream.core.clocks import is_ahead, moment_text
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.metadata.pages import answers
from stream.core.metadata.segments import Run, Segment, Span
from stream.core.metadata.streams import StreamMetadata
from stream.core.position import Position
from stream.core.trash import purged


class Verdict(enum.Enum):
    """What the next sweep of a janitor does with a segment."""

    KEEP = "keep"
    DROP = "drop"
    IN_TRASH = "in trash"
    PURGE = "purge"


class Cause(enum.Enum):
    """The reason of a verdict. `SegmentPlan.reason` gives it as text, with numbers."""

    OPEN = "it is open"
    NO_LIMIT = "the policy has no limit"
    WITHIN_LIMITS = "the policy keeps it still"
    BEHIND_KEPT = "one before it is kept"
    CURSOR = "a cursor has not passed it"
    CURSOR_MISSING = "a cursor is missing"
    AGE = "it is older than retention_ms"
    SIZE = "enough bytes are behind it"
    TRUNCATED = "it was truncated"
    DELETED = "its stream was deleted"


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A segment, or a run of neighbours with the same fate: what happens to it next, and why.

    A run has the numbers `number` to `last_number`, `count` segments, and no `ledger_id` (-1).
    `due_ms` is when it happens if neither the policy nor anything else changes (it is dropped, if
    it is kept; purged, if it is in the trash or goes there); None: not by time alone. `newest_ms`
    is the time of its last record. `bytes_behind` are sealed behind it: later in its stream, or by
    time in all `partitions` if it is of a partitioned one. `is_purged`: it cannot be restored after
    this sweep.
    """

    number: int
    ledger_id: int
    verdict: Verdict
    cause: Cause
    records: int
    nbytes: int
    newest_ms: int
    due_ms: int | None
    is_purged: bool = False
    bytes_behind: int = 0
    partitions: int = 0
    cursor: str = ""
    cursor_at: Position | None = None
    dropped_ms: int = -1
    last_number: int = -1
    count: int = 1
    policy: NamespaceMetadata = field(repr=False, kw_only=True)
    now_ms: int = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "last_number", max(self.number, self.last_number))

    @property
    def warning(self) -> str | None:
        """What is wrong with a time of the segment, and how to mend it; None: nothing."""
        if is_ahead(self.dropped_ms, self.now_ms):
            return (
                f"segment {self.number} was {self._gone} at {moment_text(self.dropped_ms)}, "
                f"{duration_text(self.dropped_ms - self.now_ms)} ahead of this clock: the trash "
                f"keeps it until {moment_text(self.dropped_ms + self.policy.trash_ms)}. Cure: "
                "correct this clock; if it is right, purge the stream's trash (`ledgerstream "
                "stream purge`), or restore and truncate again"
            )
        if is_ahead(self.newest_ms, self.now_ms):
            kept = (
                "retention by age does not keep it longer"
                if self.policy.retention_ms is None
                else "retention by age keeps it until "
                + moment_text(self.newest_ms + self.policy.retention_ms)
            )
            return (
                f"the newest record of segment {self.number} is stamped "
                f"{moment_text(self.newest_ms)}, {duration_text(self.newest_ms - self.now_ms)} "
                f"ahead of this clock: {kept}, later records get the same time, and lag in "
                "seconds is 0. "
                "Cure: correct this clock; if it is right, truncate behind the segment when its "
                "records may go, or set retention_bytes, and continue in a new stream"
            )
        return None

    @property
    def _gone(self) -> str:
        return "deleted" if self.cause is Cause.DELETED else "truncated"

    @property
    def reason(self) -> str:
        """The reason as text, with numbers."""
        match self.verdict:
            case Verdict.KEEP:
                return self._why_kept()
            case Verdict.DROP:
                return f"{self._why_dropped()}; {self._then()}"
            case Verdict.IN_TRASH if self.dropped_ms < 0:
                return f"truncated; {self._then()}"
            case Verdict.IN_TRASH:
                left = duration_text((self.due_ms or self.now_ms) - self.now_ms)
                return f"{self._since_when()}: {left} left to restore it"
            case Verdict.PURGE:
                return self._since_when()

    def _since_when(self) -> str:
        if is_ahead(self.dropped_ms, self.now_ms):
            return (
                f"{self._gone} at {moment_text(self.dropped_ms)}, "
                f"{duration_text(self.dropped_ms - self.now_ms)} ahead of this clock, the trash "
                f"keeps {duration_text(self.policy.trash_ms)}"
            )
        ago = duration_text(self.now_ms - max(self.dropped_ms, 0))
        return f"{self._gone} {ago} ago, the trash keeps {duration_text(self.policy.trash_ms)}"

    def _why_kept(self) -> str:
        policy = self.policy
        match self.cause:
            case Cause.OPEN:
                return "it is open: only sealed segments are dropped"
            case Cause.NO_LIMIT:
                return "retention_ms and retention_bytes keep everything"
            case Cause.CURSOR:
                return f"cursor {self.cursor!r} is at {self.cursor_at}, not behind it"
            case Cause.CURSOR_MISSING:
                return (
                    f"cursor {self.cursor!r} of retention_cursors does not exist, or cannot be "
                    f"read: all is kept until it is created or removed from the setting"
                )
            case Cause.BEHIND_KEPT:
                return "an older segment is kept, and segments go oldest first"
        words = []
        if policy.retention_ms is not None:
            age = f"{duration_text(self.now_ms - self.newest_ms)} old"
            if is_ahead(self.newest_ms, self.now_ms):
                ahead = duration_text(self.newest_ms - self.now_ms)
                age = f"stamped {moment_text(self.newest_ms)}, {ahead} ahead of this clock"
            keeps = duration_text(policy.retention_ms)
            words.append(f"newest record {age}, retention_ms keeps {keeps}")
        if policy.retention_bytes is not None:
            words.append(
                f"{self._behind()}, retention_bytes keeps {size_text(policy.retention_bytes)}"
            )
        return "; ".join(words)

    def _why_dropped(self) -> str:
        policy = self.policy
        if self.cause is Cause.AGE:
            assert policy.retention_ms is not None, "dropped by an age that is not set"
            return (
                f"newest record {duration_text(self.now_ms - self.newest_ms)} old, over "
                f"retention_ms of {duration_text(policy.retention_ms)}"
            )
        assert policy.retention_bytes is not None, "dropped by a size that is not set"
        return f"{self._behind()}, retention_bytes wants {size_text(policy.retention_bytes)}"

    def _behind(self) -> str:
        where = f" in {self.partitions} partitions" if self.partitions else ""
        return f"{size_text(self.bytes_behind)} sealed behind it{where}"

    def _then(self) -> str:
        if self.is_purged:
            return "deleted at once (trash_ms is 0)"
        return f"then {duration_text(self.policy.trash_ms)} in the trash"


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What the next sweep does to a stream, and what is due after it.

    `begin` is where the stream begins afterwards; `purge_through` the number of the last segment
    that leaves the trash permanently, 0 for none. `deleted_ms` is set for a stream that is in the
    trash as a whole.
    """

    stream: str
    now_ms: int
    begin: Position
    purge_through: int
    segments: tuple[SegmentPlan, ...]
    deleted_ms: int = -1

    @property
    def dropped(self) -> tuple[SegmentPlan, ...]:
        """Segments that readers lose now."""
        return tuple(plan for plan in self.segments if plan.verdict is Verdict.DROP)

    @property
    def purged(self) -> tuple[SegmentPlan, ...]:
        """Segments that cannot be restored after this sweep."""
        return tuple(plan for plan in self.segments if plan.is_purged)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with stored times, each kind once, and how to mend it."""
        found = [plan for plan in self.segments if plan.warning is not None]
        first = {is_ahead(plan.dropped_ms, plan.now_ms): plan for plan in reversed(found)}
        return tuple(plan.warning for plan in first.values() if plan.warning is not None)

    @property
    def is_marked(self) -> bool:
        """Whether everything in the trash has a time from which its stay is counted."""
        return all(p.dropped_ms >= 0 for p in self.segments if p.verdict is Verdict.IN_TRASH)

    @property
    def next_ms(self) -> int | None:
        """When the passing of time alone changes something again; None: never."""
        due = [plan.due_ms for plan in self.segments if plan.due_ms is not None]
        return min((when for when in due if when > self.now_ms), default=None)


class DataWouldBeDropped(FinalError):
    """A change of policy would drop data now, and the caller did not allow that.

    `plans` are those of the streams that would lose something.
    """

    def __init__(self, message: str, plans: Sequence[RetentionPlan] = ()) -> None:
        super().__init__(message)
        self.plans = tuple(plans)


def explain(
    stream: StreamMetadata,
    policy: NamespaceMetadata,
    cursors: Mapping[str, Position],
    now_ms: int,
    share: SizeShare | None = None,
    *,
    in_short: bool = False,
) -> RetentionPlan:
    """Returns what the policy does to the stream now.

    A sealed segment is dropped when its newest record is older than `retention_ms`, or when the
    sealed segments behind it hold at least `retention_bytes`; not before every cursor of
    `retention_cursors` is behind it, and not before the older segments. `cursors` are the stream's
    by name; one that is named and missing keeps everything. `share` is for a partition: the bytes
    behind a segment are counted in all partitions. `in_short`: what is dropped and purged is the
    same, but a run that is kept as a whole is one, whichever of its segments goes first: a sweep
    needs no page for it.
    """
    dropped, kept = _divide(stream, policy, cursors, now_ms, share, in_short)
    begin = dropped[-1][0].end if dropped else stream.truncated_to
    begin = max(begin, stream.truncated_to)
    after = stream.truncated(begin, now_ms) if dropped else stream
    through = purge_through(after, policy, now_ms)
    trash = stream.dropped(through)
    plans = [_trash_plan(segment, policy, now_ms, through) for segment in trash]
    for segment, cause, behind in dropped:
        plans.append(
            SegmentPlan(
                segment.number, _ledger_of(segment), Verdict.DROP, cause, segment.records,
                segment.nbytes, segment.newest_ms, now_ms + policy.trash_ms,
                is_purged=segment.number <= through, bytes_behind=behind,
                partitions=share.partitions if share else 0, policy=policy, now_ms=now_ms,
                last_number=segment.last_number, count=segment.count,
            )
        )  # fmt: skip
    return RetentionPlan(stream.name, now_ms, begin, through, (*plans, *kept))


def explain_deleted(
    stream: StreamMetadata, policy: NamespaceMetadata, now_ms: int
) -> RetentionPlan:
    """Returns what becomes of a stream in the trash: all of it waits until its time has passed."""
    is_due = now_ms - stream.deleted_ms >= policy.trash_ms
    plans = tuple(
        SegmentPlan(
            segment.number, _ledger_of(segment), Verdict.PURGE if is_due else Verdict.IN_TRASH,
            Cause.DELETED, segment.records, segment.nbytes,
            -1 if segment.is_open else segment.newest_ms, stream.deleted_ms + policy.trash_ms,
            is_purged=is_due, dropped_ms=stream.deleted_ms, policy=policy, now_ms=now_ms,
            last_number=segment.last_number, count=segment.count,
        )
        for segment in stream.spans()
    )  # fmt: skip
    through = plans[-1].last_number if is_due and plans else 0
    return RetentionPlan(
        stream.name, now_ms, stream.first_available, through, plans, stream.deleted_ms
    )


def retained(stream: StreamMetadata, plan: RetentionPlan) -> StreamMetadata:
    """Returns the stream after its plan, in one change; the purged segments are garbage then."""
    if plan.begin == stream.truncated_to and not plan.purge_through and plan.is_marked:
        return stream
    return purged(stream.truncated(plan.begin, plan.now_ms), plan.purge_through)


def _ledger_of(span: Span) -> int:
    return span.ledger_id if isinstance(span, Segment) else -1


def purge_through(stream: StreamMetadata, policy: NamespaceMetadata, now_ms: int) -> int:
    """Returns the number of the last truncated segment whose time has passed; 0 for none. Raises
    PagesNeeded."""
    through = 0
    # The time of a segment that is not marked yet begins now.
    for number, since_ms in stream.times_dropped(now_ms):
        if now_ms - since_ms < policy.trash_ms:
            break
        through = number
    return through


_Dropped = tuple[Span, Cause, int]


def _divide(
    stream: StreamMetadata,
    policy: NamespaceMetadata,
    cursors: Mapping[str, Position],
    now_ms: int,
    share: SizeShare | None,
    in_short: bool,
) -> tuple[list[_Dropped], list[SegmentPlan]]:
    """Returns the live segments to drop now, oldest first, and the plans of the others."""
    missing = next((name for name in policy.retention_cursors if name not in cursors), None)
    slowest = min(
        ((cursors[name], name) for name in policy.retention_cursors if name in cursors),
        default=None,
    )
    live = deque(stream.live())
    left = sum(segment.nbytes for segment in live)
    dropped: list[_Dropped] = []
    kept: list[SegmentPlan] = []
    due_ms: int | None = now_ms
    while live:
        segment = live.popleft()
        left -= segment.nbytes
        behind = left if share is None else share.behind(segment.last_number)
        is_surplus = policy.retention_bytes is not None and (
            behind >= policy.retention_bytes
            if share is None
            else segment.last_number <= share.drop_through
        )
        cause, is_kept, cursor, at = _judge(segment, policy, is_surplus, missing, slowest, now_ms)
        if not is_kept and not kept:
            dropped.append((segment, cause, behind))
            continue
        is_boundary = not kept and cause not in (Cause.NO_LIMIT, Cause.CURSOR_MISSING)
        if in_short and is_boundary and cause is Cause.WITHIN_LIMITS:
            is_boundary = not _is_kept_whole(segment, policy, behind, share, now_ms)
        if is_boundary and isinstance(segment, Run):
            left += segment.nbytes
            live.extendleft(reversed(stream.pages.below(segment)))
            continue
        if not is_kept:
            cause = Cause.BEHIND_KEPT
        is_timed = cause is Cause.WITHIN_LIMITS and policy.retention_ms is not None
        if is_timed and missing is None and (slowest is None or slowest[0] >= segment.end):
            assert policy.retention_ms is not None, "timed without a time"
            expiry = segment.newest_ms + policy.retention_ms + 1
            due_ms = None if due_ms is None else max(due_ms, expiry)
        elif is_kept:
            due_ms = None
        kept.append(
            SegmentPlan(
                segment.number, _ledger_of(segment), Verdict.KEEP, cause, segment.records,
                segment.nbytes, -1 if segment.is_open else segment.newest_ms, due_ms,
                bytes_behind=behind, partitions=share.partitions if share else 0,
                cursor=cursor, cursor_at=at, policy=policy, now_ms=now_ms,
                last_number=segment.last_number, count=segment.count,
            )
        )  # fmt: skip
    return dropped, kept


def _judge(
    segment: Span,
    policy: NamespaceMetadata,
    is_surplus: bool,
    missing: str | None,
    slowest: tuple[Position, str] | None,
    now_ms: int,
) -> tuple[Cause, bool, str, Position | None]:
    """Returns the cause, whether the segment is kept by itself, and the cursor that keeps it, if
    any. Of a run: what holds for its last one, with the time of its newest."""
    if segment.is_open:
        return Cause.OPEN, True, "", None
    if policy.retention_ms is None and policy.retention_bytes is None:
        return Cause.NO_LIMIT, True, "", None
    is_old = policy.retention_ms is not None and now_ms - segment.newest_ms > policy.retention_ms
    if not (is_old or is_surplus):
        return Cause.WITHIN_LIMITS, True, "", None
    if missing is not None:
        return Cause.CURSOR_MISSING, True, missing, None
    if slowest is not None and slowest[0] < segment.end:
        return Cause.CURSOR, True, slowest[1], slowest[0]
    return (Cause.AGE if is_old else Cause.SIZE), False, "", None


def _is_kept_whole(
    span: Span, policy: NamespaceMetadata, behind: int, share: SizeShare | None, now_ms: int
) -> bool:
    """Whether the limits keep every segment of a run: the newest record of none is older than
    `created_ms`, and none has more behind it than the run and what is behind that."""
    is_young = policy.retention_ms is None or now_ms - span.created_ms <= policy.retention_ms
    if policy.retention_bytes is None:
        return is_young
    if share is not None:
        return is_young and span.number > share.drop_through
    return is_young and behind + span.nbytes < policy.retention_bytes


def _trash_plan(segment: Span, policy: NamespaceMetadata, now_ms: int, through: int) -> SegmentPlan:
    since_ms = segment.dropped_ms if segment.dropped_ms >= 0 else now_ms
    is_purged = segment.number <= through
    return SegmentPlan(
        segment.number, _ledger_of(segment),
        Verdict.PURGE if is_purged else Verdict.IN_TRASH, Cause.TRUNCATED,
        segment.records, segment.nbytes, segment.newest_ms, since_ms + policy.trash_ms,
        is_purged=is_purged, dropped_ms=segment.dropped_ms, policy=policy, now_ms=now_ms,
        last_number=segment.last_number, count=segment.count,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SizeShare:
    """What the size of the whole stream says about one partition.

    `bytes_behind`: by the number of a sealed segment, or of the last one of a run, ascending, the
    bytes sealed behind it in all `partitions`. `drop_through`: the last segment behind which there
    are enough; 0 for none.
    """

    partitions: int
    bytes_behind: Mapping[int, int]
    drop_through: int

    def behind(self, number: int) -> int:
        """Returns the bytes behind this segment, or, within a run, behind the run."""
        found = self.bytes_behind.get(number)
        if found is None:
            later = (left for other, left in self.bytes_behind.items() if other > number)
            found = next(later, 0)
        return found


def size_shares(partitions: Iterable[StreamMetadata], retention_bytes: int) -> dict[str, SizeShare]:
    """Returns the share of each of these partitions, by name.

    Segments are dropped oldest first, whatever their partition, while those behind hold at least
    `retention_bytes`; within a partition in their order. A segment that is cut by a truncation
    counts nothing, because its remaining bytes are not known.
    """
    streams = list(partitions)
    sealed = answers(partial(_sealed, stream) for stream in streams)
    parts = {one.name: (one, spans) for one, spans in zip(streams, sealed, strict=True)}
    while True:
        line: list[tuple[int, int, str, int, int]] = []
        for stream, spans in parts.values():
            latest_ms = -1
            for span in spans:
                latest_ms = max(latest_ms, span.newest_ms)
                size = _whole_bytes(stream, span)
                # Compare the length first: `clicks#2` is before `clicks#10`.
                line.append((latest_ms, len(stream.name), stream.name, span.last_number, size))
        behind: dict[str, dict[int, int]] = {name: {} for name in parts}
        through = dict.fromkeys(parts, 0)
        left = sum(size for *_, size in line)
        cut_ms: int | None = None
        for latest_ms, _, name, number, size in sorted(line):
            left -= size
            behind[name][number] = left
            if left >= retention_bytes:
                through[name] = number
            elif cut_ms is None:
                cut_ms = latest_ms
        finer = answers(
            partial(_refined, stream, spans, through[name], cut_ms)
            for name, (stream, spans) in parts.items()
        )
        refined = {
            name: (stream, spans)
            for (name, (stream, _)), spans in zip(parts.items(), finer, strict=True)
        }
        is_exact, parts = refined == parts, refined
        if is_exact:
            return {name: SizeShare(len(parts), behind[name], through[name]) for name in parts}


def _sealed(stream: StreamMetadata) -> list[Span]:
    return [span for span in stream.live() if not span.is_open]


def _refined(
    stream: StreamMetadata, spans: list[Span], through: int, cut_ms: int | None
) -> list[Span]:
    """Returns the segments of a partition with the first run that is kept, up to `cut_ms`, in
    pieces: older ones in it may have to go."""
    latest_ms = -1
    for index, span in enumerate(spans):
        if span.last_number > through:
            if isinstance(span, Run) and cut_ms is not None and latest_ms <= cut_ms:
                return [*spans[:index], *stream.pages.below(span), *spans[index + 1 :]]
            break
        latest_ms = max(latest_ms, span.newest_ms)
    return spans


def _whole_bytes(stream: StreamMetadata, segment: Span) -> int:
    is_cut = stream.truncated_to > Position(segment.number, 0, 0)
    return 0 if is_cut else segment.nbytes
