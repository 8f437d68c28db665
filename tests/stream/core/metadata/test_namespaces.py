"""The rules for rolling a segment, checked against their simplest form, and placement."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.placement.policies import DEFAULT_PLACEMENT, PlacementPolicy
from ledger.errors import InvalidArgument
from stream.core.metadata.format import decode_namespace, encode_namespace
from stream.core.metadata.namespaces import (
    NamespaceMetadata,
    should_prepare,
    should_roll,
)

POLICY = NamespaceMetadata(name="n", roll_ms=1000, roll_bytes=1 << 16)


def test_a_segment_rolls_by_age_or_size_and_never_empty() -> None:
    for nbytes, now_ms, prepares, rolls in (
        (0, 10**6, False, False),
        (1, 499, False, False),
        (1, 500, True, False),
        (1, 999, True, False),
        (1, 1000, True, True),
        (1 << 15, 0, True, False),
        ((1 << 16) - 1, 0, True, False),
        (1 << 16, 0, True, True),
    ):
        facts = {"since_ms": 0, "nbytes": nbytes, "now_ms": now_ms}
        assert should_prepare(**facts, policy=POLICY) is prepares
        assert should_roll(**facts, policy=POLICY) is rolls


def stored(more: bytes) -> bytes:
    """What earlier releases store, with `more` fields, in the order of their names."""
    return (
        b'{"ack_quorum":2,"batch_bytes":60000,"bytes_per_s_max":null,"compression":"none",'
        b'"created_ms":7,"digest_type":"CRC32C","ensemble_size":3,"kind":"namespace",'
        b'"linger_ms":0,"name":"n","placement":"rack1-*",%s"record_bytes_max":1048576,'
        b'"retention_bytes":null,"retention_cursors":[],"retention_ms":null,'
        b'"roll_bytes":268435456,"roll_ms":3600000,"streams_max":null,"trash_ms":3600000,'
        b'"version":1,"write_quorum":3}'
    ) % more


def test_a_namespace_without_a_placement_policy_has_the_bytes_of_earlier_releases() -> None:
    namespace = NamespaceMetadata(name="n", created_ms=7, placement="rack1-*")
    assert encode_namespace(namespace) == stored(b"")
    assert decode_namespace("n", stored(b"")) == namespace
    assert namespace.bookie_placement == DEFAULT_PLACEMENT


def test_the_bytes_of_a_placement_policy() -> None:
    namespace = NamespaceMetadata(
        name="n", created_ms=7, placement="rack1-*",
        placement_policy="rack", placement_min=3, placement_enforce=True,
    )  # fmt: skip
    data = stored(b'"placement_enforce":true,"placement_min":3,"placement_policy":"rack",')
    assert encode_namespace(namespace) == data
    assert decode_namespace("n", data) == namespace
    assert namespace.bookie_placement == PlacementPolicy("rack", 3, True)
    some = stored(b'"placement_policy":"zone",')
    assert decode_namespace("n", some).bookie_placement == PlacementPolicy("zone")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"placement_policy": "cell"}, "there are: default, rack, region, zone"),
        ({"placement_policy": "rack", "placement_min": 4}, "needs 4 racks for each entry"),
        ({"placement_policy": "rack", "placement_min": "2"}, "legal is 0 to 255"),
        ({"placement_enforce": True}, "it knows no racks"),
        ({"placement_policy": "region", "placement_enforce": True, "ack_quorum": 1}, "alone"),
    ],
)
def test_a_placement_that_no_segment_can_have_is_refused(settings: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"namespace 'n': .*{reason}"):
        NamespaceMetadata(name="n", **settings)
