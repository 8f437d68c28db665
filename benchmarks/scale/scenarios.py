"""Which clusters, losses and copy rates are simulated, and what is kept of each run.

The runs are independent of each other: each has random numbers of its own, and they are spread over
processes. So the results of a seed are the same on any number of processors.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, TypeVar

from benchmarks.scale import durability, tree
from benchmarks.scale.cluster import Cluster, add_ledgers, build, skew
from benchmarks.scale.costs import Cost
from benchmarks.scale.durability import OutageLoss
from benchmarks.scale.healing import (
    Audit,
    Healing,
    Report,
    audit,
    bookies_emptying,
    bookies_without,
)
from benchmarks.scale.settings import MIB, ScaleSettings
from ledger.core.autorecovery.rebalance import Balance, copies_of, moves_of
from ledger.core.placement.policies import PlacementPolicy

RACK, HOSTS = PlacementPolicy("rack"), PlacementPolicy()
COPY_RATES = (16 * MIB, 64 * MIB, 256 * MIB)
WIDTHS = (10, 50, 200)
GROWTH = 0.1

T = TypeVar("T")
TOLERANCE = 0.05
"""How much fuller than its share a bookie may be after a rebalance."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is kept of one loss."""

    loss: str
    placement: str
    copy_bytes_per_s: int
    bookies_lost: int
    ledgers: int
    copies: int
    bytes: int
    begun_s: float
    audited_s: float
    whole_s: float
    ended_s: float
    finding_s: float
    exposed_s: float
    costs: dict[str, Cost]
    most_per_s: dict[str, int]
    operations: list[int]
    """Operations of each second."""
    marks_most: int
    locks_most: int
    disputed: int
    lost_ledgers: int
    waits_s: dict[int, tuple[int, float]]
    """By copies left: how many ledgers, and the median time from mark to last copy."""
    sources: int
    targets: int
    copies_skew: float
    reads_skew: float
    adds_skew: tuple[float, float]
    fill_skew: tuple[float, float]
    changes_s: list[float]
    changes_per_s: int
    unsafe: int
    out_of_order: int
    marked_at_worst: list[int]


def run_of(report: Report, loss: str, placement: str, copy_bytes_per_s: int) -> Run:
    """Returns what is kept of a report."""
    meter, healed, senders = report.meter, report.healed, list(report.meter.by_sender)
    return Run(
        loss, placement, copy_bytes_per_s, report.lost, report.copies_lost, healed.copies,
        healed.bytes, report.begun_s, report.audited_s, report.whole_s, report.ended_s,
        report.finding_s, report.exposed_s,
        costs={one: meter.by_sender[one] for one in senders},
        most_per_s={one: meter.most(one) for one in senders},
        operations=meter.series(),
        marks_most=report.marks.most, locks_most=report.marks.locked_most,
        disputed=healed.disputed, lost_ledgers=len(healed.lost),
        waits_s={
            left: (len(waits), median(waits))
            for left, waits in sorted(healed.by_copies_left.items())
        },
        sources=len(healed.read), targets=len(healed.made),
        copies_skew=report.copies_skew, reads_skew=report.reads_skew,
        adds_skew=report.adds_skew, fill_skew=report.fill_skew,
        changes_s=report.changed_s, changes_per_s=meter.most("writers"), unsafe=report.unsafe,
        out_of_order=healed.out_of_order,
        marked_at_worst=list(report.found_s)[: report.marks.most],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chance:
    """The chance per year that a ledger loses all copies, for one way to place ledgers."""

    placement: str
    width: float
    copysets: int
    exposed_s: float
    independent_per_year: float
    outage: OutageLoss
    outage_expected: float
    in_one_rack: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The skew before bookies were added, just after, and when ledgers of the same part were
    made."""

    placement: str
    adds: tuple[float, float, float]
    fill: tuple[float, float, float]
    share_of_new: float
    """The part of the new ledgers' copies that the new bookies got."""
    copies_moved: int
    bytes_moved: int
    fill_balanced: float
    """The skew of the closed ledgers' space after a rebalance instead."""


@dataclass(slots=True)
class Results:
    """Everything the document says."""

    settings: ScaleSettings
    runs: list[Run] = field(default_factory=list)
    chances: list[Chance] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    kinds: list[tree.Kind] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, loss: str, copy_bytes_per_s: int, placement: str = "racks") -> Run:
        """Returns one run."""
        wanted = (loss, placement, copy_bytes_per_s)
        for one in self.runs:
            if (one.loss, one.placement, one.copy_bytes_per_s) == wanted:
                return one
        raise KeyError(wanted)


