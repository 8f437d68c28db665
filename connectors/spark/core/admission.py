"""How much of each stream goes into the next micro-batch, where limits do not let all of it in.

Fair over streams: the one that gets least gets as much as can be (max-min), and what cannot be
divided goes to each in turn. Never over a limit, but for one record that is larger than the limit
of bytes by itself. Time comes in as argument.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one micro-batch over all streams; None: no such limit.

    With `records_min` a micro-batch waits until there are so many records, but no longer than
    `delay_ms_max` since the one before.
    """

    records_max: int | None = None
    bytes_max: int | None = None
    records_min: int | None = None
    delay_ms_max: int = 0

    def is_due(self, records: int, waited_ms: int) -> bool:
        """Whether so many records are reason enough to begin."""
        if records == 0:
            return False
        return self.records_min is None or (
            records >= self.records_min or waited_ms >= self.delay_ms_max
        )


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is to be read of a stream: at least one record. `next_bytes` are of the first one, as
    far as that is known."""

    records: int
    nbytes: int
    next_bytes: int

    def __post_init__(self) -> None:
        assert self.records > 0, f"{self.records} records are waiting"


@dataclass(frozen=True, slots=True)
class Quota:
    """At most so many records, which have at most so many bytes; None: as many as they have."""

    records: int
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Admission:
    """What each stream may give; those that may give nothing now are left out.

    `first` may give a record even if it is larger than all that is allowed: else nothing ever
    went on. `turn` is the stream to begin with the next time.
    """

    quotas: Mapping[str, Quota]
    first: str
    turn: str


def admit(backlogs: Mapping[str, Backlog], limits: Limits, turn: str = "") -> Admission:
    """Divides the limits among the streams. `waiting` is not empty."""
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
    """Parts in the order of the wishes; `turn` is behind the last that got some of what could
    not be divided."""

    parts: list[int]
    turn: int


def divide_fairly(floors: Sequence[int], wishes: Sequence[int], total: int) -> _Division:
    """Divides `total` so that the smallest part is as large as can be, then the next one.

    A part is 0, or from its floor to its wish (which is no less). Where `total` is too little for
    all floors the first ones get theirs, up to the first for whom it is not enough.
    """
    served, left = 0, total
    while served < len(floors) and floors[served] <= left:
        left -= floors[served]
        served += 1
    if served < len(floors):
        return _Division([*floors[:served], *[0] * (len(floors) - served)], served)
    level, left = _level(floors, wishes, left)
    parts = [min(max(level, low), high) for low, high in zip(floors, wishes, strict=True)]
    turn = 0
    for index, wish in enumerate(wishes):
        if left and parts[index] == level < wish:
            parts[index] += 1
            left -= 1
            turn = index + 1
    return _Division(parts, turn)


def _level(floors: Sequence[int], wishes: Sequence[int], left: int) -> tuple[int, int]:
    """The highest level to which all parts between floor and wish can be raised, and what is left
    then; that is less than there are parts at this level, unless all wishes are met."""
    steps = sorted(
        [(low, 1) for low, high in zip(floors, wishes, strict=True) if low < high]
        + [(high, -1) for low, high in zip(floors, wishes, strict=True) if low < high]
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
