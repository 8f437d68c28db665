"""Settings on the command line are parsed with units, and shown as numbers and with units."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ledger.errors import InvalidArgument
from stream.cli.settings import PolicyOptions, policy_facts
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.retention.policies import NamespaceSettings, with_settings

SETTINGS = {field.name for field in fields(NamespaceMetadata)} - {"name", "created_ms"}


def test_every_setting_has_an_option_and_a_type() -> None:
    assert {field.name for field in fields(PolicyOptions)} == SETTINGS
    assert set(NamespaceSettings.__annotations__) == SETTINGS


def test_units_and_keywords_are_parsed() -> None:
    given = PolicyOptions(
        retention_ms="7d", retention_bytes="10GiB", trash_ms="0", retention_cursors="a, b",
        streams_max="none", bytes_per_s_max="5MB", placement="rack1-*", record_bytes_max="1kB",
        ack_quorum=2,
    ).given()  # fmt: skip
    assert given == {
        "retention_ms": 604_800_000, "retention_bytes": 10 << 30, "trash_ms": 0,
        "retention_cursors": ("a", "b"), "streams_max": None, "bytes_per_s_max": 5_000_000,
        "placement": "rack1-*", "record_bytes_max": 1000, "ack_quorum": 2,
    }  # fmt: skip
    with_settings(NamespaceMetadata(name="n"), given)
    lifted = PolicyOptions(
        retention_ms="ever", retention_cursors="none", placement="none", bytes_per_s_max="none"
    ).given()
    assert lifted == {
        "retention_ms": None, "retention_cursors": (), "placement": "", "bytes_per_s_max": None
    }  # fmt: skip
    assert PolicyOptions().given() == {}


def test_a_policy_of_placement_may_be_given_with_patterns_or_alone() -> None:
    for word, expected in {
        "rack": {"placement_policy": "rack"},
        "zone, rack1-*,rack2-*": {"placement_policy": "zone", "placement": "rack1-*,rack2-*"},
        "default": {"placement_policy": "default"},
        "racks-*": {"placement": "racks-*"},
    }.items():
        assert PolicyOptions(placement=word).given() == expected
    given = PolicyOptions(placement="rack", placement_min=3, placement_enforce=True).given()
    ruled = with_settings(NamespaceMetadata(name="n"), given)
    assert (ruled.placement_policy, ruled.placement_min, ruled.placement_enforce) == (
        "rack", 3, True,
    )  # fmt: skip
    plain = with_settings(ruled, PolicyOptions(placement="default").given())
    assert plain == NamespaceMetadata(name="n")
    with pytest.raises(InvalidArgument, match="names 2 policies"):
        PolicyOptions(placement="rack,zone").given()


@pytest.mark.parametrize(
    ("option", "word"),
    [("retention_ms", "7 days"), ("roll_bytes", "ever"), ("streams_max", "-1"), ("trash_ms", "")],
)
def test_an_invalid_value_is_refused_with_its_option(option: str, word: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--{option.replace('_', '-')}: "):
        PolicyOptions(**{option: word}).given()  # type: ignore[arg-type]


def test_programs_get_numbers_and_people_get_units_as_well() -> None:
    policy = NamespaceMetadata(name="n", retention_ms=90_000_000, bytes_per_s_max=1 << 20)
    raw = policy_facts(policy, is_for_people=False)
    assert {name: raw[name] for name in SETTINGS} == {n: getattr(policy, n) for n in SETTINGS}
    shown = policy_facts(policy, is_for_people=True)
    assert shown["retention_ms"] == "90,000,000 (1 d 1 h)"
    assert shown["retention_bytes"] == "ever"
    assert shown["roll_bytes"] == "268,435,456 (256 MiB)"
    assert shown["record_bytes_max"] == "1,048,576 (1.00 MiB)"
    assert shown["bytes_per_s_max"] == "1,048,576 (1.00 MiB/s)"
    assert shown["streams_max"] == "no limit"
    assert shown["ack_quorum"] == 2
