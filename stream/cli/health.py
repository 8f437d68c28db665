"""What `ledgerstream status` concludes from what it observed. Pure.

Doubt is a verdict of its own: what could not be asked is never reported as healthy.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ledger.core.autorecovery.audit import CopyCounts

HELD_SHOWN_MAX = 5
DISK_FULL_RATIO = 0.95
"""As `disk_usage_threshold` of a bookie by default, which is read-only beyond it."""


class Health(enum.Enum):
    """The verdicts, from good to bad."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    HEALING = "healing"
    UNKNOWN = "unknown"
    UNAVAILABLE = "unavailable"
    DANGER = "danger"
    LOSS = "loss"

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 healthy, 3 healing or with less to spare, 4 in danger or
        in doubt, 5 loss."""
        return _EXIT_CODES[self]


_SEVERITY = tuple(Health)
_EXIT_CODES = {
    Health.HEALTHY: 0,
    Health.DEGRADED: 3,
    Health.HEALING: 3,
    Health.UNKNOWN: 4,
    Health.UNAVAILABLE: 4,
    Health.DANGER: 4,
    Health.LOSS: 5,
}
WORDS = {
    Health.HEALTHY: "healthy",
    Health.DEGRADED: "degraded: everything can be read and appended, with less to spare",
    Health.HEALING: "healing: everything can be read and appended, and copies are missing",
    Health.UNKNOWN: "unknown: not everything could be asked",
    Health.UNAVAILABLE: "UNAVAILABLE: appends or reads can fail",
    Health.DANGER: "IN DANGER: entries have fewer copies than their ack quorum",
    Health.LOSS: "LOSS: entries have no copy on any bookie, unless a lost bookie returns",
}


class Reason(NamedTuple):
    """Why a cluster is not healthy."""

    health: Health
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieHealth:
    """A bookie that the cluster knows."""

    bookie: str
    state: str
    """up, read only, or down."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    problem: str | None = None
    """Why a registered bookie did not answer."""
    ledgers_in_repair: int | None = None
    """Ledgers of which this bookie may have lost entries; None if it has no HTTP server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceHealth:
    """What a namespace asks for."""

    namespace: str
    ensemble_size: int
    ack_quorum: int
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorHealth:
    """A cursor, of a consumer group or of its own, and its distance to the end."""

    cursor: str
    stream: str
    lag_records: int
    lag_seconds: float
    lag_bytes: int


@dataclass(slots=True, kw_only=True)
class HealingHealth:
    """What auto-recovery says about itself."""

    is_enabled: bool = True
    auditor: str | None = None
    ledgers_marked: int = 0
    oldest_mark_ms: int | None = None
    """When the oldest of the marks that were looked at was made."""
    workers: int = 0
    bytes_per_s: float = 0.0
    """What all workers copy, by their newest reports."""
    held: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Ledgers that cannot be healed now: the reason, and whether entries have no copy."""


