"""Assignments are balanced to within one, and need as few moves as any balanced assignment."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from stream.core.metadata.groups import assign, moves

MEMBERS = ["a", "b", "c", "d"]


def is_balanced(assignment: dict[str, str], members: list[str]) -> bool:
    counts = Counter(assignment.values())
    sizes = [counts[member] for member in members]
    return max(sizes) - min(sizes) <= 1


def fewest_moves(partitions: list[str], members: list[str], previous: dict[str, str]) -> int:
    """Returns the fewest moves, by trying every balanced assignment."""
    best = len(partitions)
    for choice in product(members, repeat=len(partitions)):
        assignment = dict(zip(partitions, choice, strict=True))
        if is_balanced(assignment, members):
            stay = sum(
                previous.get(partition) == member for partition, member in assignment.items()
            )
            best = min(best, len(partitions) - stay)
    return best


@given(
    count=st.integers(0, 6),
    members=st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=4, unique=True),
    previous=st.dictionaries(
        st.integers(0, 7).map(lambda n: f"s#{n}"), st.sampled_from([*MEMBERS, "gone"])
    ),
)
def test_balanced_complete_and_with_the_fewest_moves(
    count: int, members: list[str], previous: dict[str, str]
) -> None:
    partitions = [f"s#{number}" for number in range(count)]
    assignment = assign(partitions, members, previous)
    assert list(assignment) == partitions
    assert set(assignment.values()) <= set(members)
    assert is_balanced(assignment, members)
    stay = sum(previous.get(partition) == member for partition, member in assignment.items())
    assert count - stay == fewest_moves(partitions, members, previous)


@given(
    count=st.integers(0, 100),
    steps=st.lists(
        st.tuples(st.sampled_from([f"m{number}" for number in range(12)]), st.integers(0, 5)),
        max_size=20,
    ),
)
def test_members_coming_and_going_and_growth_move_only_what_must(
    count: int, steps: list[tuple[str, int]]
) -> None:
    members: list[str] = []
    assignment: dict[str, str] = {}
    for name, growth in steps:
        before, sizes = assignment, Counter(assignment.values())
        count += growth
        if name in members:
            members.remove(name)
            allowed = 0  # partitions of the leaving member are no moves: no member releases them
        else:
            members.append(name)
            allowed = -(-count // len(members))
        partitions = [f"s#{number}" for number in range(count)]
        assignment = assign(partitions, members, before)
        if not members:
            assert assignment == {}
            continue
        assert is_balanced(assignment, members)
        let_go = [p for p in moves(before, assignment) if before[p] in members]
        assert len(let_go) <= allowed
        if not growth and name in members:
            assert all(assignment[p] == name for p in let_go), (
                "partitions move only to the new member"
            )
        assert sum(sizes.values()) <= count


def test_nothing_changes_when_nothing_changed() -> None:
    partitions = [f"s#{number}" for number in range(10)]
    first = assign(partitions, ["x", "y", "z"], {})
    assert assign(partitions, ["z", "y", "x"], first) == first
    assert moves(first, first) == []


def test_more_members_than_partitions_leaves_some_idle() -> None:
    assert assign(["s"], ["b", "a"], {}) == {"s": "a"}
    assert assign(["s"], ["b", "a"], {"s": "b"}) == {"s": "b"}


def test_without_members_nothing_is_assigned() -> None:
    assert assign(["s"], [], {"s": "b"}) == {}
