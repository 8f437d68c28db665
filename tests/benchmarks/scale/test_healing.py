"""A small simulated cluster heals: completely, in order, within its limits, and always the same."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.scale.cluster import Cluster, build, skew
from benchmarks.scale.events import Events
from benchmarks.scale.healing import (
    STEP,
    Healing,
    Report,
    audit,
    bookies_without,
    ledger_lists,
    list_bytes,
)
from benchmarks.scale.scenarios import HOSTS, RACK, losses
from benchmarks.scale.settings import MIB, SMALL, ScaleSettings, checked
from benchmarks.scale.workers import SharedRate
from ledger.core.placement.policies import Grade
from ledger.metastore.layout import Layout

LOSSES = ("one bookie", "a rack", "at random")
# So few requests that workers wait for their share.
SETTINGS = replace(SMALL, operations_per_s=1000.0)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return build(SETTINGS, RACK, weighted=False)


def healed(
    cluster: Cluster, lost: Sequence[str], seed: int = 1, *, emptying: str | None = None
) -> tuple[Cluster, Report]:
    copy = cluster.copy()
    report = Healing(copy, lost, random.Random(seed), emptying=emptying).run()
    return copy, report


@pytest.fixture(scope="module")
def outcomes(cluster: Cluster) -> dict[str, tuple[Cluster, Report]]:
    """What came of each loss."""
    return {loss: healed(cluster, losses(cluster)[loss]) for loss in LOSSES}


def check_whole(cluster: Cluster, gone: Sequence[str]) -> None:
    """Looks at each fragment of each ledger, without the functions that healed them."""
    for metadata in cluster.all_metadata():
        for fragment in metadata.fragments:
            assert not set(fragment.bookies) & set(gone), metadata
            assert len(set(fragment.bookies)) == metadata.write_quorum, metadata


@pytest.mark.parametrize("loss", LOSSES)
def test_every_ledger_has_its_write_quorum_again(
    cluster: Cluster, outcomes: dict[str, tuple[Cluster, Report]], loss: str
) -> None:
    lost = losses(cluster)[loss]
    named = {
        metadata.ledger_id
        for metadata in cluster.all_metadata()
        if set(metadata.fragments[0].bookies) & set(lost)
    }
    after, report = outcomes[loss]
    check_whole(after, lost)
    assert not report.healed.lost
    assert report.healed.healed_s.keys() == report.found_s.keys() == named
    assert not report.marks.since_s
    assert not report.marks.locked
    # Bytes that left the lost bookies arrived at others.
    assert sum(after.used.values()) == sum(cluster.used.values())
    assert all(after.used[one] == 0 for one in lost if not _is_named_by_open(cluster, one))
    assert report.healed.bytes == sum(report.healed.made.values())
    assert report.healed.bytes == sum(report.healed.read.values())
    assert not report.healed.made.keys() & set(lost)
    assert not report.healed.read.keys() & set(lost)


def _is_named_by_open(cluster: Cluster, bookie: str) -> bool:
    return any(bookie in cluster.ensemble(one) for one in cluster.open_ledgers)


@pytest.mark.parametrize("loss", LOSSES)
def test_requests_stay_within_the_settings(
    cluster: Cluster, outcomes: dict[str, tuple[Cluster, Report]], loss: str
) -> None:
    lost = losses(cluster)[loss]
    _, report = outcomes[loss]
    options = SETTINGS.options
    assert report.meter.most("auditor") <= options.metadata_reads_per_s + STEP
    share = SETTINGS.operations_per_s / (SETTINGS.bookies - len(lost))
    most = math.ceil(share) * (SETTINGS.bookies - len(lost))
    assert 0 < report.meter.most("workers") <= most
    assert report.meter.total("auditor").reads >= SETTINGS.ledgers
    assert report.meter.total("writers").writes == len(report.changed_s)


def test_a_smaller_setting_bounds_the_requests_and_takes_longer(
    cluster: Cluster, outcomes: dict[str, tuple[Cluster, Report]]
) -> None:
    lost, slow = losses(cluster)["one bookie"], cluster.copy()
    slow.settings = replace(SETTINGS, operations_per_s=100.0)
    report = Healing(slow, lost, random.Random(1)).run()
    check_whole(slow, lost)
    workers = SETTINGS.bookies - len(lost)
    assert report.meter.most("workers") <= math.ceil(100 / workers) * workers
    assert report.whole_s > outcomes["one bookie"][1].whole_s


def test_the_fewest_copies_come_first(outcomes: dict[str, tuple[Cluster, Report]]) -> None:
    _, report = outcomes["at random"]
    assert report.healed.out_of_order == 0
    assert set(report.healed.by_copies_left) == {1, 2}


def test_one_bookie_is_waited_for_and_several_are_not(
    outcomes: dict[str, tuple[Cluster, Report]],
) -> None:
    (_, one), (_, some) = outcomes["one bookie"], outcomes["at random"]
    session_s = SETTINGS.session_timeout_s
    assert one.begun_s == session_s + SETTINGS.options.lost_bookie_recovery_delay_s
    assert some.begun_s == session_s


def test_the_same_seed_gives_the_same_run(cluster: Cluster) -> None:
    lost = losses(cluster)["one bookie"]
    first, again, other = (healed(cluster, lost, seed) for seed in (4, 4, 5))
    assert first[1] == again[1]
    assert first[0] == again[0]
    assert first[1] != other[1]
    assert build(SETTINGS, RACK, weighted=False) == cluster
    reseeded = replace(SETTINGS, seed=2)
    assert build(reseeded, RACK, weighted=False).ensembles != cluster.ensembles


def test_more_bandwidth_heals_no_later(cluster: Cluster) -> None:
    lost, times = losses(cluster)["one bookie"], []
    for rate in (MIB, 64 * MIB):
        copy = cluster.copy()
        copy.settings = SETTINGS.with_copy_rate(rate)
        report = Healing(copy, lost, random.Random(1)).run()
        times.append(report.whole_s)
        # No worker is faster than its rate.
        workers = SETTINGS.bookies - len(lost)
        assert report.healed.bytes <= rate * workers * (report.whole_s - report.begun_s)
    assert times[0] > times[1]


def test_racks_are_kept_and_only_a_policy_of_hosts_loses_ledgers_with_a_rack(
    cluster: Cluster, outcomes: dict[str, tuple[Cluster, Report]]
) -> None:
    lost = losses(cluster)["a rack"]
    after, _ = outcomes["a rack"]
    topology = after.candidates()
    for ledger_id in after.changed:
        for fragment in after.metadata(ledger_id).fragments:
            found = RACK.adherence(fragment.bookies, 3, 2, topology)
            assert found.grade is Grade.STRICT, found
    scattered = build(SETTINGS, HOSTS, weighted=False)
    gone = {
        metadata.ledger_id
        for metadata in scattered.all_metadata()
        if set(metadata.fragments[0].bookies) <= set(lost)
    }
    report = Healing(scattered, lost, random.Random(1)).run()
    assert gone
    assert report.healed.lost.keys() == {one for one in gone if one < scattered.first_open}
    assert report.marks.since_s.keys() >= report.healed.lost.keys(), "nothing is forgotten"


def test_a_decommission_empties_the_bookie_and_reads_from_it(cluster: Cluster) -> None:
    (bookie,) = losses(cluster)["one bookie"]
    after, report = healed(cluster, (), emptying=bookie)
    check_whole(after, [bookie])
    assert report.healed.read[bookie] > 0
    assert report.begun_s == 0
    assert report.ended_s >= report.whole_s + SETTINGS.ledgers / 2000


def test_weights_even_out_space(cluster: Cluster) -> None:
    weighted = build(SETTINGS, RACK, weighted=True)
    assert skew([*weighted.fill().values()]) < skew([*cluster.fill().values()])
    assert skew([3, 1, 2]) == 1.5
    assert skew([0, 0]) == 1.0


def test_an_audit_finds_what_names_a_lost_bookie(cluster: Cluster) -> None:
    lost = losses(cluster)["at random"]
    found = audit(cluster, bookies_without(cluster, lost, ()))
    assert found.concerned == [
        one for one in range(SETTINGS.ledgers) if set(cluster.ensemble(one)) & set(lost)
    ]
    assert found.counts.all.ledgers == SETTINGS.ledgers
    below = found.counts.below_write_quorum.ledgers + found.counts.below_ack_quorum.ledgers
    assert below == len(found.concerned)


def test_lists_of_ledgers_are_those_of_the_layout() -> None:
    count = 20_500
    naive: dict[str, dict[str, None]] = {}
    for ledger_id in range(count):
        path = Layout.HIERARCHICAL.path("/ledgers", ledger_id)
        while path != "/ledgers":
            above, _, name = path.rpartition("/")
            naive.setdefault(above, {})[name] = None
            path = above
    assert ledger_lists(count) == {above: list_bytes(names) for above, names in naive.items()}


@pytest.mark.parametrize("seed", range(20))
def test_jobs_share_a_rate_equally(seed: int) -> None:
    chance, events, ends = random.Random(seed), Events(), dict[int, float]()
    rate = SharedRate(10.0, events)
    jobs = sorted((chance.random() * 20, number, chance.random() * 50) for number in range(8))

    def begin(number: int, nbytes: float) -> None:
        rate.add(nbytes, lambda: ends.update({number: events.now_s}))

    for at_s, number, nbytes in jobs:
        events.at(at_s, partial(begin, number, nbytes))
    events.run(lambda: False)
    assert ends == pytest.approx(_naive_ends(jobs, 10.0), rel=1e-6)


def _naive_ends(jobs: list[tuple[float, int, float]], rate: float) -> dict[int, float]:
    """Goes from one beginning or end to the next."""
    waiting, left, ends, now_s = list(jobs), dict[int, float](), dict[int, float](), 0.0
    while waiting or left:
        begin_s = waiting[0][0] if waiting else math.inf
        first_s = now_s + min(left.values()) * len(left) / rate if left else math.inf
        until_s = min(begin_s, first_s)
        for number in left:
            left[number] -= (until_s - now_s) * rate / len(left)
        now_s = until_s
        if first_s <= begin_s:
            number = min(left, key=lambda one: left[one])
            del left[number]
            ends[number] = now_s
        else:
            _, number, nbytes = waiting.pop(0)
            left[number] = nbytes
    return ends


@pytest.mark.parametrize(
    "changes",
    [
        {"racks": 0}, {"racks": 3}, {"racks": 7}, {"streams": 0}, {"streams": 5000},
        {"copy_bytes_per_s": 0}, {"bookies": 100_000, "racks": 10},
    ],
)  # fmt: skip
def test_a_cluster_that_cannot_be_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.scale: "):
        checked(replace(SMALL, **changes))  # type: ignore[arg-type]
    assert checked(SMALL) is SMALL
    assert isinstance(SMALL, ScaleSettings)
