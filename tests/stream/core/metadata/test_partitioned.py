"""The node of a partitioned stream: its encoded form and its legal changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument, MetadataConflict, MetadataCorrupt
from stream.core.metadata.format import decode_stream, encode_stream
from stream.core.metadata.partitioned import (
    PartitionedStream,
    decode_partitioned,
    encode_partitioned,
)
from stream.core.metadata.streams import StreamMetadata
from stream.core.names import (
    PARTITIONS_MAX,
    check_name,
    check_new_name,
    parse_partition,
    partition_name,
)
from stream.errors import IsPartitioned

CLICKS = PartitionedStream(name="clicks", created_ms=17, partitions=3)


@given(st.integers(1, PARTITIONS_MAX), st.integers(0, 1 << 50))
def test_a_node_is_decoded_as_it_was_encoded(partitions: int, created_ms: int) -> None:
    stream = PartitionedStream(name="s", created_ms=created_ms, partitions=partitions)
    assert decode_partitioned("s", encode_partitioned(stream)) == stream
    deleted = stream.deleted(created_ms + 1)
    assert decode_partitioned("s", encode_partitioned(deleted)) == deleted


def test_the_bytes_of_a_node_never_change() -> None:
    assert encode_partitioned(CLICKS) == (
        b'{"created_ms":17,"deleted_ms":-1,"epoch":0,"is_deleted":false,"kind":"partitioned",'
        b'"name":"clicks","partitions":3,"version":1}'
    )


def test_plain_and_partitioned_streams_are_distinguished() -> None:
    plain = encode_stream(StreamMetadata(name="clicks", created_ms=17))
    assert decode_partitioned("clicks", plain) is None
    with pytest.raises(IsPartitioned, match="clicks#0") as caught:
        decode_stream("clicks", encode_partitioned(CLICKS))
    assert (caught.value.stream, caught.value.partitions) == ("clicks", 3)


def test_a_deleted_partitioned_stream_is_decoded_as_a_deleted_stream() -> None:
    tombstone = decode_stream("clicks", encode_partitioned(CLICKS.deleted(40)))
    assert (tombstone.is_deleted, tombstone.deleted_ms, tombstone.epoch) == (True, 40, 1)
    assert not tombstone.ledgers()


@pytest.mark.parametrize(
    "change",
    [
        {"partitions": 0}, {"partitions": "3"}, {"partitions": PARTITIONS_MAX + 1},
        {"name": "other"}, {"epoch": None}, {"is_deleted": "no"}, {"more": 1}, {"version": 2},
    ],
)  # fmt: skip
def test_damaged_nodes_are_corrupt(change: dict[str, object]) -> None:
    document = json.loads(encode_partitioned(CLICKS)) | change
    with pytest.raises(MetadataCorrupt):
        decode_partitioned("clicks", json.dumps(document).encode())


def test_partitions_grow_and_never_shrink() -> None:
    grown = CLICKS.grown(5)
    assert (grown.partitions, grown.epoch) == (5, 1)
    assert grown.partition_names == ["clicks#0", "clicks#1", "clicks#2", "clicks#3", "clicks#4"]
    assert grown.grown(5) is grown
    with pytest.raises(InvalidArgument, match="cannot shrink"):
        grown.grown(4)
    with pytest.raises(MetadataConflict):
        grown.deleted(20).grown(6)


def test_names_of_partitions_are_used_but_not_chosen() -> None:
    assert partition_name("clicks", 2) == check_name("clicks#2") == "clicks#2"
    assert parse_partition("clicks#2") == ("clicks", 2)
    with pytest.raises(InvalidArgument, match="made with their stream"):
        check_new_name("clicks#2")


@pytest.mark.parametrize(
    "name", ["#2", "clicks#", "clicks#02", "clicks#-1", "clicks#500", "a#1#2", "a/b#1", "a#x"]
)
def test_names_that_look_like_partitions_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_name(name)


@pytest.mark.parametrize("what", ["namespace", "cursor"])
def test_only_streams_have_partitions(what: str) -> None:
    with pytest.raises(InvalidArgument):
        check_name("clicks#2", what)
