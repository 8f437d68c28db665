"""Receipts as JSON are parsed as they were written, and invalid ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import InvalidArgument
from stream.core.position import Position
from stream.core.receipt import Receipt, ReceiptAck

RECEIPT = Receipt(
    namespace="demo",
    stream="clicks#2",
    position=Position(3, 120, 4),
    sequence=99,
    ledger_id=17,
    append_time_ms=1_700_000_000_000,
    digest_type="CRC32C",
    digest=bytes.fromhex("00c0ffee"),
    acks=(ReceiptAck("10.0.0.1:3181", 1.25), ReceiptAck("bookie-b", 2.0)),
    not_yet=("bookie-c",),
)
GOLDEN = (
    '{"kind":"ledgerstream-receipt","version":1,"stream":"demo/clicks#2","position":"3:120:4",'
    '"sequence":99,"ledger_id":17,"entry_id":120,"append_time_ms":1700000000000,'
    '"digest_type":"CRC32C","acks":[{"bookie":"10.0.0.1:3181","after_ms":1.25},'
    '{"bookie":"bookie-b","after_ms":2.0}],"not_yet":["bookie-c"],"digest":"00c0ffee"}'
)

ids = st.integers(0, (1 << 63) - 1)
names = st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True)
receipts = st.builds(
    Receipt,
    namespace=names,
    stream=names,
    position=st.builds(Position, ids, ids, st.integers(0, (1 << 31) - 1)),
    sequence=ids,
    ledger_id=ids,
    append_time_ms=ids,
    digest_type=st.sampled_from(["CRC32C", "HMAC", "DUMMY"]),
    digest=st.none() | st.binary(max_size=20),
    acks=st.lists(st.builds(ReceiptAck, names, st.floats(0, 1e6, allow_nan=False)), max_size=4).map(
        tuple
    ),
    not_yet=st.lists(names, max_size=3).map(tuple),
    is_recovered=st.booleans(),
)


def test_the_json_form_does_not_change() -> None:
    assert RECEIPT.to_json() == GOLDEN
    assert Receipt.from_json(GOLDEN.encode()) == RECEIPT


@given(receipts)
def test_a_receipt_is_parsed_as_it_was(receipt: Receipt) -> None:
    assert Receipt.from_json(receipt.to_json()) == receipt


def test_fields_of_a_later_release_are_ignored() -> None:
    fields = json.loads(GOLDEN) | {"region": "north"}
    assert Receipt.from_json(json.dumps(fields)) == RECEIPT


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "x"}, "kind"),
        ({"version": 2}, "version 2"),
        ({"stream": "clicks"}, "NAMESPACE/STREAM"),
        ({"position": "3:120"}, "position"),
        ({"entry_id": 121}, "entry 121"),
        ({"sequence": -1}, "-1"),
        ({"sequence": True}, "True"),
        ({"ledger_id": None}, "None"),
        ({"digest": "xyz"}, "hex"),
        ({"acks": [{"bookie": "a"}]}, "after_ms"),
        ({"acks": 3}, "receipt"),
    ],
)
def test_an_invalid_receipt_says_why(change: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Receipt.from_json(json.dumps(json.loads(GOLDEN) | change))


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '"x"', "[" * 100_001])
def test_anything_but_an_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="not a receipt"):
        Receipt.from_json(text)
