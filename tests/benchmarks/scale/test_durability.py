"""The chances of loss: formulas against chance itself, and copysets against a count by hand."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from benchmarks.scale.cluster import build
from benchmarks.scale.durability import (
    chance,
    copysets_of,
    expected_outage_chance,
    in_one_rack,
    independent_losses_per_year,
    limited_copysets,
    outage_loss,
    scatter_width,
)
from benchmarks.scale.scenarios import HOSTS
from benchmarks.scale.settings import SMALL, YEAR_S


def test_independent_failures_are_as_frequent_as_when_they_are_drawn() -> None:
    chance_of, bookies, copies = random.Random(2), 6, 3
    per_year, exposed_s, years = 20.0, YEAR_S / 400, 4000
    copysets = [*combinations(range(bookies), copies)][::2]
    losses = 0
    down_until = [-1.0] * bookies
    now, end = 0.0, float(years)
    while (now := now + chance_of.expovariate(per_year * bookies)) < end:
        failed = chance_of.randrange(bookies)
        if down_until[failed] >= now:
            continue
        others = {one for one in range(bookies) if down_until[one] >= now}
        down_until[failed] = now + exposed_s / YEAR_S
        losses += sum(failed in one and set(one) - {failed} <= others for one in copysets)
    expected = independent_losses_per_year(len(copysets), copies, per_year, exposed_s) * years
    assert expected > 1000
    # The formula counts a bookie that fails while it is down twice: 5 % of the time, here.
    assert losses == pytest.approx(expected, rel=0.2)


def test_a_chance_is_never_above_one_and_small_ones_are_exact() -> None:
    assert chance(1e-15) == pytest.approx(1e-15)
    assert chance(0) == 0
    assert 0.999 < chance(50) <= 1


def test_drawn_and_computed_chances_of_an_outage_agree() -> None:
    chance_of = random.Random(5)
    copysets = {
        tuple(sorted(chance_of.sample(range(60), 3))): chance_of.randint(1, 3) for _ in range(300)
    }
    drawn = outage_loss(copysets, 60, 5, 5000, chance_of)
    assert drawn.chance == pytest.approx(expected_outage_chance(300, 3, 60, 5), rel=0.15)
    assert drawn.ledgers >= 1
    assert outage_loss({(0, 1, 2): 9}, 4, 2, 50, chance_of).chance == 0, "fewer than the copies"
    assert outage_loss({(0, 1, 2): 9}, 3, 3, 50, chance_of).ledgers == 9


def test_copysets_are_those_of_the_ledgers() -> None:
    cluster = build(SMALL, HOSTS, weighted=False)
    naive: dict[tuple[str, ...], int] = {}
    for metadata in cluster.all_metadata():
        key = tuple(sorted(metadata.fragments[0].bookies))
        naive[key] = naive.get(key, 0) + 1
    found = copysets_of(cluster)
    names = cluster.names
    assert {tuple(names[i] for i in one): count for one, count in found.items()} == naive
    racks = {name: number // SMALL.rack_bookies for number, name in enumerate(names)}
    alone = sum(count for one, count in naive.items() if len({racks[name] for name in one}) == 1)
    assert in_one_rack(found, SMALL.rack_bookies) == alone > 0
    partners = {
        other for one in naive if names[7] in one for other in one if other != names[7]
    }  # fmt: skip
    assert scatter_width(found, [7]) == len(partners)


@pytest.mark.parametrize("width", [2, 6, 10])
def test_limited_copysets_have_the_width_and_no_rack_twice(width: int) -> None:
    found = limited_copysets(60, 5, 3, width, 6000, random.Random(width))
    assert sum(found.values()) == 6000
    assert in_one_rack(found, 5) == 0
    for copyset in found:
        assert len({number // 5 for number in copyset}) == 3
    measured = scatter_width(found, range(60))
    assert 0.7 * width <= measured <= width
    assert len(found) <= 60 * width / 6
