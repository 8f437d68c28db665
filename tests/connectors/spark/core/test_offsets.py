"""Offsets are read from a Spark checkpoint as they were written; other documents are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.spark.core.offsets import Offsets, StreamOffset
from ledger.errors import InvalidArgument

numbers = st.integers(0, (1 << 63) - 1)
offsets = st.dictionaries(
    st.from_regex(r"[a-z]{1,5}/[a-z]{1,5}(#[0-9])?", fullmatch=True),
    st.builds(StreamOffset, *[numbers] * 8) | st.builds(StreamOffset, *[numbers] * 7),
    max_size=5,
).map(Offsets)


@given(offsets)
def test_offsets_survive_a_round_trip_through_json(some: Offsets) -> None:
    stored = json.dumps(some.to_json())
    again = Offsets.from_json(json.loads(stored))
    assert dict(again) == dict(some)
    assert json.dumps(again.to_json()) == stored


def test_stored_offsets_are_readable_and_keep_their_form() -> None:
    """This text is in checkpoints: members may be added, but never removed or changed."""
    offset = StreamOffset(3, 17, 4, 12345, 67890, 100, 1_700_000_000_000)
    assert json.dumps(Offsets({"demo/clicks#2": offset}).to_json()) == (
        '{"version": 1, "streams": {"demo/clicks#2": {"segment": 3, "entry": 17, "slot": 4, '
        '"sequence": 12345, "nbytes": 67890, "begin": 100, "created_ms": 1700000000000}}}'
    )


def test_the_owner_of_cursors_is_kept_and_ignored_by_earlier_releases() -> None:
    document = Offsets({}, "00c0ffee").to_json()
    assert json.dumps(document) == '{"version": 1, "streams": {}, "cursor_owner": "00c0ffee"}'
    assert Offsets.from_json(document).cursor_owner == "00c0ffee"
    assert Offsets.from_json({"version": 1, "streams": {}}).cursor_owner == ""


def a_document(**changes: Any) -> dict[str, Any]:
    offset = Offsets({"n/s": StreamOffset(1, 2, 3, 4, 5, 6, 7)}).to_json()["streams"]["n/s"]
    return {"version": 1, "streams": {"n/s": {**offset, **changes}}}


def test_members_of_a_later_release_are_ignored() -> None:
    assert Offsets.from_json(a_document(more=1))["n/s"].segment == 1


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"clicks": {"0": 17}}, "has no streams"),
        ([], "has no streams"),
        ({"streams": {}}, "its version is None"),
        ({"version": True, "streams": {}}, "its version is True"),
        ({"version": 2, "streams": {}}, "version 2, this release reads up to 1"),
        ({"version": 1, "streams": []}, r"its streams are '\[\]'"),
        ({"version": 1, "streams": {"s": {}}}, "not 'namespace/stream'"),
        ({"version": 1, "streams": {"n/s": 5}}, "stream 'n/s' has '5'"),
        ({"version": 1, "streams": {}, "cursor_owner": 5}, "its cursor_owner is '5'"),
        ({"version": 1, "streams": {}, "cursor_owner": "x" * 65}, "its cursor_owner is 'x"),
        (a_document(entry=-1), "has entry -1, not a whole number"),
        (a_document(gone_ms=-1), "has gone_ms -1, not a whole number"),
        (a_document(slot="0"), "has slot '0', not a whole number"),
        (a_document(sequence=None), "has sequence None"),
    ],
)
def test_a_foreign_dict_is_refused(document: object, what: str) -> None:
    with pytest.raises(InvalidArgument, match=what) as caught:
        Offsets.from_json(document)
    assert "Cure" in str(caught.value)
