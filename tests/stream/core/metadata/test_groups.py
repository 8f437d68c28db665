"""Metadata of consumer groups: encoding, decoding and rebalancing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import MetadataCorrupt
from stream.core.metadata.groups import GroupMetadata, decode_group, encode_group

NUMBERS = st.integers(0, (1 << 63) - 1)
GROUPS = st.builds(
    GroupMetadata,
    name=st.just("billing"),
    stream=st.text(max_size=10),
    stream_created_ms=NUMBERS,
    changed_ms=NUMBERS,
    generation=NUMBERS,
    first_partitions=NUMBERS,
    resets=NUMBERS,
    assignment=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5),
)
ONE = GroupMetadata(
    name="billing",
    stream="clicks",
    stream_created_ms=1_700_000_000_000,
    changed_ms=1_700_000_000_500,
    generation=2,
    first_partitions=2,
    assignment={"clicks#1": "b", "clicks#0": "a"},
)


@given(GROUPS)
def test_a_group_is_read_back_as_it_was(group: GroupMetadata) -> None:
    again = decode_group("billing", encode_group(group))
    assert again == group
    assert list(again.assignment) == list(group.assignment), (
        "the order of partitions must be kept, too"
    )


def test_the_bytes_stay_as_they_are() -> None:
    assert encode_group(ONE) == (
        b'{"assignment":[["clicks#1","b"],["clicks#0","a"]],"changed_ms":1700000000500,'
        b'"first_partitions":2,"generation":2,"kind":"group","name":"billing","resets":0,'
        b'"stream":"clicks","stream_created_ms":1700000000000,"version":1}'
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"kind": "cursor"}, "not a group"),
        ({"assignment": {"clicks#0": "a"}}, "not a list"),
        ({"assignment": [["clicks#0"]]}, "not enough values"),
        ({"assignment": [["clicks#0", 7]]}, "not text"),
        ({"generation": -1}, "not a whole number"),
        ({"name": "other"}, "it is group 'other'"),
        ({"novelty": 1}, "unknown fields"),
    ],
)
def test_an_invalid_group_is_refused(changes: dict[str, object], cause: str) -> None:
    document = json.loads(encode_group(ONE)) | changes
    with pytest.raises(MetadataCorrupt, match=cause):
        decode_group("billing", json.dumps(document).encode())


@given(st.binary(max_size=50))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt):
        decode_group("billing", data)


def test_a_balanced_group_is_left_as_it_is() -> None:
    partitions = ["clicks#0", "clicks#1"]
    group = GroupMetadata(name="g", stream="clicks", stream_created_ms=0, changed_ms=0)
    first = group.balanced(partitions, ["a", "b"], 5)
    assert (first.generation, first.first_partitions, first.changed_ms) == (1, 2, 5)
    assert first.partitions_of("a") == ["clicks#0"]
    assert first.balanced(partitions, ["b", "a"], 9) is first
    assert first.with_reset(7).resets == 1


def test_a_member_that_knows_fewer_partitions_removes_none() -> None:
    three = [f"clicks#{number}" for number in range(3)]
    group = GroupMetadata(name="g", stream="clicks", stream_created_ms=0, changed_ms=0)
    grown = group.balanced(three[:1], ["a"], 0).balanced(three, ["a"], 0)
    assert (grown.first_partitions, list(grown.assignment)) == (1, three)
    assert grown.balanced(three[:1], ["a"], 0) is grown
    assert list(grown.balanced(three[:1], ["a", "b"], 0).assignment) == three
