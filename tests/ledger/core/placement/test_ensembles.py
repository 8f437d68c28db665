"""Ensembles spread over hosts, replace as few bookies as possible, and explain failures."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.placement.policies import DEFAULT_PLACEMENT
from ledger.core.placement.topology import Candidates, Place, host_of
from ledger.errors import InvalidArgument, NotEnoughBookies

BOOKIES = st.dictionaries(
    st.sampled_from([f"b{number}" for number in range(12)]), st.sampled_from("ABCD"), min_size=1
)


def choose(
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    candidates: dict[str, str],
    excluded: Sequence[str],
    rng: random.Random,
    *,
    prefer: Sequence[str] = (),
) -> tuple[str, ...]:
    """Chooses among bookies given with their hosts."""
    return DEFAULT_PLACEMENT.choose(
        ensemble_size, write_quorum, ack_quorum, Candidates.on_hosts(candidates), excluded, rng,
        prefer=prefer,
    )  # fmt: skip


def choose_degraded(
    ensemble_size: int,
    write_quorum: int,
    ack_quorum: int,
    candidates: dict[str, str],
    known: dict[str, str],
    excluded: Sequence[str],
    rng: random.Random,
) -> tuple[str, ...]:
    places = {bookie: Place(host) for bookie, host in candidates.items()}
    others = {bookie: Place(host) for bookie, host in known.items()}
    return DEFAULT_PLACEMENT.choose_degraded(
        ensemble_size, write_quorum, ack_quorum, Candidates(places, others=others), known,
        excluded, rng,
    )  # fmt: skip


def replace(
    ensemble: Sequence[str],
    indices: Sequence[int],
    candidates: dict[str, str],
    excluded: Sequence[str],
    rng: random.Random,
) -> tuple[str, ...]:
    return DEFAULT_PLACEMENT.replace(
        ensemble, indices, len(ensemble), 1, Candidates.on_hosts(candidates), excluded, rng
    )


@st.composite
def quorums(draw: st.DrawFn) -> tuple[int, int, int]:
    ensemble_size = draw(st.integers(1, 6))
    write_quorum = draw(st.integers(1, ensemble_size))
    return ensemble_size, write_quorum, draw(st.integers(1, write_quorum))


@given(BOOKIES, quorums(), st.integers(0, 2**32))
def test_an_ensemble_has_different_bookies_on_as_many_hosts_as_there_are(
    candidates: dict[str, str], sizes: tuple[int, int, int], seed: int
) -> None:
    if len(candidates) < sizes[0]:
        with pytest.raises(NotEnoughBookies):
            choose(*sizes, candidates, (), random.Random(seed))
        return
    ensemble = choose(*sizes, candidates, (), random.Random(seed))
    assert len(ensemble) == len(set(ensemble)) == sizes[0]
    assert set(ensemble) <= set(candidates)
    hosts = {candidates[bookie] for bookie in ensemble}
    assert len(hosts) == min(sizes[0], len(set(candidates.values())))


@given(st.integers(0, 2**32))
def test_each_write_set_is_on_different_hosts_when_hosts_are_few(seed: int) -> None:
    candidates = {f"b{number}": "ABC"[number % 3] for number in range(6)}
    ensemble = choose(6, 3, 2, candidates, (), random.Random(seed))
    for start in range(6):
        hosts = {candidates[ensemble[(start + step) % 6]] for step in range(3)}
        assert len(hosts) == 3, ensemble


@given(BOOKIES, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_ensemble_for_any_order(
    candidates: dict[str, str], seed: int
) -> None:
    turned = dict(reversed(candidates.items()))
    size = len(candidates)
    once = choose(size, size, 1, candidates, (), random.Random(seed))
    assert once == choose(size, size, 1, turned, (), random.Random(seed))


def test_every_bookie_is_chosen_sometimes() -> None:
    candidates = {f"b{number}": f"h{number}" for number in range(5)}
    rng = random.Random(1)
    count = Counter(bookie for _ in range(200) for bookie in choose(3, 3, 2, candidates, (), rng))
    assert sorted(count) == sorted(candidates)
    assert min(count.values()) > 80


def test_excluded_bookies_are_not_chosen_and_the_error_counts_them() -> None:
    candidates = {"a": "1", "b": "2", "c": "3", "d": "4"}
    assert sorted(choose(3, 3, 2, candidates, ["b"], random.Random(0))) == ["a", "c", "d"]
    with pytest.raises(
        NotEnoughBookies, match=r"3 are needed, and 2 are up \(registered 4, excluded b, d\)"
    ):
        choose(3, 3, 2, candidates, ["d", "b"], random.Random(0))


@pytest.mark.parametrize("sizes", [(3, 4, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0)])
def test_impossible_quorums_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument):
        choose(*sizes, {"a": "1"}, (), random.Random(0))


@given(BOOKIES, st.integers(1, 5), st.data(), st.integers(0, 2**32))
def test_replacing_keeps_the_others_in_place(
    candidates: dict[str, str], size: int, data: st.DataObject, seed: int
) -> None:
    rng = random.Random(seed)
    if len(candidates) < size:
        return
    ensemble = choose(size, size, 1, candidates, (), rng)
    indices = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    spare = len(candidates) - size
    if spare < len(indices):
        with pytest.raises(NotEnoughBookies):
            replace(ensemble, indices, candidates, (), rng)
        return
    changed = replace(ensemble, indices, candidates, (), rng)
    for index in range(size):
        if index in indices:
            assert changed[index] not in ensemble
            assert changed[index] in candidates
        else:
            assert changed[index] == ensemble[index]
    assert len(set(changed)) == size


def test_a_replacement_comes_from_a_host_that_has_no_copy() -> None:
    candidates = {"b:1": "b", "b:2": "b", "c:1": "c", "d:1": "d"}
    for seed in range(20):
        # a:1 is down, so it is no candidate; its id contains its host.
        changed = replace(("a:1", "b:1", "c:1"), [2], candidates, ("c:1",), random.Random(seed))
        assert changed == ("a:1", "b:1", "d:1")


def test_an_index_out_of_range_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="index 3"):
        replace(("a", "b", "c"), [3], {"d": "d"}, (), random.Random(0))


def test_three_bookies_continue_with_one_down() -> None:
    known = {"a": "1", "b": "2", "c": "3"}
    ensemble = choose_degraded(3, 3, 2, {"a": "1", "c": "3"}, known, (), random.Random(0))
    assert sorted(ensemble) == ["a", "b", "c"]


def test_three_bookies_continue_while_a_dead_one_is_still_registered() -> None:
    known = {"a": "1", "b": "2", "c": "3"}
    ensemble = choose_degraded(3, 3, 2, known, known, ("b",), random.Random(0))
    assert sorted(ensemble) == ["a", "b", "c"]


def test_bookies_that_are_down_fill_up_before_excluded_ones() -> None:
    known = {"a": "1", "b": "2", "c": "3", "d": "4"}
    available = {"a": "1", "b": "2", "c": "3"}
    ensemble = choose_degraded(3, 3, 2, available, known, ("a",), random.Random(0))
    assert sorted(ensemble) == ["b", "c", "d"]


def test_with_enough_bookies_none_that_is_down_is_chosen() -> None:
    known = {"a": "1", "b": "2", "c": "3", "d": "4"}
    available = {"a": "1", "b": "2", "d": "4"}
    for seed in range(10):
        ensemble = choose_degraded(3, 3, 2, available, known, (), random.Random(seed))
        assert sorted(ensemble) == ["a", "b", "d"]


def test_fewer_than_an_ack_quorum_is_refused_with_the_arithmetic() -> None:
    known = {"a": "1", "b": "2", "c": "3"}
    with pytest.raises(
        NotEnoughBookies,
        match=r"ensemble_size is 3, .* and 1 are up \(known 3, excluded c\)\. Cure: start",
    ):
        choose_degraded(3, 3, 2, {"a": "1", "c": "3"}, known, ["c"], random.Random(0))


@given(quorums(), st.integers(0, 6), st.integers(0, 2**32))
def test_every_write_set_of_a_degraded_ensemble_can_reach_its_ack_quorum(
    sizes: tuple[int, int, int], up: int, seed: int
) -> None:
    ensemble_size, write_quorum, ack_quorum = sizes
    known = {f"b{number}": f"h{number}" for number in range(6)}
    candidates = dict(list(known.items())[:up])
    try:
        ensemble = choose_degraded(*sizes, candidates, known, (), random.Random(seed))
    except NotEnoughBookies:
        if ensemble_size == write_quorum:  # no striping: the rule is simple
            assert up < ack_quorum
        return
    assert len(set(ensemble)) == ensemble_size
    for start in range(ensemble_size):
        places = [ensemble[(start + step) % ensemble_size] for step in range(write_quorum)]
        assert sum(bookie in candidates for bookie in places) >= ack_quorum


def test_the_host_of_an_id() -> None:
    assert host_of("db-1.example:3181") == "db-1.example"
    assert host_of("bookie-7") == "bookie-7"


@given(BOOKIES, quorums(), st.sampled_from(["b1*", "b[0-3]", "nothing"]), st.integers(0, 2**32))
def test_preferred_bookies_come_first_and_others_fill_up(
    candidates: dict[str, str], sizes: tuple[int, int, int], pattern: str, seed: int
) -> None:
    if len(candidates) < sizes[0]:
        return
    ensemble = choose(*sizes, candidates, (), random.Random(seed), prefer=(pattern,))
    matching = {
        "b1*": {"b1", "b10", "b11"}, "b[0-3]": {"b0", "b1", "b2", "b3"}, "nothing": set(),
    }[pattern] & set(candidates)  # fmt: skip
    assert len(ensemble) == len(set(ensemble)) == sizes[0]
    assert len(matching & set(ensemble)) == min(len(matching), sizes[0])
    if not matching:
        assert ensemble == choose(*sizes, candidates, (), random.Random(seed))