def losses(cluster: Cluster) -> dict[str, list[str]]:
    """Returns the losses: a bookie, a rack, and some at random."""
    settings, rng = cluster.settings, random.Random(f"{cluster.settings.seed} losses")
    return {
        "one bookie": [rng.choice(cluster.names)],
        "a rack": cluster.rack(rng.randrange(settings.racks)),
        "at random": rng.sample(cluster.names, settings.outage_bookies),
    }


def heal(
    cluster: Cluster, loss: str, placement: str, rates: Sequence[int], settings: ScaleSettings
) -> list[Run]:
    """Returns a run for each copy rate."""
    lost, emptying = losses(cluster).get(loss, []), None
    if loss == "decommission":
        emptying = losses(cluster)["one bookie"][0]
        known = audit(cluster, bookies_emptying(cluster, emptying))
    else:
        known = audit(cluster, bookies_without(cluster, lost, ()))
    runs = [
        _heal_once(cluster, loss, placement, rate, lost, emptying, known, settings)
        for rate in rates
    ]
    if (loss, placement) == ("one bookie", "racks"):
        rate = settings.copy_bytes_per_s
        runs.append(_heal_once(cluster, loss, "same rack", rate, lost, None, known, settings))
    return runs


def _heal_once(
    cluster: Cluster, loss: str, placement: str, rate: int, lost: Sequence[str],
    emptying: str | None, known: Audit, settings: ScaleSettings,
) -> Run:  # fmt: skip
    copy = cluster.copy()
    copy.settings = settings.with_copy_rate(rate)
    rng = random.Random(f"{settings.seed} {loss} {placement} {rate}")
    healing = Healing(
        copy, lost, rng, emptying=emptying, known=known, is_local=placement == "same rack"
    )
    return run_of(healing.run(), loss, placement, rate)


def grow(cluster: Cluster, placement: str, settings: ScaleSettings) -> Growth:
    """Adds bookies; then either moves copies to them, or makes as many new ledgers in
    proportion."""
    copy = cluster.copy()
    copy.sizes, copy.ensembles = copy.sizes[:], copy.ensembles[:]
    rng = random.Random(f"{settings.seed} growth {placement}")
    before = (skew([*copy.adds().values()]), skew([*copy.fill().values()]))
    new = copy.add_bookies(round(settings.bookies * GROWTH))
    joined = (skew([*copy.adds().values()]), skew([*copy.fill().values()]))
    moves, nbytes, balanced = rebalance(copy)
    made = round(settings.ledgers * GROWTH)
    total = sum(copy.used.values())
    add_ledgers(copy, made, rng)
    share = sum(copy.used[one] for one in new) / (sum(copy.used.values()) - total)
    # The new ledgers take the place of the open ones, one for each stream.
    written = dict.fromkeys(copy.names, 0)
    for ledger_id in range(len(copy.sizes) - min(made, settings.streams), len(copy.sizes)):
        for bookie in copy.ensemble(ledger_id):
            written[bookie] += 1
    return Growth(
        placement,
        (before[0], joined[0], skew([*written.values()])),
        (before[1], joined[1], skew([*copy.fill().values()])),
        share, moves, nbytes, balanced,
    )  # fmt: skip


def rebalance(cluster: Cluster) -> tuple[int, int, float]:
    """Returns the copies that a rebalance would move, their bytes, and the skew of space then."""
    balance = Balance(cluster.capacity, tolerance=TOLERANCE)
    for ledger_id in range(cluster.first_open):
        metadata = cluster.metadata(ledger_id)
        for number, index, nbytes in copies_of(metadata):
            balance.add(metadata.fragments[number].bookies[index], nbytes)
    topology, moves, moved = cluster.candidates(), 0, 0
    for ledger_id in range(cluster.first_open):
        metadata = cluster.metadata(ledger_id)
        found = moves_of(metadata, balance, topology)
        moves += len(found)
        moved += metadata.length * cluster.settings.write_quorum * len(found)
    return moves, moved // cluster.settings.ensemble_size, balance.skew


