"""The chance that some ledger loses all of its copies within a year.

The model. A *copyset* is a set of bookies that hold all copies of some ledger. It is lost if all of
its bookies lose their data before the copies of the first are made again. Causes:

- *Independent failures*: each bookie fails `failures_per_year` times, and a ledger that it held has
  one copy less for `exposed_s`. With R copies the bookies of a copyset are down together R f (f
  T)^(R-1) times per year: one fails while all others are down.
- *A power failure* of the whole cluster, after which some bookies do not return: if F of N are
  chosen at random, a copyset is among them with the chance C(F, R) / C(N, R). That is drawn for the
  copysets as they are. The event and its one per cent: A. Cidon and others, "Copysets: Reducing the
  Frequency of Data Loss in Cloud Storage", USENIX ATC 2013.
- *A rack*: the ledgers all of whose copies are in it, counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.scale.cluster import Cluster
from benchmarks.scale.settings import YEAR_S

Copyset = tuple[int, ...]


def copysets_of(cluster: Cluster) -> dict[Copyset, int]:
    """Returns the copysets of all ledgers, and how many ledgers each has."""
    size = cluster.settings.ensemble_size
    assert cluster.settings.write_quorum == size, "of striped ledgers, each write set is a copyset"
    found: dict[Copyset, int] = {}
    every = iter(cluster.ensembles)
    for numbers in zip(*[every] * size, strict=True):
        key = tuple(sorted(numbers))
        found[key] = found.get(key, 0) + 1
    return found


def limited_copysets(
    bookies: int, rack_bookies: int, copies: int, width: int, ledgers: int, rng: random.Random
) -> dict[Copyset, int]:
    """Returns copysets of a scatter width of about `width`, each with bookies of different racks.

    Permutations of all bookies are cut into groups (the method of the paper). No policy of
    ledgerstream places ledgers in this way.
    """
    found: dict[Copyset, int] = {}
    for _ in range(max(1, round(width / (copies - 1)))):
        # Bookies of a rack are spread over the permutation, so that no group has two of them.
        racks = [
            rng.sample(
                range(begin, min(begin + rack_bookies, bookies)),
                k=min(rack_bookies, bookies - begin),
            )
            for begin in range(0, bookies, rack_bookies)
        ]
        rng.shuffle(racks)
        order = [one for column in zip(*racks, strict=True) for one in column]
        for begin in range(0, len(order) - copies + 1, copies):
            found[tuple(sorted(order[begin : begin + copies]))] = 0
    keys = list(found)
    for number in range(ledgers):
        found[keys[number % len(keys)]] += 1
    return found


def scatter_width(copysets: Collection[Copyset], bookies: Sequence[int]) -> float:
    """Returns with how many other bookies one of `bookies` shares ledgers, on average."""
    partners: dict[int, dict[int, None]] = {one: {} for one in bookies}
    for copyset in copysets:
        for one in copyset:
            if one in partners:
                partners[one].update(dict.fromkeys(copyset))
    return sum(max(0, len(one) - 1) for one in partners.values()) / len(partners)


def independent_losses_per_year(
    copysets: int, copies: int, failures_per_year: float, exposed_s: float
) -> float:
    """Returns how often per year some copyset loses all copies, by independent failures."""
    down = failures_per_year * exposed_s / YEAR_S
    return copysets * copies * failures_per_year * down ** (copies - 1)


def chance(per_year: float) -> float:
    """Returns the chance of at least one such event within a year."""
    return -math.expm1(-per_year)


@dataclass(frozen=True, slots=True)
class OutageLoss:
    """What follows from some bookies that do not return: the chance that a ledger is
    lost, and how many are if any is."""

    chance: float
    ledgers: float


def outage_loss(
    copysets: dict[Copyset, int], bookies: int, failed: int, trials: int, rng: random.Random
) -> OutageLoss:
    """Draws which bookies do not return, and counts the ledgers without any copy."""
    copies = len(next(iter(copysets)))
    losses = []
    for _ in range(trials):
        gone = sorted(rng.sample(range(bookies), failed))
        lost = sum(copysets.get(one, 0) for one in combinations(gone, copies))
        if lost:
            losses.append(lost)
    return OutageLoss(len(losses) / trials, sum(losses) / len(losses) if losses else 0.0)


def expected_outage_chance(copysets: int, copies: int, bookies: int, failed: int) -> float:
    """Returns about the chance that the copysets contain one that is lost, if they overlap
    little."""
    one = math.comb(failed, copies) / math.comb(bookies, copies)
    return -math.expm1(copysets * math.log1p(-one))


def in_one_rack(copysets: dict[Copyset, int], rack_bookies: int) -> int:
    """Returns the ledgers all of whose copies are in one rack."""
    return sum(
        ledgers
        for copyset, ledgers in copysets.items()
        if len({number // rack_bookies for number in copyset}) == 1
    )
