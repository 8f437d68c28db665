"""Spreads the bookies of an ensemble over failure domains.

Pure. The copies of one entry are on a write quorum of adjacent bookies (modulo the ensemble size):
their domains should differ, over hosts and over racks, regions or zones, as far as there are
enough. Places are filled one by one with what repeats least; if that ends with less than what is
possible, a bounded search tries others. The only randomness is `rng`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple

from ledger.core.placement.topology import (
    Candidates,
    Group,
    Location,
    Place,
    RandomChoice,
    Topology,
)

_SCAN_MAX: Final = 16
"""Up to this many bookies are compared one by one; of more, some are drawn first."""
_DRAWS: Final = 8
_DOMAINS_COMPARED_MAX: Final = 64
_STEPS_MAX: Final = 20_000
"""Domains that a search tries, before the best that was found is taken."""
_OPTIONS_MAX: Final = 32
"""Bookies of one domain that a search tries."""

Cost = tuple[int, ...]


class Level(Enum):
    """What a failure domain is. Each level has the keys by which repetitions are counted, in the
    order of their weight; a host is a failure domain in all of them."""

    HOST = (attrgetter("host"),)
    RACK = (attrgetter("host"), attrgetter("location"))
    REGION = (attrgetter("host"), attrgetter("location.region"), attrgetter("location"))

    @property
    def index(self) -> int:
        """Which of the keys is that of the domain."""
        return min(1, len(self.value) - 1)

    def domain(self, place: Place) -> Hashable:
        if self is Level.HOST:
            return place.host
        return place.location if self is Level.RACK else place.location.region

    def known(self, candidates: Candidates) -> list[Mapping[Any, Any]]:
        """Returns for each of the keys which ones candidates have."""
        if self is Level.HOST:
            return [candidates.hosts]
        if self is Level.RACK:
            return [candidates.hosts, candidates.racks]
        return [candidates.hosts, candidates.regions, candidates.racks]

    def near(self, candidates: Candidates, location: Location) -> list[Group]:
        """Returns the bookies that are nearest, of each distance that counts."""
        found = [candidates.racks.get(location)] if self is not Level.HOST else []
        if self is Level.REGION:
            found.append(candidates.regions.get(location.region))
        return [group for group in found if group is not None]

    def distance(self, location: Location, near: Location | None) -> int:
        if near is None or self is Level.HOST or location == near:
            return 0
        return 1 if self is Level.RACK or location.region == near.region else 2

    def groups(self, candidates: Candidates) -> Mapping[Any, Group]:
        """Returns the candidates by domain."""
        if self is Level.HOST:
            found: dict[str, list[str]] = {}
            for bookie, place in candidates.places.items():
                found.setdefault(place.host, []).append(bookie)
            return {host: candidates.group(bookies) for host, bookies in found.items()}
        return candidates.racks if self is Level.RACK else candidates.regions


class Rule(NamedTuple):
    """How far the bookies of each write set must be apart.

    `least` is how many domains they must be in, `most` how many of them one domain may have (0:
    any number). Unless it `is_hard`, a rule that cannot be kept is kept as far as possible.
    """

    level: Level
    least: int = 0
    most: int = 0
    is_hard: bool = False


@lru_cache(maxsize=256)
def windows(size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """Returns the write sets of an ensemble, as indices."""
    starts = range(1 if write_quorum >= size else size)
    return tuple(
        tuple((start + step) % size for step in range(min(write_quorum, size))) for start in starts
    )


class _Slot:
    """One place of an ensemble that is to be filled: what each choice would cost."""

    __slots__ = ("_counted", "_level", "_most", "_windows")

    def __init__(
        self, places: Sequence[Place | None], index: int, write_quorum: int, rule: Rule
    ) -> None:
        size = len(places)
        self._level, self._most = rule.level, rule.most
        total = [place for place in places if place is not None]
        scopes = [total]
        if write_quorum < size:
            steps = [step for step in range(1 - write_quorum, write_quorum) if step]
            near = dict.fromkeys((index + step) % size for step in steps)
            scopes.insert(0, [place for i in near if (place := places[i]) is not None])
        self._counted = [
            (key, [key(place) for place in scope]) for scope in scopes for key in rule.level.value
        ]
        """What repetitions are counted by, and what there is already, around and in all."""
        self._windows: list[tuple[list[Hashable], int]] = []
        """For each write set of this place the domains in it, and how many more it must get."""
        if rule.least > 1 or rule.most:
            for window in windows(size, write_quorum):
                if index in window:
                    inside = [place for i in window if (place := places[i]) is not None]
                    found = [rule.level.domain(place) for place in inside]
                    empty = len(window) - len(inside) - 1
                    missing = min(rule.least, len(window)) - len(set(found)) - empty
                    self._windows.append((found, missing))

    def violations(self, domain: Hashable) -> int:
        """Returns how many write sets would break the rule, whatever else is chosen."""
        count = 0
        for found, missing in self._windows:
            present = found.count(domain)
            if missing > (not present) or (self._most and present >= self._most):
                count += 1
        return count

    def cost(self, place: Place) -> Cost:
        """Returns what a bookie there repeats, the worst first."""
        violations = self.violations(self._level.domain(place)) if self._windows else 0
        return (violations, *[found.count(key(place)) for key, found in self._counted])

    def domain_cost(self, domain: Hashable) -> tuple[int, int]:
        """Returns what a domain costs, whichever of its bookies is chosen."""
        _, found = self._counted[self._level.index]
        return self.violations(domain), found.count(domain)

    def bound(self, candidates: Candidates) -> Cost:
        """Returns a cost below which none of the candidates is."""
        known = self._level.known(candidates)
        least = [
            _least(found, keys) for (_, found), keys in zip(self._counted, known * 2, strict=False)
        ]
        violations = 0
        if self._windows:
            domains = known[self._level.index]
            seen = {one: None for found, _ in self._windows for one in found if one in domains}
            options = [*seen, object()] if len(seen) < len(domains) else [*seen]
            violations = min(map(self.violations, options), default=0)
        return (violations, *least)


def _least(found: Sequence[Hashable], known: Mapping[Any, object]) -> int:
    """Returns how often the rarest of the known keys is in `found`."""
    if len(found) < len(known):
        return 0
    used = [key for key in dict.fromkeys(found) if key in known]
    return min(map(found.count, used), default=0) if len(used) == len(known) else 0


class Spread:
    """An ensemble that is being filled.

    Args:
        filled: the bookies that are kept, None for a place to fill.
        topology: knows where the kept ones are.
        without: bookies that are not chosen.
    """

    def __init__(
        self,
        filled: Sequence[str | None],
        write_quorum: int,
        rule: Rule,
        topology: Topology,
        without: Iterable[str],
        rng: RandomChoice,
    ) -> None:
        self.bookies = list(filled)
        self.places = [None if bookie is None else topology.place(bookie) for bookie in filled]
        self._write_quorum = write_quorum
        self._rule = rule
        self._without = dict.fromkeys([*without, *(one for one in filled if one is not None)])
        self._rng = rng

    def usable(self, candidates: Candidates) -> int:
        """Returns how many of the candidates may be chosen."""
        return len(candidates) - sum(bookie in candidates.places for bookie in self._without)

    def violations(self) -> int:
        """Returns how many write sets break the rule."""
        rule, broken = self._rule, 0
        if rule.least < 2 and not rule.most:
            return 0
        for found in self._domains():
            is_broken = len(set(found)) < min(rule.least, len(found))
            if is_broken or (rule.most and max(map(found.count, found)) > rule.most):
                broken += 1
        return broken

    def fill(
        self, slots: Sequence[int], stages: Sequence[Candidates], nears: Mapping[int, Location]
    ) -> None:
        """Fills places from the first of `stages` that has a bookie left; with a hard rule from the
        first that need not break it. `nears`: by place, where the bookie should be among those
        that are equally good."""
        for index in slots:
            slot = _Slot(self.places, index, self._write_quorum, self._rule)
            for candidates in stages:
                found = self._picked(slot, candidates, nears.get(index))
                if found is None:
                    continue
                place = candidates.places[found]
                is_last = candidates is stages[-1]
                if is_last or not self._rule.is_hard or slot.cost(place)[0] == 0:
                    self._put(index, found, place)
                    break

    def improve(self, slots: Sequence[int], candidates: Candidates) -> None:
        """Looks for other bookies in `slots` that are further apart, and takes them."""
        size, quorum, level = len(self.bookies), self._write_quorum, self._rule.level
        worst = min(len(set(found)) for found in self._domains())
        # Apart from that, only the copies in one domain may be too many.
        is_broken = self._rule.most > 0 and self.violations() > 0
        if worst >= min(quorum, size) and not is_broken:
            return
        present = dict.fromkeys(level.domain(place) for place in self.places if place is not None)
        known = level.known(candidates)[level.index]
        most = min(quorum, size, len({**known, **present}))
        if worst >= most and not is_broken:
            return
        before = {index: (self.bookies[index], self.places[index]) for index in slots}
        for index in slots:
            self._put(index, None, None)
        options = self._options(candidates)
        room = Counter(level.domain(place) for place in self.places if place is not None)
        room.update({domain: len(bookies) for domain, bookies in options.items()})
        last = min(worst, self._rule.least - 1) if is_broken else worst
        for goal in range(min(most, len(room)), last, -1):
            # No domain may return within a write quorum, if every write set is to have as many.
            places = sum(min(count, size // goal) for count in room.values())
            if goal == quorum and places < size:
                continue
            steps = [_STEPS_MAX // max(1, len(options))]
            if self._search(list(slots), options, self._rule._replace(least=goal), steps):
                return
        for index, (bookie, place) in before.items():
            self._put(index, bookie, place)

    def _search(
        self,
        slots: list[int],
        options: Mapping[Hashable, Sequence[tuple[str, Place]]],
        rule: Rule,
        steps: list[int],
    ) -> bool:
        """Fills `slots` so that no write set breaks `rule`, or leaves them empty."""
        if not slots:
            return True
        slot = _Slot(self.places, slots[0], self._write_quorum, rule)
        found = []
        for number, (domain, bookies) in enumerate(options.items()):
            if slot.violations(domain):
                continue
            free = [(slot.cost(p), number, b, p) for b, p in bookies if b not in self._without]
            if free:
                found.append(min(free))
        for _, _, bookie, place in sorted(found):
            steps[0] -= 1
            if steps[0] < 0:
                return False
            self._put(slots[0], bookie, place)
            if self._search(slots[1:], options, rule, steps):
                return True
            self._put(slots[0], None, None)
        return False

    def _options(self, candidates: Candidates) -> dict[Hashable, list[tuple[str, Place]]]:
        """Returns bookies that may be chosen, by domain, both in random order."""
        found: dict[Hashable, list[tuple[str, Place]]] = {}
        groups = self._rule.level.groups(candidates)
        for domain in sorted(groups, key=lambda _: self._rng.random()):
            group = groups[domain]
            drawn = dict.fromkeys(group.draw(self._rng) for _ in range(_OPTIONS_MAX))
            order = dict.fromkeys([*drawn, *group.bookies])
            free = [bookie for bookie in order if bookie not in self._without][:_OPTIONS_MAX]
            if free:
                found[domain] = [(bookie, candidates.places[bookie]) for bookie in free]
        return found

    def _picked(self, slot: _Slot, candidates: Candidates, near: Location | None) -> str | None:
        """Returns one of the candidates that cost least, at random; None if there is none left."""
        bound = slot.bound(candidates)
        if near is not None:
            for group in self._rule.level.near(candidates, near):
                found = self._drawn(slot, candidates, group, bound)
                if found is not None:
                    return found
        if len(candidates) > _SCAN_MAX:
            found = self._drawn(slot, candidates, candidates.all, bound)
            if found is None:
                found = self._drawn_from_best(slot, candidates, bound)
            if found is not None:
                return found
        return self._scanned(slot, candidates, candidates.all.bookies, near)

    def _drawn(self, slot: _Slot, candidates: Candidates, group: Group, bound: Cost) -> str | None:
        """Returns a bookie of `group` whose cost is the least possible, if one is found soon."""
        if len(group.bookies) <= _SCAN_MAX:
            found = self._scanned(slot, candidates, group.bookies, None)
            is_best = found is not None and slot.cost(candidates.places[found]) == bound
            return found if is_best else None
        for _ in range(_DRAWS):
            bookie = group.draw(self._rng)
            if bookie not in self._without and slot.cost(candidates.places[bookie]) == bound:
                return bookie
        return None

    def _drawn_from_best(self, slot: _Slot, candidates: Candidates, bound: Cost) -> str | None:
        """Like `_drawn`, from the domains alone that cost least: most bookies may be elsewhere."""
        level = self._rule.level
        if level is Level.HOST:
            return None
        groups = level.groups(candidates)
        if len(groups) > _DOMAINS_COMPARED_MAX:
            return None
        costs = {domain: slot.domain_cost(domain) for domain in groups}
        least = min(costs.values())
        best = [group for domain, group in groups.items() if costs[domain] == least]
        ends = list(accumulate(group.weight for group in best))
        for _ in range(_DRAWS):
            group = best[min(bisect_right(ends, self._rng.random() * ends[-1]), len(best) - 1)]
            found = self._drawn(slot, candidates, group, bound)
            if found is not None:
                return found
        return None

    def _scanned(
        self, slot: _Slot, candidates: Candidates, bookies: Iterable[str], near: Location | None
    ) -> str | None:
        best: list[str] = []
        least: tuple[Cost, int] | None = None
        for bookie in bookies:
            if bookie in self._without:
                continue
            place = candidates.places[bookie]
            cost = slot.cost(place), self._rule.level.distance(place.location, near)
            if least is None or cost < least:
                best, least = [bookie], cost
            elif cost == least:
                best.append(bookie)
        return candidates.group(best).draw(self._rng) if best else None

    def _domains(self) -> list[list[Hashable]]:
        """Returns the domains of each write set, once for each bookie."""
        domain = self._rule.level.domain
        found = [None if place is None else domain(place) for place in self.places]
        if None not in found and self._write_quorum >= len(found):
            return [found]
        return [
            [found[i] for i in window if found[i] is not None]
            for window in windows(len(found), self._write_quorum)
        ]

    def _put(self, index: int, bookie: str | None, place: Place | None) -> None:
        before = self.bookies[index]
        if before is not None:
            del self._without[before]
        self.bookies[index], self.places[index] = bookie, place
        if bookie is not None:
            self._without[bookie] = None

    def chosen(self) -> tuple[str, ...]:
        """Returns the ensemble, which must be full."""
        found = tuple(bookie for bookie in self.bookies if bookie is not None)
        assert len(found) == len(self.bookies), "a place is empty"
        return found
