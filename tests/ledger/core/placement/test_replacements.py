"""Where the bookie that replaces another one is."""

from __future__ import annotations

import random

from ledger.core.placement.policies import PlacementPolicy
from ledger.core.placement.topology import Candidates, Location, Place


def test_a_replacement_is_in_the_rack_of_the_bookie_that_it_replaces() -> None:
    places = {f"b{n}": Place(f"h{n}", Location("eu", f"r{n % 5}")) for n in range(200)}
    candidates, rng = Candidates(places), random.Random(5)
    policy = PlacementPolicy("rack")
    for _ in range(50):
        ensemble = policy.choose(3, 3, 2, candidates, (), rng)
        changed = policy.replace(ensemble, [1], 3, 2, candidates, (), rng)
        assert places[changed[1]].location == places[ensemble[1]].location
        gone = [b for b, p in places.items() if p.location == places[ensemble[1]].location]
        changed = policy.replace(ensemble, [1], 3, 2, candidates, gone, rng)
        assert len({places[b].location for b in changed}) == 3


def test_replacements_without_a_preference_are_spread_over_all_racks() -> None:
    places = {f"b{n}": Place(f"h{n}", Location("eu", f"r{n % 20}")) for n in range(200)}
    candidates, rng = Candidates(places), random.Random(5)
    racks = set()
    for _ in range(200):
        changed = PlacementPolicy("rack").replace(
            ("b0", "b1", "b2"), [1], 3, 2, candidates, (), rng, prefers_same_rack=False
        )
        assert len({places[b].location for b in changed}) == 3
        racks.add(places[changed[1]].location)
    assert len(racks) == 18, "all but those of the other two"
