"""A micro-batch keeps its limits, is fair to all streams, and starves none of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.core.admission import NO_LIMITS, Backlog, Limits, Quota, admit, divide_fairly

names = st.sampled_from([f"n/s{number}" for number in range(8)])


@st.composite
def waiting_streams(draw: st.DrawFn) -> dict[str, Backlog]:
    found = {}
    for name in draw(st.sets(names, min_size=1)):
        records = draw(st.integers(1, 30))
        nbytes = draw(st.integers(records, 40 * records))
        found[name] = Backlog(records, nbytes, draw(st.integers(1, nbytes)))
    return found


def one_by_one(floors: Sequence[int], wishes: Sequence[int], total: int) -> list[int]:
    """A naive reference: gives floors while possible, then one at a time to the smallest part."""
    parts = [0] * len(floors)
    for index, floor in enumerate(floors):
        if floor > total:
            return parts
        parts[index] = floor
        total -= floor
    while total:
        hungry = [i for i, wish in enumerate(wishes) if parts[i] < wish]
        if not hungry:
            break
        parts[min(hungry, key=lambda i: (parts[i], i))] += 1
        total -= 1
    return parts


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 30)).map(lambda t: (t[0], t[0] + t[1])),
        max_size=8,
    ),
    st.integers(0, 250),
)
def test_division_is_that_of_giving_one_by_one(bounds: list[tuple[int, int]], total: int) -> None:
    floors, wishes = [low for low, _ in bounds], [high for _, high in bounds]
    assert divide_fairly(floors, wishes, total).parts == one_by_one(floors, wishes, total)


@given(waiting_streams(), st.integers(1, 300), st.integers(1, 9000), names)
def test_only_a_single_record_may_exceed_a_limit(
    waiting: dict[str, Backlog], records_max: int, bytes_max: int, turn: str
) -> None:
    admitted = admit(waiting, Limits(records_max=records_max, bytes_max=bytes_max), turn)
    shares = admitted.quotas
    assert sum(share.records for share in shares.values()) <= records_max
    assert sum(share.nbytes or 0 for share in shares.values()) <= bytes_max
    assert admitted.first in shares
    for name, share in shares.items():
        assert 1 <= share.records <= waiting[name].records
        assert share.nbytes != 0 or name == admitted.first


@given(waiting_streams(), st.integers(1, 300), names)
def test_limits_are_used_completely(
    waiting: dict[str, Backlog], records_max: int, turn: str
) -> None:
    shares = admit(waiting, Limits(records_max=records_max), turn).quotas
    total = sum(each.records for each in waiting.values())
    assert sum(share.records for share in shares.values()) == min(total, records_max)


@given(waiting_streams(), names)
def test_without_limits_everything_is_admitted(waiting: dict[str, Backlog], turn: str) -> None:
    shares = admit(waiting, NO_LIMITS, turn).quotas
    assert shares == {name: Quota(each.records, None) for name, each in waiting.items()}


@given(waiting_streams(), st.none() | st.integers(1, 20), st.none() | st.integers(1, 500))
def test_every_stream_has_its_turn(
    waiting: dict[str, Backlog], records_max: int | None, bytes_max: int | None
) -> None:
    """As many micro-batches as streams serve all streams, however small the limits are."""
    turn, served = "", set()
    for _ in waiting:
        admitted = admit(waiting, Limits(records_max=records_max, bytes_max=bytes_max), turn)
        served |= set(admitted.quotas)
        turn = admitted.turn
    assert served == set(waiting)


def test_an_indivisible_remainder_goes_to_each_in_turn() -> None:
    waiting = {name: Backlog(1000, 1000, 1) for name in ("n/a", "n/b", "n/c")}
    given_to: dict[str, int] = dict.fromkeys(waiting, 0)
    turn = ""
    for _ in range(3):
        admitted = admit(waiting, Limits(records_max=4), turn)
        turn = admitted.turn
        for name, share in admitted.quotas.items():
            given_to[name] += share.records
    assert given_to == {"n/a": 4, "n/b": 4, "n/c": 4}


def test_the_unused_quota_of_a_small_stream_is_divided_among_the_large_ones() -> None:
    waiting = {"n/a": Backlog(1000, 1000, 1), "n/b": Backlog(2, 2, 1), "n/c": Backlog(9, 9, 1)}
    shares = admit(waiting, Limits(records_max=100)).quotas
    assert {name: share.records for name, share in shares.items()} == {
        "n/a": 89, "n/b": 2, "n/c": 9,
    }  # fmt: skip


def test_a_record_larger_than_the_limit_passes_alone() -> None:
    waiting = {"n/a": Backlog(5, 5000, 1000), "n/b": Backlog(5, 5000, 1000)}
    admitted = admit(waiting, Limits(bytes_max=10))
    assert admitted.first == "n/a"
    assert set(admitted.quotas) == {"n/a"}
    assert admitted.turn == "n/b"


def test_the_turn_of_a_deleted_stream_falls_to_the_next() -> None:
    waiting = {name: Backlog(10, 10, 1) for name in ("n/a", "n/c", "n/e")}
    assert admit(waiting, NO_LIMITS, "n/b").first == "n/c"
    assert admit(waiting, NO_LIMITS, "n/z").first == "n/a"


def test_a_batch_waits_for_records_but_not_forever() -> None:
    limits = Limits(records_min=100, delay_ms_max=1000)
    assert limits.is_due(100, 0)
    assert not limits.is_due(99, 999)
    assert limits.is_due(99, 1000)
    assert not limits.is_due(0, 1_000_000)
    assert NO_LIMITS.is_due(1, 0)
