"""Takeovers of a ledger across languages: what is played, what was seen, and what must hold.

Pure: a seed decides a `Plan`; whoever plays it fills a `Story`; `faults` judges the story. No
sockets and no clock, so that the judge is tested by stories with known faults.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerMetadata

PAYLOAD_BYTES_MAX = 60_000


class Language(enum.Enum):
    PYTHON = "python"
    JAVA = "java"

    @property
    def other(self) -> Language:
        return Language.JAVA if self is Language.PYTHON else Language.PYTHON


class Kind(enum.Enum):
    """Whose bookies hold the ledger."""

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
    """How a writer appends: entry i has `sizes[i]` payload bytes and waits `pauses_ms[i]`
    before it; at most `window` entries are unacknowledged."""

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
    """It is stopped after so long."""
    waits_for_stopped: bool = False
    """It begins when those that are to be stopped were."""


@dataclass(frozen=True, slots=True)
class Kill:
    """kill -9 of the bookie at `index` of the first ensemble."""

    index: int
    moment: KillMoment
    restarts_at_once: bool
    """Else only when the takeover is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about one interleaving that can be decided beforehand."""

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
    """Names; the first are the ensemble, the others may replace them."""
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
"""One play of so many has a kill."""


def make_plan(
    seed: int,
    number: int,
    *,
    versions: Sequence[str],
    ours: Sequence[str],
    apaches: Sequence[str],
    last_victim: str | None = None,
) -> Plan:
    """Interleaving `number` of the run with `seed`.

    What must be spread evenly is dealt (`_dealt`), the rest is chance. The last victim is left
    alone: it is still starting.
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
        # With an ack quorum of one only the dead bookie may have what was acknowledged.
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
    """Plans to be played one after the other."""
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
    """From decks of all combinations, one deck for plays with a kill and one for the others;
    a deck is shuffled and dealt to its end before it is shuffled again."""
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
    """The ensemble in random order, then the spare bookies."""
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
    """One; or both languages at once; or one that is stopped and one that then finishes."""
    chance = rng.random()
    if chance < 0.5:
        return (Recovery(taker),)
    if chance < 0.75:
        first = Recovery(taker)
        second = Recovery(taker.other, begins_ms=rng.choice((0.0, rng.uniform(0, 20))))
        return (first, second)
    stopped = Recovery(taker, gives_up_ms=rng.choice((0.0, rng.uniform(0, 5), rng.uniform(0, 40))))
    return (stopped, Recovery(rng.choice(list(Language)), begins_ms=stopped.gives_up_ms or 0.0))


# ---- what was seen


@dataclass(frozen=True, slots=True)
class End:
    """Where a ledger ends, as somebody said."""

    last_entry_id: int
    length: int


@dataclass(slots=True)
class WriterSaw:
    """What the writer's own program was told."""

    acked: list[int] = field(default_factory=list)
    """Entry ids in the order of their acknowledgements."""
    wrong_ids: list[str] = field(default_factory=list)
    """Entries that got another id than their turn."""
    pushed: int = 0
    error: str | None = None
    """Name of the error that ended it."""
    closed_at: int | None = None
    """Its own close succeeded, at this entry."""


@dataclass(slots=True)
class Story:
    plan: Plan
    ledger_id: int
    writer: WriterSaw = field(default_factory=WriterSaw)
    recovered: dict[str, End] = field(default_factory=dict)
    """By recoverer."""
    retries: list[str] = field(default_factory=list)
    """Errors after which a recovery was tried again: allowed, but of interest."""
    metadata: End | None = None
    """None: not closed."""
    told: dict[str, End] = field(default_factory=dict)
    """By reader of the closed ledger."""
    read: dict[str, list[bytes]] = field(default_factory=dict)
    """Payloads of the whole ledger, by reader."""
    replica_faults: list[str] = field(default_factory=list)
    is_length_doubtful: bool = False
    """See `may_misjudge_length`."""


FENCING_ERRORS = frozenset({"LedgerFenced", "LedgerClosed", "MetadataVersion"})
"""What a writer is told that was taken over. MetadataVersion: its close came too late."""


def may_misjudge_length(plan: Plan, metadata: LedgerMetadata) -> bool:
    """Whether the length of a closed ledger may be wrong without a fault of ours.

    Apache's recovery takes the length out of the last entry of the bookie that told the greatest
    LAC, and corrects it only by entries that it adds again. There may be none: in a last fragment
    that is empty, or behind a gap of a striped ledger.
    """
    took_part = any(recovery.language is Language.JAVA for recovery in plan.recoveries)
    is_empty = metadata.last_entry_id < metadata.last_fragment.first_entry_id
    is_striped = metadata.write_quorum < metadata.ensemble_size
    return took_part and (is_empty or is_striped)


def faults(story: Story, expected: Sequence[bytes]) -> list[str]:
    """What is wrong with a story; `expected[i]` is what the writer gave for entry i."""
    found = [*story.writer.wrong_ids, *story.replica_faults]
    end = story.metadata
    if end is None:
        return [*found, "the ledger is not closed in its metadata"]
    for where, ends in (("recovery", story.recovered), ("reader", story.told)):
        found += [
            f"{where} by {who} says {told}, metadata {end}"
            for who, told in ends.items()
            if told != end
        ]
    if not story.recovered:
        found.append("nobody recovered the ledger")
    if not -1 <= end.last_entry_id < story.writer.pushed:
        found.append(f"last entry {end.last_entry_id}, but {story.writer.pushed} were appended")
    else:
        length = sum(map(len, expected[: end.last_entry_id + 1]))
        if length != end.length and not story.is_length_doubtful:
            found.append(f"metadata says {end.length} bytes, the entries have {length}")
    found += _writer_faults(story.writer, end)
    for who, payloads in story.read.items():
        found += _payload_faults(who, payloads, end, expected)
    if set(story.read) != set(story.told):
        found.append(f"read by {sorted(story.read)}, opened by {sorted(story.told)}")
    return found


def _writer_faults(saw: WriterSaw, end: End) -> list[str]:
    found = []
    lost = [entry_id for entry_id in saw.acked if entry_id > end.last_entry_id]
    if lost:
        found.append(f"acknowledged, but after the last entry {end.last_entry_id}: {lost}")
    if saw.acked != list(range(len(saw.acked))):
        found.append(f"acknowledged out of order or with gaps: {saw.acked}")
    if saw.closed_at is not None:
        if saw.closed_at != end.last_entry_id:
            found.append(f"the writer closed at {saw.closed_at}, the end is {end.last_entry_id}")
    elif saw.error is None:
        found.append("the writer was never told that it lost the ledger")
    elif saw.error not in FENCING_ERRORS:
        found.append(f"the writer was told {saw.error}, not that it was fenced")
    return found


def _payload_faults(
    who: str, payloads: Sequence[bytes], end: End, expected: Sequence[bytes]
) -> list[str]:
    found = []
    if len(payloads) != end.last_entry_id + 1:
        found.append(f"{who} read {len(payloads)} entries of {end.last_entry_id + 1}")
    for entry_id, (is_, want) in enumerate(zip(payloads, expected, strict=False)):
        if is_ != want:
            found.append(
                f"{who}: entry {entry_id} has {len(is_)} bytes {is_[:16].hex()}..., written were "
                f"{len(want)} bytes {want[:16].hex()}..."
            )
    return found
