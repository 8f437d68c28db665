"""Where bookies are, and a cluster's bookies prepared for choosing among them.

Pure. A location is a path of two components, `/region/rack` (for zones `/zone/upgrade-domain`), or
`/rack` in the default region. `Candidates` are made once per change of the registry; a choice among
1,000 of them then looks at a few.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, TypeVar

from ledger.errors import InvalidArgument

LOCATION_CHARS_MAX: Final = 200
WEIGHT_MEDIANS_MAX: Final = 3
"""A bookie's weight is at most this many times the median: an empty bookie must not get all."""
_SUBSETS_MAX: Final = 64
_COMPONENT = re.compile(r"[A-Za-z0-9._-]+\Z")
_DEFAULT_REGION = "default-region"
_DEFAULT_RACK = "default-rack"
Key = TypeVar("Key")


class RandomChoice(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def random(self) -> float: ...


class Location(NamedTuple):
    """Where a bookie is. For zones `region` is the zone and `rack` the upgrade domain."""

    region: str
    rack: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Returns the location of a path like `/eu-1/rack-7` or `/rack-7`. Raises
        InvalidArgument."""
        names = text.split("/")
        if not text.startswith("/") or not 2 <= len(names) <= 3 or len(text) > LOCATION_CHARS_MAX:
            raise InvalidArgument(
                f"location {text[:LOCATION_CHARS_MAX]!r} must be like /region/rack or /rack: a"
                f" leading slash, one or two components, at most {LOCATION_CHARS_MAX} characters"
            )
        for name in names[1:]:
            if not _COMPONENT.match(name) or name in (".", ".."):
                raise InvalidArgument(
                    f"location {text!r} has the component {name!r}: components consist of"
                    " letters, digits, '.', '_' and '-'"
                )
        return cls(names[1], names[2]) if len(names) == 3 else cls(_DEFAULT_REGION, names[1])

    @property
    def path(self) -> str:
        """The path, in its short form `/rack` in the default region."""
        if self.region == _DEFAULT_REGION:
            return f"/{self.rack}"
        return f"/{self.region}/{self.rack}"

    @property
    def is_known(self) -> bool:
        """Whether it is another location than that of bookies nobody has placed."""
        return self.rack != _DEFAULT_RACK


DEFAULT_LOCATION: Final = Location(_DEFAULT_REGION, _DEFAULT_RACK)
"""That of a bookie with neither an entry in the operator's table nor a location of its own."""


class Place(NamedTuple):
    """A bookie's host, which is always one failure domain, and its location."""

    host: str
    location: Location = DEFAULT_LOCATION


class Topology(Protocol):
    """Knows where bookies are."""

    def place(self, bookie: str) -> Place: ...


def host_of(bookie_id: str) -> str:
    """Returns the host in an id of the form "host:port", otherwise the id itself."""
    return bookie_id.rpartition(":")[0] or bookie_id


class Group:
    """Bookies of which one is drawn at random, by weight if there are weights."""

    __slots__ = ("_ends", "bookies", "weight")

    def __init__(self, bookies: Sequence[str], weights: Mapping[str, float] | None) -> None:
        self.bookies = bookies
        self._ends = None if weights is None else list(accumulate(weights[b] for b in bookies))
        self.weight = float(len(bookies)) if self._ends is None else self._ends[-1]

    def draw(self, rng: RandomChoice) -> str:
        """Returns one of the bookies, of which there must be some."""
        if self._ends is None:
            return self.bookies[int(rng.random() * len(self.bookies))]
        index = bisect_right(self._ends, rng.random() * self.weight)
        return self.bookies[min(index, len(self.bookies) - 1)]


class Candidates:
    """The bookies that may be chosen, and where these and others are.

    Args:
        places: the bookies that may be chosen.
        others: further bookies whose place is known, such as those that are down.
        weights: of each bookie, see `weights_of`; None: all are equal.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        *,
        others: Mapping[str, Place] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.places = {bookie: places[bookie] for bookie in sorted(places)}
        self._others = others or {}
        self._weights = weights
        self.all = Group(list(self.places), weights)
        self.hosts = Counter(place.host for place in self.places.values())
        self.racks = self._groups(lambda place: place.location)
        self.regions = self._groups(lambda place: place.location.region)
        self._subsets: dict[tuple[str, ...], Candidates] = {}

    @classmethod
    def on_hosts(cls, hosts: Mapping[str, str]) -> Candidates:
        """Returns candidates of unknown locations (id -> host)."""
        return cls({bookie: Place(host) for bookie, host in hosts.items()})

    def __len__(self) -> int:
        return len(self.places)

    def group(self, bookies: Sequence[str]) -> Group:
        """Returns some of the candidates, with their weights."""
        return Group(bookies, self._weights)

    def place(self, bookie: str) -> Place:
        """Returns the place of any bookie; that of an unknown one is taken from its id."""
        found = self.places.get(bookie) or self._others.get(bookie)
        return found or Place(host_of(bookie))

    def matching(self, patterns: tuple[str, ...]) -> Candidates:
        """Returns the candidates whose id matches one of the patterns ("rack1-*")."""
        return self._subset(
            ("matching", *patterns),
            lambda bookie: any(fnmatchcase(bookie, pattern) for pattern in patterns),
        )

    def located(self) -> Candidates:
        """Returns the candidates whose location is known."""
        return self._subset(("located",), lambda bookie: self.places[bookie].location.is_known)

    def _subset(self, key: tuple[str, ...], accepts: Callable[[str], bool]) -> Candidates:
        found = self._subsets.get(key)
        if found is None:
            if len(self._subsets) >= _SUBSETS_MAX:
                del self._subsets[next(iter(self._subsets))]
            kept = {bookie: place for bookie, place in self.places.items() if accepts(bookie)}
            found = self if len(kept) == len(self.places) else self._of(kept)
            self._subsets[key] = found
        return found

    def _of(self, kept: Mapping[str, Place]) -> Candidates:
        return Candidates(kept, others={**self._others, **self.places}, weights=self._weights)

    def _groups(self, key_of: Callable[[Place], Key]) -> dict[Key, Group]:
        found: dict[Key, list[str]] = {}
        for bookie, place in self.places.items():
            found.setdefault(key_of(place), []).append(bookie)
        return {key: Group(bookies, self._weights) for key, bookies in found.items()}


def weights_of(bookies: Iterable[str], free_bytes: Mapping[str, int]) -> dict[str, float] | None:
    """Returns the weight of each bookie: its free space, at least a byte, and at most
    WEIGHT_MEDIANS_MAX times the median. None if nothing is known: all are equal."""
    known = {bookie: max(free_bytes[bookie], 1) for bookie in bookies if bookie in free_bytes}
    if not known:
        return None
    ordered = sorted(known.values())
    middle = (ordered[len(ordered) // 2] + ordered[(len(ordered) - 1) // 2]) / 2
    most = WEIGHT_MEDIANS_MAX * middle
    return {bookie: min(float(known.get(bookie, middle)), most) for bookie in bookies}
