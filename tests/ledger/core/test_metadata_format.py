"""Stored metadata: round trips of Apache's bytes, and errors for malformed bytes."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.metadata_format import decode, encode
from ledger.errors import InvalidArgument, MetadataCorrupt
from ledger.proto.data_formats_pb2 import LedgerMetadataFormat
from tests.golden import apache

BOOKIES = ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")
OPEN = LedgerMetadata(
    ledger_id=1,
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    fragments=(Fragment(0, BOOKIES),),
    digest_type=DigestType.CRC32C,
    c_token=42,
)
INT63 = st.integers(0, 2**63 - 1)


@st.composite
def any_metadata(draw: st.DrawFn) -> LedgerMetadata:
    ensemble_size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, ensemble_size))
    bookies = st.lists(
        st.from_regex(r"[a-zA-Z0-9:-_.\-]{1,12}", fullmatch=True),
        min_size=ensemble_size,
        max_size=ensemble_size,
        unique=True,
    )
    starts = sorted({0, *draw(st.lists(INT63, max_size=3))})
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    digest_type = draw(st.none() | st.sampled_from(DigestType))
    return LedgerMetadata(
        ledger_id=draw(INT63),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        state=state,
        fragments=tuple(Fragment(start, tuple(draw(bookies))) for start in starts),
        digest_type=digest_type,
        password=draw(st.binary(max_size=20)) if digest_type else b"",
        last_entry_id=draw(st.integers(-1, 2**63 - 1)) if is_closed else -1,
        length=draw(INT63) if is_closed else 0,
        created_ms=draw(st.just(-1) | INT63),
        stores_created_ms=draw(st.booleans()),
        custom=draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)),
        c_token=draw(st.integers(-(2**63), 2**63 - 1)),
        format_version=draw(st.integers(1, 3)),
    )


def storable(metadata: LedgerMetadata) -> LedgerMetadata:
    """Returns the metadata without the fields that the format cannot store."""
    if not metadata.stores_created_ms or metadata.created_ms < 0:
        metadata = replace(metadata, created_ms=-1, stores_created_ms=False)
    if metadata.format_version == 2:
        return replace(metadata, c_token=0)
    if metadata.format_version == 1:
        return replace(
            metadata,
            ack_quorum=metadata.write_quorum,
            digest_type=None,
            password=b"",
            created_ms=-1,
            stores_created_ms=False,
            custom={},
            c_token=0,
        )
    return metadata


@pytest.mark.parametrize(
    ("sample", "metadata"),
    [
        ("metadata_v3", OPEN),
        ("metadata_v2", replace(OPEN, format_version=2)),
        ("metadata_v1_closed", replace(OPEN.closed(9, 50), format_version=1)),
    ],
)
def test_the_bytes_are_apaches(sample: str, metadata: LedgerMetadata) -> None:
    assert encode(metadata) == apache(sample)
    assert decode(1, apache(sample)) == storable(metadata)


OWN_KEY = replace(OPEN, password=bytes(range(16)), custom={"ledgerstream-key": b"1"})
DERIVED = replace(OPEN, custom={"ledgerstream-key": b"derived:8a0186fd6c715669"})
_HEAD = apache("metadata_v3")[:30]
_TO_DIGEST = apache("metadata_v3")[31:-6]
"""Up to the digest type; the password, ack quorum and token follow."""
_TAG = b"\n\x10ledgerstream-key\x12"


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (
            OWN_KEY,
            b"\x73" + _TO_DIGEST + b"\x42\x10" + bytes(range(16)) + b"\x48\x02"
            b"\x5a\x15" + _TAG + b"\x011" + b"\x60\x2a",
        ),
        (
            DERIVED,
            b"\x7a" + _TO_DIGEST + b"\x42\x00\x48\x02"
            b"\x5a\x2c" + _TAG + b"\x18derived:8a0186fd6c715669" + b"\x60\x2a",
        ),
    ],
    ids=["key of its own", "derived key"],
)  # fmt: skip
def test_the_bytes_with_a_key_stay_as_they_are(metadata: LedgerMetadata, data: bytes) -> None:
    assert encode(metadata) == _HEAD + data
    assert decode(1, _HEAD + data) == storable(metadata)


@pytest.mark.parametrize("version", [2, 3])
def test_a_password_beside_a_derived_key_is_not_that_of_the_ledger(version: int) -> None:
    """Otherwise a client could store one for which its key counts as derived."""
    stored = replace(OWN_KEY, custom={"ledgerstream-key": b"Derived:0"}, format_version=version)
    assert decode(1, encode(stored)).password == OWN_KEY.password
    found = decode(1, encode(stored).replace(b"Derived:", b"derived:"))
    assert (found.password, found.has_derived_key, found.is_key_missing) == (b"", True, True)


def test_a_derived_password_is_never_stored() -> None:
    known = replace(DERIVED, password=b"a derived password")
    assert encode(known) == encode(DERIVED)


@given(any_metadata())
def test_metadata_is_decoded_as_it_was_stored(metadata: LedgerMetadata) -> None:
    assert decode(metadata.ledger_id, encode(metadata)) == storable(metadata)


@given(any_metadata(), st.data())
def test_truncated_metadata_never_becomes_other_metadata(
    metadata: LedgerMetadata, draw: st.DataObject
) -> None:
    data = encode(metadata)
    cut = data[: draw.draw(st.integers(0, len(data) - 1))]
    if metadata.format_version == 3:
        with pytest.raises(MetadataCorrupt, match=f"ledger {metadata.ledger_id} "):
            decode(metadata.ledger_id, cut)
    else:  # text that ends early may still be whole text
        with contextlib.suppress(MetadataCorrupt):
            decode(metadata.ledger_id, cut)


@given(any_metadata(), st.data())
def test_changed_bytes_are_metadata_or_corrupt(
    metadata: LedgerMetadata, draw: st.DataObject
) -> None:
    data = bytearray(encode(metadata))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(MetadataCorrupt):
        decode(metadata.ledger_id, bytes(data))


@given(st.sampled_from([b"", b"1\n", b"2\n", b"3\n", b"9\n"]), st.binary(max_size=80))
def test_any_bytes_are_metadata_or_corrupt(version: bytes, body: bytes) -> None:
    with contextlib.suppress(MetadataCorrupt):
        decode(1, b"BookieMetadataFormatVersion\t" + version + body)


def test_every_state_of_version_1() -> None:
    first = replace(OPEN, format_version=1)
    assert encode(first).endswith(b"2\n3\n0\n0\t" + "\t".join(BOOKIES).encode() + b"\n")
    recovering = first.in_recovery()
    assert encode(recovering).endswith(b"\n-102\tCLOSED")
    assert decode(1, encode(recovering)).state is LedgerState.IN_RECOVERY
    assert decode(1, apache("metadata_v1_closed") + b"\n").is_closed


def message_of(metadata: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat()
    message.ParseFromString(encode(metadata)[len(b"BookieMetadataFormatVersion\t3\n") + 1 :])
    return message


def stored(message_bytes: bytes) -> bytes:
    assert len(message_bytes) < 128
    return b"BookieMetadataFormatVersion\t3\n" + bytes([len(message_bytes)]) + message_bytes


def test_a_missing_ack_quorum_is_the_write_quorum() -> None:
    message = message_of(replace(OPEN, ack_quorum=1))
    message.ClearField("ackQuorumSize")
    assert decode(1, stored(message.SerializeToString())).ack_quorum == OPEN.write_quorum


def test_the_creation_time_of_the_node_is_used_if_there_is_no_other() -> None:
    assert decode(1, encode(OPEN), 77).created_ms == 77
    assert decode(1, encode(replace(OPEN, created_ms=5)), 77).created_ms == 5
    assert decode(1, encode(replace(OPEN, format_version=1)), 77).created_ms == 77


def test_the_creation_time_of_the_node_is_not_written_into_it() -> None:
    for version in (1, 2, 3):
        data = encode(replace(OPEN, format_version=version))
        assert encode(decode(1, data, 77)) == data


LATER = b"\xf8\x07\x01" + b"\xa2\x06\x05hello"
"""Field 127 is 1 and field 100 is "hello", as a later release might write."""


def test_unknown_fields_survive_a_rewrite() -> None:
    read = decode(1, stored(message_of(OPEN).SerializeToString() + LATER))
    assert read == replace(storable(OPEN), unknown_fields=read.unknown_fields)
    assert sorted(read.unknown_fields) == sorted(LATER)
    rewritten = encode(read.in_recovery().closed(9, 50))
    assert decode(1, rewritten) == read.in_recovery().closed(9, 50)
    assert rewritten.endswith(read.unknown_fields)


def test_unknown_fields_of_version_2_are_ignored() -> None:
    text = encode(replace(OPEN, format_version=2)) + b"newField: 3\n"
    assert decode(1, text) == storable(replace(OPEN, format_version=2))


def test_a_password_without_digest_type_means_the_first_one() -> None:
    message = message_of(OPEN)
    message.ClearField("digestType")
    assert decode(1, stored(message.SerializeToString())).digest_type is DigestType.CRC32


def test_an_ensemble_that_names_a_bookie_twice_can_be_read_once_it_is_closed() -> None:
    data = encode(OPEN.closed(9, 50)).replace(b"10.0.0.2", b"10.0.0.1")
    assert decode(1, data).last_fragment.bookies == (BOOKIES[0], BOOKIES[0], BOOKIES[2])
    with pytest.raises(MetadataCorrupt, match="twice"):
        decode(1, encode(OPEN).replace(b"10.0.0.2", b"10.0.0.1"))


def test_end_and_length_of_a_ledger_that_is_not_closed_are_ignored() -> None:
    message = message_of(OPEN)
    message.lastEntryId = 12
    message.length = 900
    assert decode(1, stored(message.SerializeToString())) == storable(OPEN)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "does not begin with"),
        (b"BookieMetadataFormatVersion\t3", "does not begin with"),
        (b"SomethingElse\t3\n", "does not begin with"),
        (b"BookieMetadataFormatVersion\t4\n", "version b'4' is unknown"),
        (b"BookieMetadataFormatVersion\t3\n", "missing or too long"),
        (b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\xff\x01", "missing or too long"),
        (b"BookieMetadataFormatVersion\t3\n\x05\x08", "5 bytes announced, 1 follow"),
        (b"BookieMetadataFormatVersion\t3\n\x00", "is missing"),
        (
            b"BookieMetadataFormatVersion\t2\nlength: 1\nquorumSize: x",
            "parsed at line 2, column 13",
        ),
        (b"BookieMetadataFormatVersion\t2\n" + b"later {" * 2_000, "cannot be parsed: braces"),
        (b"BookieMetadataFormatVersion\t2\n\xff", "cannot be parsed"),
        (b'BookieMetadataFormatVersion\t2\npassword: "\\/"', "unknown escape"),
        (b'BookieMetadataFormatVersion\t2\npassword: "\\777"', "unknown escape"),
        (b'BookieMetadataFormatVersion\t2\npassword: "\\', "unknown escape"),
        (b"BookieMetadataFormatVersion\t1\n2\n3\n0\n", "at least 4 whole lines, here are 3"),
        (b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta\tb\tc\n9\tCLOS", "is cut off"),
        (b"BookieMetadataFormatVersion\t1\n2\n1_0\n0\n0\ta\tb\tc\n", "'1_0' is not a number"),
        (
            b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta\n9999999999999999999\tCLOSED",
            "'9999999999999999999' is not a number of 64 bits",
        ),
        (b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta\tb\n", "has 2 bookies, must have 3"),
        (b"BookieMetadataFormatVersion\t1\n2\n1\n0\n0\ta\n", "must hold"),
    ],
)
def test_malformed_metadata_says_why(data: bytes, cause: str) -> None:
    with pytest.raises(MetadataCorrupt, match=f"metadata of ledger 1 .*{cause}"):
        decode(1, data)


def test_an_unknown_digest_type_is_not_taken_for_none() -> None:
    message = message_of(OPEN)
    message.ClearField("digestType")
    with pytest.raises(MetadataCorrupt, match="digest type"):
        decode(1, stored(message.SerializeToString() + b"\x38\x09"))


def test_a_closed_ledger_without_an_end_is_corrupt() -> None:
    message = message_of(OPEN.closed(9, 50))
    message.ClearField("lastEntryId")
    with pytest.raises(MetadataCorrupt, match="without a last entry"):
        decode(1, stored(message.SerializeToString()))


def test_a_bookie_id_that_is_not_text_is_corrupt() -> None:
    with pytest.raises(MetadataCorrupt):
        decode(1, encode(OPEN).replace(b"10.0.0.1", b"10.0.\xff.1"))


def test_the_error_about_malformed_text_contains_no_password() -> None:
    text = encode(replace(OPEN, format_version=2, password=b"secret")).replace(b't"', b't\\"')
    with pytest.raises(MetadataCorrupt) as raised:
        decode(1, text)
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is not None
    assert "secret" not in str(raised.value.__cause__)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"a:1\n" * 250_000, "250000 fields, limit 100000"),
        (b"a{}\n" * 250_000, "250000 fields, limit 100000"),
        (b"a:1 " * 20_000, "too many fields on one line"),
        (b"a:[" + b"1," * 20_000 + b"1]", "too many fields on one line"),
        (b" " * (4 << 20), "more than 4194304 bytes"),
    ],
)
def test_text_that_would_keep_the_parser_busy_is_refused(body: bytes, cause: str) -> None:
    with pytest.raises(MetadataCorrupt, match=cause):
        decode(1, b"BookieMetadataFormatVersion\t2\n" + body)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_metadata_that_fills_a_node_is_within_the_limits(version: int) -> None:
    metadata = replace(
        OPEN,
        fragments=tuple(Fragment(first, BOOKIES) for first in range(7_500)),
        custom={"note": b'{"a":1,"b":[1,2,3]}' * 400},
        format_version=version,
    )
    data = encode(metadata)
    assert len(data) > 350_000
    assert decode(1, data).fragments == metadata.fragments


def test_text_is_ascii_as_apache_writes_it() -> None:
    text = encode(replace(OPEN, format_version=2, custom={"ö\n": b"\xff"}, password=b"\xc3\xbc"))
    assert b'  key: "\\303\\266\\n"\n  value: "\\377"\n' in text
    assert b'password: "\\303\\274"\n' in text


def test_numbers_too_large_for_the_format_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="metadata of ledger 1"):
        encode(replace(OPEN, c_token=2**63))
