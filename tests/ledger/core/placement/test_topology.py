"""Locations are parsed or refused with a reason, and bookies are drawn by weight."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.placement.topology import (
    DEFAULT_LOCATION,
    Candidates,
    Group,
    Location,
    Place,
    weights_of,
)
from ledger.errors import InvalidArgument

NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(NAMES, NAMES)
def test_a_path_is_the_location_that_it_names(region: str, rack: str) -> None:
    assert Location.parse(f"/{region}/{rack}") == (region, rack)
    assert Location.parse(f"/{rack}") == Location.parse(f"/default-region/{rack}")
    for path in (f"/{region}/{rack}", f"/{rack}"):
        assert Location.parse(Location.parse(path).path) == Location.parse(path)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("eu-1/rack-7", "a leading slash"),
        ("rack-7", "a leading slash"),
        ("", "a leading slash"),
        ("/a/b/c", "one or two components"),
        ("/" + "a" * 200, "at most 200 characters"),
        ("/", "component ''"),
        ("//rack", "component ''"),
        ("/eu/", "component ''"),
        ("/eu/..", r"component '\.\.'"),
        ("/eu 1/rack", "component 'eu 1'"),
        ("/eu/räck", "component 'räck'"),
        ("/eu/rack\n", r"component 'rack\\n'"),
    ],
)
def test_a_location_of_another_form_is_refused(path: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        Location.parse(path)


def test_a_bookie_nobody_has_placed_is_in_the_default_rack() -> None:
    candidates = Candidates.on_hosts({"a:1": "a"})
    assert candidates.place("a:1") == Place("a", DEFAULT_LOCATION)
    assert candidates.place("b:3181") == Place("b", DEFAULT_LOCATION)
    assert DEFAULT_LOCATION.path == "/default-rack"
    assert Location.parse("/default-region/default-rack") == DEFAULT_LOCATION
    assert not DEFAULT_LOCATION.is_known
    assert Location.parse("/eu-1/rack-7").is_known


def test_others_are_known_without_being_candidates() -> None:
    rack = Location.parse("/eu-1/rack-7")
    candidates = Candidates({"a": Place("1")}, others={"b": Place("2", rack)})
    assert candidates.place("b") == Place("2", rack)
    assert candidates.all.bookies == ["a"]
    assert len(candidates.located()) == 0
    assert candidates.matching(("a*",)) is candidates


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 1 << 50), min_size=1))
def test_a_weight_is_free_space_of_at_most_three_times_the_median(free: dict[str, int]) -> None:
    bookies = [*free, "unknown"]
    weights = weights_of(bookies, free)
    assert weights is not None
    ordered = sorted(max(one, 1) for one in free.values())
    half = len(ordered) // 2
    middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert weights["unknown"] == middle
    for bookie, nbytes in free.items():
        assert weights[bookie] == min(max(nbytes, 1), 3 * middle)
    assert weights_of(bookies, {}) is None


def test_bookies_are_drawn_in_proportion_to_their_weights() -> None:
    weights = {"a": 1.0, "b": 3.0, "c": 6.0}
    group, rng = Group(list(weights), weights), random.Random(3)
    counts = Counter(group.draw(rng) for _ in range(20_000))
    for bookie, weight in weights.items():
        assert abs(counts[bookie] / 2000 - weight) < 0.25
