"""Entries and LAC packets have Apache's bytes, and none is decoded unchecked."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import DIGEST_BYTES, Digest, DigestType, Entry, master_key
from ledger.errors import DigestMismatch
from tests.golden import apache

INT63 = st.integers(0, 2**63 - 1)
DIGEST_TYPES = st.sampled_from(DigestType)
CHECKING = st.sampled_from([t for t in DigestType if t is not DigestType.DUMMY])
PASSWORD = b"testPasswd"


def encoded(digest: Digest, entry: Entry) -> bytes:
    head, payload = digest.encode_entry(*entry)
    return head + payload


def test_master_keys_are_apaches() -> None:
    assert master_key(b"") == apache("master_key_empty")
    assert master_key(PASSWORD) == apache("master_key_testPasswd")


def test_the_mac_key_is_apaches() -> None:
    assert hashlib.sha1(b"mac" + PASSWORD).digest() == apache("mac_key_testPasswd")


@pytest.mark.parametrize(
    ("digest_type", "sample"),
    [
        (DigestType.CRC32, "entry_digest_CRC32"),
        (DigestType.CRC32C, "entry_digest_CRC32C"),
        (DigestType.HMAC, "entry_digest_HMAC_testPasswd"),
    ],
)
def test_entries_are_apaches_bytes(digest_type: DigestType, sample: str) -> None:
    head, payload = Digest(digest_type, PASSWORD).encode_entry(1, 0, -1, 5, b"hello")
    assert head == apache("entry_header") + apache(sample)
    assert payload == b"hello"


def test_a_dummy_digest_adds_nothing() -> None:
    head, _ = Digest(DigestType.DUMMY).encode_entry(1, 0, -1, 5, b"hello")
    assert head == apache("entry_header")


@pytest.mark.parametrize(
    ("digest_type", "sample"),
    [
        (DigestType.CRC32, "lac_packet_CRC32"),
        (DigestType.CRC32C, "lac_packet_CRC32C"),
        (DigestType.HMAC, "lac_packet_HMAC_testPasswd"),
    ],
)
def test_lac_packets_are_apaches_bytes(digest_type: DigestType, sample: str) -> None:
    digest = Digest(digest_type, PASSWORD)
    assert digest.encode_lac(1, 7) == apache(sample)
    assert digest.decode_lac(1, memoryview(apache(sample))) == 7


@given(DIGEST_TYPES, INT63, INT63, st.integers(-1, 2**63 - 1), INT63, st.binary(max_size=300))
def test_an_entry_is_decoded_as_it_was_encoded(
    digest_type: DigestType, ledger_id: int, entry_id: int, lac: int, length: int, payload: bytes
) -> None:
    digest = Digest(digest_type, b"secret")
    entry = Entry(ledger_id, entry_id, lac, length, payload)
    data = encoded(digest, entry)
    assert len(data) == 32 + digest.size + len(payload)
    for form in (data, bytearray(data), memoryview(data)):
        assert digest.decode_entry(ledger_id, entry_id, form) == entry
        assert digest.decode_many(ledger_id, entry_id, [form]) == [entry]
    assert digest.decode_entry(ledger_id, -1, data) == entry


@given(CHECKING, st.binary(max_size=100), st.data())
def test_one_changed_bit_is_detected(
    digest_type: DigestType, payload: bytes, draw: st.DataObject
) -> None:
    digest = Digest(digest_type, b"secret")
    data = bytearray(encoded(digest, Entry(7, 8, 6, 1000, payload)))
    bit = draw.draw(st.integers(0, len(data) * 8 - 1))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestMismatch):
        digest.decode_entry(7, 8, data)
    with pytest.raises(DigestMismatch):
        digest.decode_many(7, 8, [data])
    with pytest.raises(DigestMismatch):
        digest.decode_entry(7, -1, data)


@given(DIGEST_TYPES, st.binary(max_size=60))
def test_any_bytes_are_an_entry_or_a_mismatch(digest_type: DigestType, data: bytes) -> None:
    digest = Digest(digest_type)
    try:
        entry = digest.decode_entry(1, -1, data)
    except DigestMismatch:
        return
    assert encoded(digest, entry) == data


@given(DIGEST_TYPES)
def test_a_truncated_entry_is_detected(digest_type: DigestType) -> None:
    digest = Digest(digest_type)
    data = encoded(digest, Entry(7, 8, 6, 1000, b"payload"))
    # Without a digest only a truncated header can be detected.
    ends = range(32 if digest_type is DigestType.DUMMY else len(data))
    for end in ends:
        with pytest.raises(DigestMismatch):
            digest.decode_entry(7, 8, data[:end])
        with pytest.raises(DigestMismatch):
            digest.decode_many(7, 8, [data[:end]])


def test_a_wrong_entry_is_named() -> None:
    digest = Digest(DigestType.CRC32C)
    data = encoded(digest, Entry(7, 8, 6, 1000, b"payload"))
    with pytest.raises(DigestMismatch, match="entry 8 of ledger 7 was returned for entry 9"):
        digest.decode_entry(7, 9, data)
    with pytest.raises(DigestMismatch, match="of ledger 7 was returned for entry 8 of ledger 6"):
        digest.decode_entry(6, 8, data)


def test_another_password_does_not_verify() -> None:
    data = encoded(Digest(DigestType.HMAC, b"one"), Entry(7, 8, 6, 1000, b"payload"))
    with pytest.raises(DigestMismatch, match="HMAC digest is"):
        Digest(DigestType.HMAC, b"two").decode_entry(7, 8, data)


@given(DIGEST_TYPES, st.integers(0, 100), st.integers(0, 12), st.randoms(use_true_random=False))
def test_as_many_entries_are_valid_as_can_be_decoded(
    digest_type: DigestType, first: int, count: int, rng: random.Random
) -> None:
    digest = Digest(digest_type, PASSWORD)
    bodies: list[bytearray | memoryview | bytes] = []
    for entry_id in range(first, first + count):
        written = entry_id + (rng.random() < 0.1)
        ledger_id = 7 + (rng.random() < 0.05)
        body = bytearray(
            encoded(digest, Entry(ledger_id, written, -1, 9, rng.randbytes(rng.randrange(30))))
        )
        if rng.random() < 0.1:
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.1:
            del body[rng.randrange(len(body)) :]
        bodies.append(rng.choice([bytes, bytearray, memoryview])(body))
    valid = 0
    while valid < count:
        try:
            digest.decode_entry(7, first + valid, bodies[valid])
        except DigestMismatch:
            break
        valid += 1
    assert digest.count_valid(7, first, bodies) == valid


@pytest.mark.parametrize("digest_type", DigestType)
def test_many_entries_are_decoded_as_they_are_one_by_one(digest_type: DigestType) -> None:
    digest = Digest(digest_type)
    entries = [Entry(3, 10 + i, 9 + i, 100 * i, bytes(i)) for i in range(20)]
    bodies = [memoryview(encoded(digest, entry)) for entry in entries]
    assert digest.decode_many(3, 10, bodies) == entries
    with pytest.raises(DigestMismatch, match="entry 15 of ledger 3 was returned for entry 14"):
        digest.decode_many(3, 10, bodies[:4] + bodies[5:])


@given(DIGEST_TYPES, INT63, st.integers(-1, 2**63 - 1))
def test_a_lac_packet_is_decoded_as_it_was_encoded(
    digest_type: DigestType, ledger_id: int, lac: int
) -> None:
    digest = Digest(digest_type, b"secret")
    data = digest.encode_lac(ledger_id, lac)
    assert digest.decode_lac(ledger_id, data) == lac
    for wrong in (data[:-1], data + b"x", b""):
        with pytest.raises(DigestMismatch):
            digest.decode_lac(ledger_id, wrong)
    with pytest.raises(DigestMismatch):
        digest.decode_lac(ledger_id ^ 1, data)


@given(CHECKING, st.integers(0, 191))
def test_one_changed_bit_in_a_lac_packet_is_detected(digest_type: DigestType, bit: int) -> None:
    digest = Digest(digest_type)
    data = bytearray(digest.encode_lac(1, 7))
    bit %= len(data) * 8
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestMismatch):
        digest.decode_lac(1, data)


def test_every_type_has_a_length() -> None:
    assert {t: Digest(t).size for t in DigestType} == DIGEST_BYTES
    assert {t: len(Digest(t).compute(b"h", b"p")) for t in DigestType} == DIGEST_BYTES
