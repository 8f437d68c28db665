"""Policies against a twin that tries every ensemble: no other one would be further apart."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.placement.policies import (
    DEFAULT_PLACEMENT,
    KINDS,
    PLACEMENT_TAG,
    Grade,
    PlacementKind,
    PlacementPolicy,
    order_reads,
    placement_of,
)
from ledger.core.placement.topology import (
    DEFAULT_LOCATION,
    Candidates,
    Location,
    Place,
    weights_of,
)
from ledger.errors import InvalidArgument, MetadataCorrupt, NotEnoughBookies

LOCATIONS = [Location.parse(path) for path in ("/a/1", "/a/2", "/b/1", "/c", "/default-rack")]


@dataclass
class Case:
    policy: PlacementPolicy
    sizes: tuple[int, int, int]
    places: dict[str, Place]
    excluded: list[str]
    rng: random.Random

    @property
    def candidates(self) -> Candidates:
        return Candidates(self.places)

    @property
    def usable(self) -> list[str]:
        return [b for b in self.places if b not in self.excluded]


@st.composite
def cases(draw: st.DrawFn, *, enforced: bool | None = None) -> Case:
    kind: PlacementKind = draw(st.sampled_from(KINDS if enforced is not True else KINDS[1:]))
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(1, write_quorum))
    enforce = kind != "default" and (draw(st.booleans()) if enforced is None else enforced)
    if kind == "region" and enforce and write_quorum > 1:
        ack_quorum = max(ack_quorum, 2)
    minimum = 0 if kind == "default" else draw(st.integers(0, write_quorum))
    bookies = [f"b{number}" for number in range(draw(st.integers(size, 6)))]
    place = st.builds(Place, st.sampled_from("uvwxyz"), st.sampled_from(LOCATIONS))
    return Case(
        PlacementPolicy(kind, minimum, enforce),
        (size, write_quorum, ack_quorum),
        {bookie: draw(place) for bookie in bookies},
        draw(st.lists(st.sampled_from(bookies), max_size=1)),
        random.Random(draw(st.integers(0, 1 << 32))),
    )


def domain(policy: PlacementPolicy, place: Place) -> object:
    if policy.kind == "default":
        return place.host
    return place.location if policy.kind == "rack" else place.location.region


def write_sets(ensemble: Sequence[str], write_quorum: int) -> Iterator[list[str]]:
    size = len(ensemble)
    for start in range(size):
        yield [ensemble[(start + step) % size] for step in range(write_quorum)]


def spread(case: Case, ensemble: Sequence[str]) -> int:
    """The fewest domains of a write set."""
    return min(
        len({domain(case.policy, case.places[b]) for b in one})
        for one in write_sets(ensemble, case.sizes[1])
    )


def broken(case: Case, ensemble: Sequence[str]) -> int:
    """How many write sets break the rule of an enforced policy."""
    _, write_quorum, ack_quorum = case.sizes
    count = 0
    for one in write_sets(ensemble, write_quorum):
        counts = Counter(domain(case.policy, case.places[b]) for b in one)
        is_alone = case.policy.kind == "region" and max(counts.values()) >= ack_quorum
        too_near = len(counts) < min(case.policy.minimum or 2, write_quorum)
        count += too_near or (is_alone and write_quorum > 1)
    return count


@given(cases(enforced=False))
def test_copies_are_spread_as_far_as_any_ensemble_spreads_them(case: Case) -> None:
    size = case.sizes[0]
    if len(case.usable) < size:
        with pytest.raises(NotEnoughBookies, match="not enough bookies"):
            case.policy.choose(*case.sizes, case.candidates, case.excluded, case.rng)
        return
    ensemble = case.policy.choose(*case.sizes, case.candidates, case.excluded, case.rng)
    assert len(set(ensemble)) == len(ensemble) == size
    assert set(ensemble) <= set(case.usable)
    assert spread(case, ensemble) == max(
        spread(case, one) for one in permutations(case.usable, size)
    )


@given(cases(enforced=True))
def test_an_enforced_rule_is_kept_or_no_ensemble_can_keep_it(case: Case) -> None:
    located = [b for b in case.usable if case.places[b].location != DEFAULT_LOCATION]
    legal = [one for one in permutations(located, case.sizes[0]) if not broken(case, one)]
    if not legal:
        with pytest.raises(NotEnoughBookies):
            case.policy.choose(*case.sizes, case.candidates, case.excluded, case.rng)
        return
    ensemble = case.policy.choose(*case.sizes, case.candidates, case.excluded, case.rng)
    assert len(set(ensemble)) == case.sizes[0]
    assert set(ensemble) <= set(located)
    assert not broken(case, ensemble)


@given(cases(), st.data())
def test_a_replacement_keeps_the_rule_if_any_does(case: Case, data: st.DataObject) -> None:
    size, write_quorum, ack_quorum = case.sizes
    ensemble = data.draw(st.permutations(sorted(case.places)))[:size]
    indices = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    spare = [b for b in case.usable if b not in ensemble]
    pool = spare
    if case.policy.enforce:
        pool = [b for b in spare if case.places[b].location != DEFAULT_LOCATION]

    def changed(chosen: Sequence[str]) -> list[str]:
        given = iter(chosen)
        return [next(given) if i in indices else b for i, b in enumerate(ensemble)]

    possible = [changed(one) for one in permutations(pool, len(indices))]
    before = broken(case, ensemble)
    legal = [o for o in possible if not case.policy.enforce or broken(case, o) <= before]

    def replace() -> tuple[str, ...]:
        return case.policy.replace(
            ensemble, indices, write_quorum, ack_quorum, case.candidates, case.excluded, case.rng
        )

    if not possible or (not legal and len(indices) == 1):
        with pytest.raises(NotEnoughBookies):
            replace()
        return
    try:
        found = replace()
    except NotEnoughBookies:
        # Several at once may be too hard to find where the ensemble breaks the rule anyhow.
        assert case.policy.enforce
        assert all(broken(case, one) for one in possible)
        return
    assert list(found) in possible
    if not case.policy.enforce:
        assert spread(case, found) == max(spread(case, one) for one in possible)
    elif not all(broken(case, one) for one in possible):
        assert not broken(case, found)
    else:
        assert broken(case, found) <= before


@pytest.mark.parametrize("kind", ["rack", "region"])
def test_the_first_bookie_is_near_the_client(kind: PlacementKind) -> None:
    places = {f"b{n}": Place(f"h{n}", Location(f"e{n % 4}", f"r{n % 20}")) for n in range(200)}
    candidates, rng, here = Candidates(places), random.Random(5), Location("e1", "r5")
    for _ in range(50):
        ensemble = PlacementPolicy(kind).choose(3, 3, 2, candidates, (), rng, near=here)
        assert places[ensemble[0]].location == here
        far = [b for b, place in places.items() if place.location == here]
        ensemble = PlacementPolicy(kind).choose(3, 3, 2, candidates, far, rng, near=here)
        assert kind == "rack" or places[ensemble[0]].location.region == "e1"
        ensemble = DEFAULT_PLACEMENT.choose(3, 3, 2, candidates, (), rng, near=here)
        assert len(set(ensemble)) == 3


@given(cases(), st.data())
def test_the_grade_is_what_every_write_set_says(case: Case, data: st.DataObject) -> None:
    size, write_quorum, ack_quorum = case.sizes
    ensemble = data.draw(st.permutations(sorted(case.places)))[:size]
    grade, reason = case.policy.adherence(ensemble, write_quorum, ack_quorum, case.candidates)
    assert (reason == "") is (grade is Grade.STRICT)
    places = [case.places[bookie] for bookie in ensemble]
    if case.policy.enforce:
        is_unknown = any(place.location == DEFAULT_LOCATION for place in places)
        assert (grade is Grade.FAIL) is (is_unknown or broken(case, ensemble) > 0)
    elif case.policy.kind == "default":
        assert grade is (Grade.STRICT if spread(case, ensemble) == write_quorum else Grade.SOFT)
    else:
        least = min(case.policy.minimum or 2, write_quorum)
        assert (grade is Grade.FAIL) is (spread(case, ensemble) < least)
    if grade is Grade.STRICT:
        for one in write_sets(ensemble, write_quorum):
            assert len({case.places[b].host for b in one}) == write_quorum
        if case.policy.kind == "zone":
            assert spread(case, ensemble) >= min(3, write_quorum)


@pytest.mark.parametrize(
    ("policy", "ensemble", "reason"),
    [
        (PlacementPolicy("rack"), "abx", "bookies a, b, x are in 1 rack (/e/1), 2 are needed"),
        (PlacementPolicy("rack"), "abc", ""),
        (PlacementPolicy("rack", 3), "abc", "are in 2 racks (/e/1, /e/2), 3 are needed"),
        (PlacementPolicy("rack", 0, True), "acu", "the location of u is unknown"),
        (PlacementPolicy("region"), "abd", "region e holds an ack quorum alone"),
        (PlacementPolicy("region", 0, True), "abd", "region e holds an ack quorum alone"),
        (PlacementPolicy("zone"), "abd", "are in 2 zones (e, f), 3 are wanted"),
        (DEFAULT_PLACEMENT, "axd", "2 copies are on host h1"),
    ],
)
def test_a_grade_has_a_sentence(policy: PlacementPolicy, ensemble: str, reason: str) -> None:
    places = {
        "a": Place("h1", Location("e", "1")), "b": Place("h2", Location("e", "1")),
        "x": Place("h1", Location("e", "1")), "c": Place("h3", Location("e", "2")),
        "d": Place("h4", Location("f", "1")),
    }  # fmt: skip
    found = policy.adherence(list(ensemble), 3, 2, Candidates({}, others=places))
    assert reason in found.reason
    assert (found.grade is Grade.STRICT) is (reason == "")


def test_the_error_names_the_rule_and_the_numbers() -> None:
    rack = Location.parse("/eu-1/rack-7")
    places = {f"b{n}": Place(f"h{n}", rack) for n in range(3)} | {"b9": Place("h9")}
    policy, candidates = PlacementPolicy("rack", 0, True), Candidates(places)
    with pytest.raises(NotEnoughBookies, match="the location of 1 more is unknown"):
        policy.choose_degraded(4, 4, 2, candidates, places, (), random.Random(1))
    with pytest.raises(
        NotEnoughBookies,
        match=r"placement needs 2 racks for each entry, bookies that are up are in 1 rack "
        r"\(/eu-1/rack-7\): 3 bookies for an ensemble of 3; the location of 1 more is unknown\.",
    ):
        policy.choose(3, 3, 2, candidates, (), random.Random(1))


def test_a_rule_that_no_ensemble_of_these_quorums_keeps_is_refused() -> None:
    candidates = Candidates({f"b{n}": Place(f"h{n}", LOCATIONS[n]) for n in range(4)})
    with pytest.raises(InvalidArgument, match="needs 3 racks for each entry, and write_quorum is"):
        PlacementPolicy("rack", 3).choose(2, 2, 2, candidates, (), random.Random(1))
    with pytest.raises(InvalidArgument, match="no region holds an ack quorum alone"):
        PlacementPolicy("region", 2, True).choose(3, 3, 1, candidates, (), random.Random(1))


@given(cases(), st.data())
def test_a_degraded_ensemble_keeps_an_ack_quorum_up_and_the_rule(
    case: Case, data: st.DataObject
) -> None:
    size, write_quorum, ack_quorum = case.sizes
    up = data.draw(st.sets(st.sampled_from(sorted(case.places))))
    candidates = Candidates({b: case.places[b] for b in up}, others=case.places)
    try:
        ensemble = case.policy.choose_degraded(
            *case.sizes, candidates, case.places, case.excluded, case.rng
        )
    except NotEnoughBookies:
        usable = [b for b in up if b not in case.excluded]
        assert case.policy.enforce or len(usable) < size
        return
    assert len(set(ensemble)) == size
    assert set(ensemble) <= set(case.places)
    for one in write_sets(ensemble, write_quorum):
        assert sum(b in up and b not in case.excluded for b in one) >= ack_quorum
    if case.policy.enforce:
        assert not broken(case, ensemble)


def test_bookies_are_chosen_by_their_free_space() -> None:
    places = {f"b{n}": Place(f"h{n}", Location("eu", f"r{n % 10}")) for n in range(100)}
    free = dict.fromkeys(places, 100) | {"b3": 50, "b5": 200, "b7": 10**12}
    candidates = Candidates(places, weights=weights_of(places, free))
    rng, counts = random.Random(8), Counter[str]()
    for _ in range(20_000):
        counts.update(PlacementPolicy("rack").choose(3, 3, 2, candidates, (), rng))
    fair = sum(counts[f"b{n}"] for n in range(10, 100)) / 90
    assert 0.4 < counts["b3"] / fair < 0.6
    assert 1.75 < counts["b5"] / fair < 2.2
    assert 2.5 < counts["b7"] / fair < 3.2, "at most three times the median"


class CountedPlaces(dict[str, Place]):
    """Counts how often it is asked where a bookie is."""

    lookups = 0

    def __getitem__(self, bookie: str) -> Place:
        CountedPlaces.lookups += 1
        return super().__getitem__(bookie)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("racks", [3, 40])
def test_a_choice_among_a_thousand_bookies_looks_at_a_few(kind: Any, racks: int) -> None:
    places = {f"b{n}": Place(f"h{n}", Location(f"e{n % 3}", f"r{n % racks}")) for n in range(1000)}
    candidates, rng = Candidates(places), random.Random(2)
    candidates.places = CountedPlaces(candidates.places)
    CountedPlaces.lookups = 0
    policy = PlacementPolicy(kind)
    for _ in range(300):
        ensemble = policy.choose(3, 3, 2, candidates, (), rng)
        policy.replace(ensemble, [1], 3, 2, candidates, ("b1", "b2"), rng)
    assert CountedPlaces.lookups / 300 < 25


@pytest.mark.parametrize(
    ("policy", "data"),
    [
        (PlacementPolicy("rack"), b"rack"),
        (PlacementPolicy("zone", 3), b"zone,minimum=3"),
        (PlacementPolicy("region", 0, True), b"region,enforce"),
        (PlacementPolicy("rack", 2, True), b"rack,minimum=2,enforce"),
    ],
)
def test_the_stored_form(policy: PlacementPolicy, data: bytes) -> None:
    assert policy.encode() == data
    assert placement_of({PLACEMENT_TAG: data}) == policy
    assert placement_of({}) == DEFAULT_PLACEMENT


@pytest.mark.parametrize(
    "data",
    [b"", b"cell", b"rack,3", b"rack,minimum=", b"rack,minimum=-1", b"rack,minimum=03", b"rack,",
     b"rack,minimum=999", b"rack,enforce,enforce", b"rack,enforce,minimum=2", b"\xff", b"r" * 999],
)  # fmt: skip
def test_an_unknown_form_is_corrupt(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt, match="of a ledger"):
        placement_of({PLACEMENT_TAG: data})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("cell", 0, False), "there are: default, rack, region, zone"),
        (("rack", 256, False), "legal is 0 to 255"),
        (("rack", -1, False), "legal is 0 to 255"),
        (("rack", True, False), "the minimum of a placement is True"),
        (("rack", 0, 1), "is not 1"),
        (("default", 2, False), "it knows no racks"),
        (("default", 0, True), "it knows no racks"),
    ],
)
def test_values_that_are_not_legal_are_refused(arguments: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        PlacementPolicy(*arguments)


@given(st.lists(st.sampled_from(LOCATIONS), max_size=7), st.sampled_from(LOCATIONS))
def test_reads_begin_nearby_and_one_of_the_first_three_is_far(
    locations: list[Location], reader: Location
) -> None:
    places = {f"b{n}": Place("h", location) for n, location in enumerate(locations)}
    found = order_reads(list(places), reader, Candidates({}, others=places))
    assert sorted(found) == sorted(places)

    def distance(bookie: str) -> int:
        location = places[bookie].location
        return 0 if location == reader else 1 if location.region == reader.region else 2

    distances = [distance(bookie) for bookie in found]
    far = distances.count(2)
    expected = sorted(distances)
    if far and len(distances) - far > 2:
        expected = [*expected[:2], 2, *expected[2:-1]]
    assert distances == expected
    for one in (0, 1, 2):
        same = [bookie for bookie in found if distance(bookie) == one]
        assert same == sorted(same), "of equal distance, the order stays"
