"""Plans of takeovers of a ledger across languages, which a seed determines.

Pure: the same seed gives the same plans. run.py runs them, judge.py judges them.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from ledger.core.entry import DigestType

PAYLOAD_BYTES_MAX = 60_000


class Language(enum.Enum):
    PYTHON = "python"
    JAVA = "java"

    @property
    def other(self) -> Language:
        return Language.JAVA if self is Language.PYTHON else Language.PYTHON


class Kind(enum.Enum):
    """The kinds of the bookies that hold the ledger."""

    OURS = "ours"
    APACHE = "apache"
    TWO_APACHE = "two apache"
    TWO_OURS = "two ours"


class Moment(enum.Enum):
    """When the takeover begins."""

    AFTER_ACKS = "after acks"
    IN_FLIGHT = "entries in flight"
    CLOSING = "while the writer closes"
    CHANGING = "while the writer replaces a bookie"


class KillMoment(enum.Enum):
    BEFORE = "just before"
    DURING = "during"
    AFTER = "just after"


@dataclass(frozen=True, slots=True)
class Shape:
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a writer.

    Entry i has `sizes[i]` payload bytes and is appended after a pause of `pauses_ms[i]`; at most
    `window` entries are unacknowledged.
    """

    seed: int
    sizes: tuple[int, ...]
    pauses_ms: tuple[float, ...]
    window: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """One client that takes the ledger over."""

    language: Language
    begins_ms: float = 0.0
    gives_up_ms: float | None = None
    """The time after which it is stopped."""
    waits_for_stopped: bool = False
    """Whether it begins after the recoveries that are stopped."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill -9 of the bookie at `index` of the first ensemble."""

    index: int
    moment: KillMoment
    restarts_at_once: bool
    """Otherwise it restarts when the takeover has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All properties of one interleaving that can be determined in advance."""

    seed: int
    number: int
    writer: Language
    version: str
    """Apache's version of the Java client."""
    is_v2: bool
    """Wire version of the Java client."""
    kind: Kind
    shape: Shape
    bookies: tuple[str, ...]
    """Names, beginning with the ensemble; the others may replace its bookies."""
    password: bytes
    pace: Pace
    moment: Moment
    acks: int
    delay_ms: float
    recoveries: tuple[Recovery, ...]
    kill: Kill | None

    @property
    def ensemble(self) -> tuple[str, ...]:
        return self.bookies[: self.shape.ensemble_size]

    @property
    def victim(self) -> str | None:
        return None if self.kill is None else self.bookies[self.kill.index]

    def title(self) -> str:
        wire = "v2" if self.is_v2 else "v3"
        takers = "+".join(
            r.language.value + ("(stopped)" if r.gives_up_ms is not None else "")
            for r in self.recoveries
        )
        killed = f", {self.victim} killed {self.kill.moment.value}" if self.kill else ""
        s = self.shape
        return (
            f"{self.number} [seed {self.seed}]: {self.writer.value} writes "
            f"{s.ensemble_size}/{s.write_quorum}/{s.ack_quorum} {s.digest_type.name} on "
            f"{self.kind.value} bookies, {takers} take over {self.moment.value} "
            f"(Java {self.version} {wire}){killed}"
        )


SHAPES = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (3, 2, 1))
DIGESTS = tuple(DigestType)
_KILLING_EACH = 3
"""One plan of this number has a kill."""


def make_plan(
    seed: int,
    number: int,
    *,
    versions: Sequence[str],
    ours: Sequence[str],
    apaches: Sequence[str],
    last_victim: str | None = None,
) -> Plan:
    """Makes interleaving `number` of the run with `seed`.

    Combinations that must be spread evenly are dealt (`_dealt`), the rest is random. The last
    victim is not used, because it may still be starting.
    """
    rng = random.Random(f"{seed}/{number}")
    is_killing = number % _KILLING_EACH == _KILLING_EACH - 1
    writer, version, is_v2, kind = _dealt(seed, number, versions)
    sizes = [s for s in SHAPES if s[0] < 4 or kind in (Kind.TWO_APACHE, Kind.TWO_OURS)]
    ensemble_size, write_quorum, ack_quorum = rng.choice(sizes)
    bookies = _cast(rng, kind, ensemble_size, ours, apaches, last_victim)
    pace = _pace(rng)
    moments = [Moment.AFTER_ACKS, Moment.IN_FLIGHT, Moment.IN_FLIGHT, Moment.CLOSING]
    kill = None
    if is_killing:
        # With an ack quorum of one, only the dead bookie may have an acknowledged entry.
        returns = rng.random() < 0.4 or ack_quorum == 1
        kill = Kill(rng.randrange(ensemble_size), rng.choice(list(KillMoment)), returns)
        if kill.moment is KillMoment.BEFORE:
            moments += [Moment.CHANGING] * 3
    return Plan(
        seed=seed,
        number=number,
        writer=writer,
        version=version,
        is_v2=is_v2,
        kind=kind,
        shape=Shape(ensemble_size, write_quorum, ack_quorum, rng.choice(DIGESTS)),
        bookies=bookies,
        password=rng.choice((b"", b"secret", "pässword".encode())),
        pace=pace,
        moment=rng.choice(moments),
        acks=rng.choice((0, 1, *[rng.randrange(len(pace.sizes))] * 4)),
        delay_ms=rng.choice((0.0, rng.uniform(0, 5), rng.uniform(0, 60))),
        recoveries=_recoveries(rng, writer.other),
        kill=kill,
    )