@dataclass(slots=True, kw_only=True)
class Observed:
    """What was found out about a cluster, within the bounds of the command."""

    metadata_problem: str | None = None
    bookies: list[BookieHealth] = field(default_factory=list)
    namespaces: list[NamespaceHealth] = field(default_factory=list)
    ledgers: int = 0
    ledgers_examined: int = 0
    copies: CopyCounts = field(default_factory=CopyCounts)
    """Of the examined ones: by the copies on bookies that are up."""
    ledgers_unreadable: int = 0
    """Of the examined ones: an ensemble has too few registered bookies for its ack quorum."""
    healing: HealingHealth = field(default_factory=HealingHealth)
    streams_examined: int = 0
    cursors: list[CursorHealth] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What else could not be asked."""


def reasons_of(observed: Observed, *, lag_ms_max: int | None) -> list[Reason]:
    """Returns everything that is not as it should be, the worst first."""
    if observed.metadata_problem is not None:
        return [Reason(Health.UNKNOWN, f"metadata is out of reach: {observed.metadata_problem}")]
    found = [*_of_bookies(observed.bookies), *_of_disks(observed.bookies)]
    up = sum(one.state == "up" for one in observed.bookies)
    found += _of_namespaces(observed.namespaces, up)
    if count := observed.ledgers_unreadable:
        found.append(Reason(Health.UNAVAILABLE, f"{_many(count, 'ledger')} cannot be read in full"))
    found += _of_copies(observed)
    found += [Reason(Health.UNKNOWN, problem) for problem in observed.problems]
    if lag_ms_max is not None:
        found += [
            Reason(
                Health.DEGRADED,
                f"cursor {one.cursor} of {one.stream} is {_lag(one)} behind",
            )
            for one in observed.cursors
            if one.lag_seconds * 1000 > lag_ms_max
        ]
    return sorted(found, key=lambda reason: -_SEVERITY.index(reason.health))


def verdict_of(reasons: Sequence[Reason]) -> Health:
    """Returns the worst of the verdicts."""
    return max((one.health for one in reasons), key=_SEVERITY.index, default=Health.HEALTHY)


def _of_copies(observed: Observed) -> list[Reason]:
    copies, healing = observed.copies, observed.healing
    of = f"of {observed.ledgers_examined} examined"
    found = []
    for count, health, what in (
        (copies.without_copy, Health.LOSS, "no copy, unless a lost bookie returns"),
        (copies.below_ack_quorum, Health.DANGER, "fewer copies up than their ack quorum"),
        (copies.below_write_quorum, Health.HEALING, "fewer copies up than their write quorum"),
    ):
        if count.ledgers:
            text = f"{_many(count.ledgers, 'ledger')} {of} ({_size(count.bytes)}): {what}"
            if healing.bytes_per_s > 0 and health is Health.HEALING:
                left_ms = int(count.bytes / healing.bytes_per_s * 1000)
                text += f"; {_size(int(healing.bytes_per_s))}/s are copied, {_time(left_ms)} left"
            found.append(Reason(health, text))
    if healing.ledgers_marked:
        found.append(Reason(Health.HEALING, _of_marks(healing)))
    losses = [(one, why) for one, (why, is_loss) in healing.held.items() if is_loss]
    others = [(one, why) for one, (why, is_loss) in healing.held.items() if not is_loss]
    for held, health in ((losses, Health.LOSS), (others, Health.HEALING)):
        found += [Reason(health, f"ledger {one}: {why}") for one, why in held[:HELD_SHOWN_MAX]]
        if len(held) > HELD_SHOWN_MAX:
            more = len(held) - HELD_SHOWN_MAX
            found.append(Reason(health, f"{_many(more, 'more ledger')} cannot be healed now"))
    if copies.below_write_quorum.ledgers or copies.below_ack_quorum.ledgers:
        if not healing.is_enabled:
            found.append(
                Reason(
                    Health.DEGRADED,
                    "auto-recovery is disabled. Cure: ledgerstream autorecovery enable",
                )
            )
        elif healing.auditor is None:
            found.append(
                Reason(
                    Health.DEGRADED,
                    "no process runs auto-recovery. Cure: `ledgerstream autorecovery run`, or "
                    "`autorecovery = true` in the settings of the bookies",
                )
            )
    return found


def _of_marks(healing: HealingHealth) -> str:
    verb = "is" if healing.ledgers_marked == 1 else "are"
    text = f"{_many(healing.ledgers_marked, 'ledger')} {verb} marked, because copies are missing"
    if healing.oldest_mark_ms is not None:
        from ledger.core.times import time_text

        text += f"; the oldest since {time_text(healing.oldest_mark_ms)}"
    return text


def _size(nbytes: int) -> str:
    from ledger.units import size_text

    return size_text(nbytes)


def _time(milliseconds: int) -> str:
    from ledger.units import duration_text

    return duration_text(milliseconds)


def _of_bookies(bookies: Sequence[BookieHealth]) -> list[Reason]:
    if not bookies:
        return [Reason(Health.UNAVAILABLE, "no bookie has ever been registered")]
    found = []
    down = [one.bookie for one in bookies if one.state == "down"]
    if len(down) == len(bookies):
        found.append(Reason(Health.UNAVAILABLE, f"all {len(down)} bookies are down"))
    elif down:
        verb = "is" if len(down) == 1 else "are"
        text = f"{len(down)} of {len(bookies)} bookies {verb} down: {', '.join(down)}"
        found.append(Reason(Health.DEGRADED, text))
    for one in bookies:
        if one.problem is not None:
            text = f"bookie {one.bookie} is registered, and does not show its disks: {one.problem}"
            found.append(Reason(Health.UNKNOWN, text))
        if one.state == "read only":
            found.append(Reason(Health.DEGRADED, f"bookie {one.bookie} is read-only"))
        if one.ledgers_in_repair:
            text = f"bookie {one.bookie} repairs {_many(one.ledgers_in_repair, 'ledger')}"
            found.append(Reason(Health.DEGRADED, text))
    return found


def _of_disks(bookies: Sequence[BookieHealth]) -> list[Reason]:
    found = []
    for one in bookies:
        if one.total_bytes and one.free_bytes is not None:
            used = 1 - one.free_bytes / one.total_bytes
            if used > DISK_FULL_RATIO:
                text = (
                    f"the disks of bookie {one.bookie} are {used:.0%} full, "
                    f"{_size(one.free_bytes)} are free"
                )
                found.append(Reason(Health.DEGRADED, text))
    return found


def _of_namespaces(namespaces: Sequence[NamespaceHealth], up: int) -> list[Reason]:
    found = []
    for one in namespaces:
        if up < one.ack_quorum:
            health, outcome = Health.UNAVAILABLE, "nothing can be appended"
        elif up < one.ensemble_size:
            health, outcome = Health.DEGRADED, "new segments have fewer copies, or none can begin"
        else:
            continue
        text = (
            f"namespace {one.namespace}: ensemble_size is {one.ensemble_size}, ack_quorum is "
            f"{one.ack_quorum}: with {_many(up, 'bookie')} up {outcome}"
        )
        found.append(Reason(health, text))
    return found


def _lag(cursor: CursorHealth) -> str:
    return f"{_time(int(cursor.lag_seconds * 1000))} ({cursor.lag_records:,} records)"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