def chances(clusters: dict[str, Cluster], whole: Run) -> list[Chance]:
    """Returns the chances of loss by placement; `whole` is the loss of one bookie as measured."""
    settings = clusters["racks"].settings
    found = [
        _chance(name, durability.copysets_of(clusters[of]), whole.exposed_s, settings)
        for name, of in (("random, over hosts", "hosts"), ("over racks", "racks"))
    ]
    copied_s = whole.bytes / settings.bookie_bytes_per_s
    for width in WIDTHS:
        if 4 * width > settings.bookies:
            continue
        sets = durability.limited_copysets(
            settings.bookies, settings.rack_bookies, settings.ensemble_size, width,
            settings.ledgers, random.Random(f"{settings.seed} {width}"),
        )  # fmt: skip
        # Few bookies have the copies that are left: what they can read bounds the healing, and a
        # copyset is exposed until the last of its many ledgers is healed.
        exposed_s = whole.audited_s + copied_s / width
        found.append(_chance(f"over racks, width {width}", sets, exposed_s, settings))
    return found


def _chance(
    name: str, copysets: dict[durability.Copyset, int], exposed_s: float, settings: ScaleSettings
) -> Chance:
    copies, bookies = settings.ensemble_size, settings.bookies
    failed = settings.outage_bookies
    rng = random.Random(f"{settings.seed} outage {name}")
    return Chance(
        name,
        durability.scatter_width(copysets, range(0, bookies, max(1, bookies // 20))),
        len(copysets),
        exposed_s,
        durability.independent_losses_per_year(
            len(copysets), copies, settings.failures_per_year, exposed_s
        ),
        durability.outage_loss(copysets, bookies, failed, settings.outage_trials, rng),
        durability.expected_outage_chance(len(copysets), copies, bookies, failed),
        durability.in_one_rack(copysets, settings.rack_bookies),
    )


# Processes.

_CLUSTERS: dict[str, tuple[PlacementPolicy, bool]] = {
    "racks": (RACK, False), "racks, by weight": (RACK, True), "hosts": (HOSTS, False),
}  # fmt: skip


def simulate(settings: ScaleSettings, processes: int = 1) -> Results:
    """Simulates everything, in a number of processes."""
    begun_s = time.monotonic()
    builds = [partial(build, settings, policy, weighted=w) for policy, w in _CLUSTERS.values()]
    clusters = dict(zip(_CLUSTERS, _in_processes(builds, processes), strict=True))
    racks, weighted = clusters["racks"], clusters["racks, by weight"]
    default = settings.copy_bytes_per_s
    tasks = [
        partial(heal, racks, "a rack", "racks", COPY_RATES, settings),
        partial(heal, racks, "at random", "racks", COPY_RATES, settings),
        partial(heal, racks, "one bookie", "racks", COPY_RATES, settings),
        partial(heal, racks, "decommission", "racks", (default,), settings),
        partial(heal, weighted, "one bookie", "racks, by weight", (default,), settings),
        partial(heal, weighted, "a rack", "racks, by weight", (default,), settings),
    ]
    results = Results(settings)
    growths = [partial(grow, clusters[name], name, settings) for name in [*_CLUSTERS][:2]]
    jobs: list[Callable[[], list[Run] | Growth]] = [*tasks, *growths]
    for found in _in_processes(jobs, processes):
        if isinstance(found, Growth):
            results.growth.append(found)
        else:
            results.runs += found
    results.chances = chances(clusters, results.run("one bookie", default))
    worst = max(results.runs, key=lambda run: run.marks_most)
    results.kinds = tree.kinds(racks, worst.marked_at_worst, worst.locks_most)
    results.seconds = time.monotonic() - begun_s
    return results


_tasks: Sequence[Callable[[], Any]] = ()
"""What the children do: they inherit it, and the clusters with it."""


def _task(number: int) -> Any:
    return _tasks[number]()


def _in_processes(tasks: Sequence[Callable[[], T]], processes: int) -> list[T]:
    """Returns what the tasks return, in their order."""
    global _tasks
    if processes < 2:
        return [task() for task in tasks]
    _tasks = tasks
    gc.collect()
    gc.freeze()  # so that children copy less of it
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return pool.map(_task, range(len(tasks)), chunksize=1)
