"""Decides how much of each stream the next micro-batch reads when limits do not admit everything.

Division is fair (max-min): the smallest quota is as large as possible, and a remainder that cannot
be divided goes to the streams in turn. Quotas must never exceed a limit, except for one record
that is larger than the limit of bytes by itself. Time is an argument.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one micro-batch over all streams; None means no limit.

    With `records_min` a micro-batch waits for that number of records, but no longer than
    `delay_ms_max` after the previous one.
    """

    records_max: int | None = None
    bytes_max: int | None = None
    records_min: int | None = None
    delay_ms_max: int = 0

    def is_due(self, records: int, waited_ms: int) -> bool:
        """Returns whether a micro-batch of this number of records should begin now."""
        if records == 0:
            return False
        return self.records_min is None or (
            records >= self.records_min or waited_ms >= self.delay_ms_max
        )


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread part of a stream: at least one record.

    `next_bytes` is the size of the first record, or an estimate if it is not known.
    """

    records: int
    nbytes: int
    next_bytes: int

    def __post_init__(self) -> None:
        assert self.records > 0, f"a backlog of {self.records} records"


@dataclass(frozen=True, slots=True)
class Quota:
    """The most records, and the most bytes, to read of a stream; `nbytes` None means no limit."""

    records: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Admission:
    """The quota of each stream; streams from which nothing is read now are left out.

    One record of the stream `first` is admitted even if it exceeds the limit: otherwise a query
    would never make progress. `turn` is the stream to begin with in the next micro-batch.
    """

    quotas: Mapping[str, Quota]
    first: str
    turn: str


def admit(backlogs: Mapping[str, Backlog], limits: Limits, turn: str = "") -> Admission:
    """Divides the limits among the streams. `waiting` must not be empty."""
    names = _in_turn(sorted(backlogs), turn)
    wanted = [backlogs[name] for name in names]
    records = [each.records for each in wanted]
    shared = _Division(records, len(names))
    if limits.records_max is not None:
        shared = divide_fairly([0] * len(names), records, limits.records_max)
        records = shared.parts
    nbytes: list[int] | None = None
    if limits.bytes_max is not None:
        floors = [min(max(1, each.next_bytes), max(1, each.nbytes)) for each in wanted]
        by_bytes = divide_fairly(floors, [max(1, each.nbytes) for each in wanted], limits.bytes_max)
        nbytes = by_bytes.parts
        if limits.records_max is None:
            shared = by_bytes
    quotas: dict[str, Quota] = {}
    unserved: str | None = None
    for index, name in enumerate(names):
        bytes_part = None if nbytes is None else nbytes[index]
        if records[index] and bytes_part != 0:
            quotas[name] = Quota(records[index], bytes_part)
        elif index == 0:
            quotas[name] = Quota(1, bytes_part)
        elif unserved is None:
            unserved = name
    following = names[shared.turn % len(names)]
    return Admission(quotas, names[0], following if unserved is None else unserved)


def _in_turn(names: list[str], turn: str) -> list[str]:
    index = bisect_left(names, turn)
    return names[index:] + names[:index]


@dataclass(frozen=True, slots=True)
class _Division:
    """Parts in the order of the demands.

    `turn` is the index after the last part that got one unit of the indivisible remainder.
    """

    parts: list[int]
    turn: int


def divide_fairly(floors: Sequence[int], demands: Sequence[int], total: int) -> _Division:
    """Divides `total` so that the smallest part is as large as possible, then the next one.

    A part is 0, or between its floor and its demand, which is at least the floor. If `total` does
    not suffice for all floors, the first parts get theirs, up to the first that does not fit.
    """
    served, left = 0, total
    while served < len(floors) and floors[served] <= left:
        left -= floors[served]
        served += 1
    if served < len(floors):
        return _Division([*floors[:served], *[0] * (len(floors) - served)], served)
    level, left = _level(floors, demands, left)
    parts = [min(max(level, low), high) for low, high in zip(floors, demands, strict=True)]
    turn = 0
    for index, demand in enumerate(demands):
        if left and parts[index] == level < demand:
            parts[index] += 1
            left -= 1
            turn = index + 1
    return _Division(parts, turn)


def _level(floors: Sequence[int], demands: Sequence[int], left: int) -> tuple[int, int]:
    """Returns the highest level to which all parts can be raised, and the remainder.

    Each part stays between its floor and its demand. The remainder is smaller than the number of
    parts at this level, unless all demands are met.
    """
    steps = sorted(
        [(low, 1) for low, high in zip(floors, demands, strict=True) if low < high]
        + [(high, -1) for low, high in zip(floors, demands, strict=True) if low < high]
    )
    level, growing = 0, 0
    for height, change in steps:
        cost = growing * (height - level)
        if cost > left:
            break
        left -= cost
        level = height
        growing += change
    if growing:
        raised = left // growing
        level += raised
        left -= raised * growing
    return level, left