def make_plans(
    seed: int,
    numbers: Sequence[int],
    *,
    versions: Sequence[str],
    ours: Sequence[str],
    apaches: Sequence[str],
) -> list[Plan]:
    """Makes plans that run one after the other."""
    plans: list[Plan] = []
    for number in numbers:
        plans.append(
            make_plan(
                seed,
                number,
                versions=versions,
                ours=ours,
                apaches=apaches,
                last_victim=plans[-1].victim if plans else None,
            )
        )
    return plans


def _dealt(seed: int, number: int, versions: Sequence[str]) -> tuple[Language, str, bool, Kind]:
    """Deals a combination from a deck of all of them.

    There is one deck for plans with a kill and one for the others; a deck is dealt to its end
    before it is shuffled again.
    """
    turn, place = divmod(number, _KILLING_EACH)
    is_killing = place == _KILLING_EACH - 1
    card = turn if is_killing else turn * (_KILLING_EACH - 1) + place
    deck = list(itertools.product(Language, versions, (True, False), Kind))
    round_number, index = divmod(card, len(deck))
    random.Random(f"{seed}/{is_killing}/{round_number}").shuffle(deck)
    return deck[index]


def _cast(
    rng: random.Random,
    kind: Kind,
    ensemble_size: int,
    ours: Sequence[str],
    apaches: Sequence[str],
    last_victim: str | None,
) -> tuple[str, ...]:
    """Returns the ensemble in random order, and then the spare bookies."""
    our = [name for name in ours if name != last_victim]
    their = [name for name in apaches if name != last_victim]
    rng.shuffle(our)
    rng.shuffle(their)
    if kind is Kind.OURS:
        chosen, spare = our[:ensemble_size], our[ensemble_size:]
    elif kind is Kind.APACHE:
        chosen, spare = their[:ensemble_size], their[ensemble_size:]
    else:
        many, few = (their, our) if kind is Kind.TWO_APACHE else (our, their)
        chosen, spare = few[: ensemble_size - 2] + many[:2], few[ensemble_size - 2 :] + many[2:]
    assert len(chosen) == ensemble_size, f"too few bookies for {kind}"
    rng.shuffle(chosen)
    rng.shuffle(spare)
    return (*chosen, *spare)


def _pace(rng: random.Random) -> Pace:
    count = rng.choice((rng.randrange(1, 12), rng.randrange(20, 120), rng.randrange(100, 300)))
    style = rng.randrange(3)
    sizes, pauses = [], []
    for i in range(count):
        large = rng.random() < 0.02
        sizes.append(rng.randrange(PAYLOAD_BYTES_MAX) if large else rng.randrange(400))
        if style == 0:
            pauses.append(0.0)
        elif style == 1:
            pauses.append(rng.choice((0.0, 0.0, rng.uniform(0, 3))))
        else:
            pauses.append(rng.uniform(2, 20) if i % 16 == 15 else 0.0)
    return Pace(rng.getrandbits(31), tuple(sizes), tuple(pauses), rng.choice((1, 2, 8, 64, 1000)))


def _recoveries(rng: random.Random, taker: Language) -> tuple[Recovery, ...]:
    """Draws one recovery, or one per language at once, or a stopped one and one that finishes."""
    chance = rng.random()
    if chance < 0.5:
        return (Recovery(taker),)
    if chance < 0.75:
        first = Recovery(taker)
        second = Recovery(taker.other, begins_ms=rng.choice((0.0, rng.uniform(0, 20))))
        return (first, second)
    stopped = Recovery(taker, gives_up_ms=rng.choice((0.0, rng.uniform(0, 5), rng.uniform(0, 40))))
    return (stopped, Recovery(rng.choice(list(Language)), begins_ms=stopped.gives_up_ms or 0.0))
