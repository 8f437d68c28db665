"""What `ledgerstream status` concludes from what it observed. Pure.

Doubt is a verdict of its own: what could not be asked is never reported as healthy.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DISK_FULL_RATIO = 0.95
"""As `disk_usage_threshold` of a bookie by default, which is read-only beyond it."""


class Health(enum.IntEnum):
    """The verdicts, from good to bad. A number is the exit code of the command."""

    HEALTHY = 0
    UNAVAILABLE = 3
    UNKNOWN = 4
    DEGRADED = 5


_SEVERITY = (Health.HEALTHY, Health.DEGRADED, Health.UNKNOWN, Health.UNAVAILABLE)
WORDS = {
    Health.HEALTHY: "healthy",
    Health.DEGRADED: "degraded: everything can be read and appended, with less to spare",
    Health.UNKNOWN: "unknown: not everything could be asked",
    Health.UNAVAILABLE: "UNAVAILABLE: appends or reads can fail",
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
class Observed:
    """What was found out about a cluster, within the bounds of the command."""

    metadata_problem: str | None = None
    bookies: list[BookieHealth] = field(default_factory=list)
    namespaces: list[NamespaceHealth] = field(default_factory=list)
    ledgers: int = 0
    ledgers_examined: int = 0
    ledgers_with_missing_bookies: int = 0
    """Of the examined ones: at least one bookie of an ensemble is not registered."""
    ledgers_unreadable: int = 0
    """Of the examined ones: an ensemble has too few registered bookies for its ack quorum."""
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
    if count := observed.ledgers_with_missing_bookies:
        found.append(
            Reason(
                Health.DEGRADED,
                f"{_many(count, 'ledger')} of {observed.ledgers_examined} examined: not all of "
                f"their bookies are registered, so that they have fewer copies",
            )
        )
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
            text = f"bookie {one.bookie} is registered and does not answer: {one.problem}"
            found.append(Reason(Health.UNKNOWN, text))
        if one.state == "read only":
            found.append(Reason(Health.DEGRADED, f"bookie {one.bookie} is read-only"))
        if one.ledgers_in_repair:
            text = f"bookie {one.bookie} repairs {_many(one.ledgers_in_repair, 'ledger')}"
            found.append(Reason(Health.DEGRADED, text))
    return found


def _of_disks(bookies: Sequence[BookieHealth]) -> list[Reason]:
    from ledger.units import size_text

    found = []
    for one in bookies:
        if one.total_bytes and one.free_bytes is not None:
            used = 1 - one.free_bytes / one.total_bytes
            if used > DISK_FULL_RATIO:
                text = (
                    f"the disks of bookie {one.bookie} are {used:.0%} full, "
                    f"{size_text(one.free_bytes)} are free"
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
    from ledger.units import duration_text

    return f"{duration_text(int(cursor.lag_seconds * 1000))} ({cursor.lag_records:,} records)"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
