"""Placement policies: how far the copies of an entry must be apart, and how far they are.

A policy is a property of a ledger: it is stored in the custom metadata, so that its writer,
recovery and auto-recovery follow the same one. An ensemble that breaks a policy stays legal:
another policy, or another program, may have chosen it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple, get_args

from ledger.core.placement.ensembles import Level, Rule, Spread, windows
from ledger.core.placement.topology import Candidates, Location, RandomChoice, Topology
from ledger.core.quorum import check_sizes
from ledger.errors import InvalidArgument, MetadataCorrupt, NotEnoughBookies

PlacementKind = Literal["default", "rack", "region", "zone"]
KINDS: Final[tuple[PlacementKind, ...]] = get_args(PlacementKind)
PLACEMENT_TAG: Final = "ledgerstream-placement"
"""Key in the custom metadata of a ledger whose policy is not the default."""
MINIMUM_DEFAULT: Final = 2
MINIMUM_MAX: Final = 255
_ZONES_DESIRED: Final = 3
_LISTED_MAX: Final = 5
_LEVELS: Final[Mapping[PlacementKind, Level]] = {
    "default": Level.HOST,
    "rack": Level.RACK,
    "region": Level.REGION,
    "zone": Level.REGION,
}


class Grade(Enum):
    """How well an ensemble keeps a policy."""

    STRICT = "strict"
    """It keeps it in full."""
    SOFT = "soft"
    """It keeps what is required, and less than what is wanted."""
    FAIL = "fail"
    """It breaks it."""


class Adherence(NamedTuple):
    """A grade, and why it is no better: "" for STRICT."""

    grade: Grade
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How the bookies of a ledger are chosen. Raises InvalidArgument for values that are not legal.

    Args:
        kind: `default` spreads the copies over hosts; `rack`, `region` and `zone` over racks,
            regions or zones too. Zones have upgrade domains, which are spread like racks.
        minimum: how many racks, regions or zones the copies of each entry must be in, at most the
            write quorum; 0 is 2.
        enforce: no ensemble is made that breaks the minimum, and bookies whose location is unknown
            are not chosen. By regions, no region then holds an ack quorum of an entry alone.
            Without it a rule that cannot be kept is kept as far as possible.
    """

    kind: PlacementKind = "default"
    minimum: int = 0
    enforce: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidArgument(
                f"placement {self.kind!r} is not known; there are: {', '.join(KINDS)}"
            )
        if type(self.minimum) is not int or not 0 <= self.minimum <= MINIMUM_MAX:
            raise InvalidArgument(
                f"the minimum of a placement is {self.minimum!r}, legal is 0 to {MINIMUM_MAX}"
            )
        if type(self.enforce) is not bool:
            raise InvalidArgument(f"whether a placement is enforced is not {self.enforce!r}")
        if self.kind == "default" and (self.minimum or self.enforce):
            raise InvalidArgument(
                "placement default has no minimum that could be enforced: it knows no racks. Cure:"
                " use rack, region or zone"
            )

    @property
    def is_default(self) -> bool:
        return self.kind == "default"

    def check(self, write_quorum: int, ack_quorum: int) -> None:
        """Raises InvalidArgument if no ensemble of these quorums can keep the policy."""
        if self.minimum > write_quorum:
            raise InvalidArgument(
                f"placement needs {self.minimum} {self._noun()} for each entry, and write_quorum is"
                f" {write_quorum}. Cure: a smaller minimum, or more copies"
            )
        if self.kind == "region" and self.enforce and ack_quorum < 2 <= write_quorum:
            raise InvalidArgument(
                "placement enforces that no region holds an ack quorum alone, and ack_quorum is 1."
                " Cure: ack_quorum 2 or more, or do not enforce it"
            )

    def encode(self) -> bytes:
        """Returns the policy as it is stored with a ledger: `rack`, `rack,minimum=3,enforce`."""
        minimum = f",minimum={self.minimum}" if self.minimum else ""
        return f"{self.kind}{minimum}{',enforce' if self.enforce else ''}".encode()

    @classmethod
    def decode(cls, data: bytes) -> PlacementPolicy:
        """Returns the policy of these bytes. Raises MetadataCorrupt."""
        kind, *words = data[:100].decode("utf-8", "replace").split(",")
        enforce = words[-1:] == ["enforce"]
        words = words[:-1] if enforce else words
        name, _, number = words[0].partition("=") if len(words) == 1 else ("", "", "")
        try:
            is_number = name == "minimum" and number.isascii() and number.isdigit()
            found = cls(kind, int(number) if is_number else 0, enforce)  # type: ignore[arg-type]
        except (InvalidArgument, ValueError) as error:
            raise MetadataCorrupt(f"placement {data[:100]!r} of a ledger: {error}") from None
        if found.encode() != data:
            raise MetadataCorrupt(f"placement {data[:100]!r} of a ledger is not of a known form")
        return found

    # Choosing.

    def choose(
        self,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        candidates: Candidates,
        excluded: Collection[str],
        rng: RandomChoice,
        *,
        prefer: Sequence[str] = (),
        near: Location | None = None,
    ) -> tuple[str, ...]:
        """Returns an ensemble of candidates without `excluded`.

        Bookies whose id matches a pattern of `prefer` ("rack1-*") are chosen before all others,
        which fill the remaining places; with `enforce` only where the rule can be kept. The first
        bookie is in the rack `near`, or in its region, if that is as good. Raises
        NotEnoughBookies, InvalidArgument (quorums).
        """
        check_sizes(ensemble_size, write_quorum, ack_quorum)
        self.check(write_quorum, ack_quorum)
        rule, pool = self._rule(write_quorum, ack_quorum), self._pool(candidates)
        spread = Spread([None] * ensemble_size, write_quorum, rule, candidates, excluded, rng)
        if spread.usable(candidates) < ensemble_size:
            raise _not_enough(ensemble_size, candidates, excluded)
        if spread.usable(pool) < ensemble_size:
            raise self._broken(rule, ensemble_size, candidates, excluded)
        slots = range(ensemble_size)
        preferred = pool.matching(tuple(prefer)) if prefer else None
        stages = [preferred, pool] if preferred else [pool]
        spread.fill(slots, stages, {} if near is None else {0: near})
        if not preferred or rule.is_hard:
            spread.improve(slots, pool)
        if rule.is_hard and spread.violations():
            raise self._broken(rule, ensemble_size, candidates, excluded)
        return spread.chosen()

    def choose_degraded(
        self,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        candidates: Candidates,
        known: Collection[str],
        excluded: Collection[str],
        rng: RandomChoice,
        *,
        prefer: Sequence[str] = (),
        near: Location | None = None,
    ) -> tuple[str, ...]:
        """Like `choose`, but fills the remaining places with bookies of `known` that are down.

        A cluster of three thus continues to create ledgers while one is down. It is checked that
        every write set has an ack quorum of usable bookies. Excluded bookies are used last. Raises
        NotEnoughBookies, InvalidArgument (quorums).
        """
        check_sizes(ensemble_size, write_quorum, ack_quorum)
        rule, pool = self._rule(write_quorum, ack_quorum), self._pool(candidates)
        spread = Spread([None] * ensemble_size, write_quorum, rule, candidates, excluded, rng)
        up = spread.usable(pool)
        missing = ensemble_size - up
        if missing <= 0:
            return self.choose(
                ensemble_size, write_quorum, ack_quorum, candidates, excluded, rng,
                prefer=prefer, near=near,
            )  # fmt: skip
        idle = {
            bookie: candidates.place(bookie)
            for bookie in sorted({**dict.fromkeys(known), **candidates.places})
            if bookie not in pool.places or bookie in excluded
        }
        down = self._pool(Candidates({b: p for b, p in idle.items() if b not in excluded}))
        last = self._pool(Candidates({b: p for b, p in idle.items() if b in excluded}))
        # Evenly spaced, so that no write set gets more of them than necessary.
        gaps = [number * ensemble_size // missing for number in range(missing)]
        most = max(
            sum(index in gaps for index in window)
            for window in windows(ensemble_size, write_quorum)
        )
        if up < ack_quorum or len(down) + len(last) < missing or write_quorum - most < ack_quorum:
            if spread.usable(candidates) > up:
                raise self._broken(rule, ensemble_size, candidates, excluded)
            raise NotEnoughBookies(
                f"not enough bookies: ensemble_size is {ensemble_size}, write_quorum"
                f" {write_quorum}, ack_quorum {ack_quorum}, and {up} are up (known"
                f" {up + len(idle)}, excluded {_listed(excluded)}). Cure: start bookies, or use a"
                " smaller ensemble (for streams: `ledgerstream namespace set`)"
            )
        places = [index for index in range(ensemble_size) if index not in gaps]
        spread.fill(places, [pool], {} if near is None else {places[0]: near})
        spread.fill(gaps[: len(down)], [down], {})
        rest = Spread(spread.bookies, write_quorum, rule, candidates, (), rng)
        rest.fill(gaps[len(down) :], [last], {})
        if rule.is_hard and rest.violations():
            raise self._broken(rule, ensemble_size, candidates, excluded)
        return rest.chosen()

    def replace(
        self,
        ensemble: Sequence[str],
        indices: Collection[int],
        write_quorum: int,
        ack_quorum: int,
        candidates: Candidates,
        excluded: Collection[str],
        rng: RandomChoice,
        *,
        prefers_same_rack: bool = True,
    ) -> tuple[str, ...]:
        """Returns `ensemble` with other bookies at `indices`; the replaced ones are not chosen
        again. With `prefers_same_rack` a bookie of the same rack is chosen where that is as good.

        With `enforce`, no write set may break the rule that did not break it before. Raises
        NotEnoughBookies if not all of them can be replaced, InvalidArgument for an index out of
        range.
        """
        size = len(ensemble)
        for index in indices:
            if not 0 <= index < size:
                raise InvalidArgument(f"index {index} is not in an ensemble of {size}")
        slots = list(dict.fromkeys(indices))
        rule, pool = self._rule(write_quorum, ack_quorum), self._pool(candidates)
        before = Spread(ensemble, write_quorum, rule, candidates, (), rng).violations()
        kept = [None if index in indices else bookie for index, bookie in enumerate(ensemble)]
        barred = [*excluded, *ensemble]
        spread = Spread(kept, write_quorum, rule, candidates, barred, rng)
        if spread.usable(candidates) < len(slots):
            raise _not_enough(len(slots), candidates, barred)
        if spread.usable(pool) < len(slots):
            raise self._broken(rule, size, candidates, barred)
        near = {i: candidates.place(ensemble[i]).location for i in slots}
        spread.fill(slots, [pool], near if prefers_same_rack else {})
        spread.improve(slots, pool)
        if rule.is_hard and spread.violations() > before:
            raise self._broken(rule, size, candidates, barred)
        return spread.chosen()

    # Judging.

    def adherence(
        self,
        ensemble: Sequence[str],
        write_quorum: int,
        ack_quorum: int,
        topology: Topology,
    ) -> Adherence:
        """Grades an ensemble, by its worst write set, however it was chosen."""
        rule = self._rule(write_quorum, ack_quorum)
        worst = Adherence(Grade.STRICT)
        for window in windows(len(ensemble), write_quorum):
            found = self._judged([ensemble[i] for i in window], ack_quorum, rule, topology)
            if found.grade is Grade.FAIL:
                return found
            if worst.grade is Grade.STRICT:
                worst = found
        return worst

    def _judged(
        self, bookies: Sequence[str], ack_quorum: int, rule: Rule, topology: Topology
    ) -> Adherence:
        """Grades one write set."""
        places = [topology.place(bookie) for bookie in bookies]
        hosts = Counter(place.host for place in places)
        domains = Counter(rule.level.domain(place) for place in places)
        where = f"bookies {', '.join(bookies)}"
        if rule.is_hard:
            for bookie, place in zip(bookies, places, strict=True):
                if not place.location.is_known:
                    return Adherence(Grade.FAIL, f"{where}: the location of {bookie} is unknown")
        if not self.is_default:
            there = f"{where} are in {self._counted(domains)}"
            if len(domains) < min(rule.least, len(bookies)):
                return Adherence(Grade.FAIL, f"{there}, {rule.least} are needed")
            top, copies = domains.most_common(1)[0]
            if self.kind == "region" and copies >= ack_quorum and len(bookies) > 1:
                grade = Grade.FAIL if rule.is_hard else Grade.SOFT
                return Adherence(grade, f"{where}: region {top} holds an ack quorum alone")
            wanted = min(_ZONES_DESIRED, len(bookies)) if self.kind == "zone" else rule.least
            if len(domains) < wanted:
                return Adherence(Grade.SOFT, f"{there}, {wanted} are wanted")
        host, copies = hosts.most_common(1)[0]
        if copies > 1:
            return Adherence(Grade.SOFT, f"{where}: {copies} copies are on host {host}")
        return Adherence(Grade.STRICT)

    # Rules and errors.

    def _rule(self, write_quorum: int, ack_quorum: int) -> Rule:
        if self.is_default:
            return Rule(Level.HOST)
        least = min(self.minimum or MINIMUM_DEFAULT, write_quorum)
        is_split = self.kind == "region" and self.enforce and write_quorum > 1
        return Rule(_LEVELS[self.kind], least, ack_quorum - 1 if is_split else 0, self.enforce)

    def _pool(self, candidates: Candidates) -> Candidates:
        """Returns those that may be chosen: bookies without a location prove nothing."""
        return candidates.located() if self.enforce else candidates

    def _noun(self, count: int = 2) -> str:
        return self.kind if count == 1 else f"{self.kind}s"

    def _counted(self, domains: Mapping[object, int]) -> str:
        """Returns "2 racks (/a/1, /a/2)"."""
        names = sorted(one.path if isinstance(one, Location) else str(one) for one in domains)
        more = ", ..." if len(names) > _LISTED_MAX else ""
        listed = f" ({', '.join(names[:_LISTED_MAX])}{more})" if names else ""
        return f"{len(domains)} {self._noun(len(domains))}{listed}"

    def _broken(
        self, rule: Rule, size: int, candidates: Candidates, excluded: Collection[str]
    ) -> NotEnoughBookies:
        usable = [b for b in candidates.places if b not in excluded]
        located = [candidates.places[b] for b in usable if candidates.places[b].location.is_known]
        domains = Counter(rule.level.domain(place) for place in located)
        split = f", none of which may hold {rule.most + 1} copies" if rule.most else ""
        unknown = len(usable) - len(located)
        others = f"; the location of {unknown} more is unknown" if unknown else ""
        return NotEnoughBookies(
            f"placement needs {rule.least} {self._noun(rule.least)} for each entry{split}, bookies"
            f" that are up are in {self._counted(domains)}: {len(located)} bookies for an ensemble"
            f" of {size}{others}. Cure: start bookies elsewhere, or place them (`ledgerstream"
            " bookie place`)"
        )


DEFAULT_PLACEMENT: Final = PlacementPolicy()


def placement_of(custom: Mapping[str, bytes]) -> PlacementPolicy:
    """Returns the policy in the custom metadata of a ledger. Raises MetadataCorrupt."""
    data = custom.get(PLACEMENT_TAG)
    return DEFAULT_PLACEMENT if data is None else PlacementPolicy.decode(data)


def placement_or_default(custom: Mapping[str, bytes]) -> PlacementPolicy:
    """Like `placement_of`, but the default for a policy of an unknown form: nothing else can be
    followed, and a bookie that failed must be replaced all the same."""
    try:
        return placement_of(custom)
    except MetadataCorrupt:
        return DEFAULT_PLACEMENT


def order_reads(replicas: Sequence[str], reader: Location, topology: Topology) -> tuple[str, ...]:
    """Returns the replicas in the order in which a reader at `reader` asks them: those in its rack,
    those in its region, then the others, of which one comes third if there are enough."""
    here: list[str] = []
    near: list[str] = []
    far: list[str] = []
    for bookie in replicas:
        location = topology.place(bookie).location
        is_near = location.region == reader.region
        (here if location == reader else near if is_near else far).append(bookie)
    local = here + near
    # If the whole region is slow, the second hedge leaves it.
    return (*local[:2], *far[:1], *local[2:], *far[1:])


def _not_enough(needed: int, candidates: Candidates, excluded: Collection[str]) -> NotEnoughBookies:
    up = sum(bookie not in excluded for bookie in candidates.places)
    return NotEnoughBookies(
        f"not enough bookies: {needed} are needed, and {up} are up (registered"
        f" {len(candidates)}, excluded {_listed(excluded)}). Cure: start bookies"
    )


def _listed(excluded: Collection[str]) -> str:
    return ", ".join(sorted(dict.fromkeys(excluded))) or "none"
