"""An add of an entry that is stored: equal if only LAC and digest differ, another one otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.core.repeated_adds import Presence, compare
from ledger.core.entry import Digest, DigestType

TYPES = list(DigestType)
payloads = st.binary(max_size=60)
numbers = st.integers(0, 3)


def entry(digest: Digest, payload: bytes, *, lac: int = 4, length: int = 700) -> bytes:
    return b"".join(digest.encode_entry(9, 5, lac, length, payload))


@given(st.sampled_from(TYPES), payloads, payloads, numbers, numbers, numbers, numbers)
def test_entries_are_equal_if_payload_and_length_are(
    kind: DigestType, first: bytes, second: bytes, lac: int, other_lac: int, length: int, other: int
) -> None:
    """The twin knows the type of the digest, and compares what it does not cover."""
    digest = Digest(kind, b"secret")
    stored = entry(digest, first, lac=lac, length=length)
    sent = entry(digest, second, lac=other_lac, length=other)
    is_equal = (first, length) == (second, other)
    if kind is DigestType.DUMMY and not is_equal:
        return  # see the test below
    assert compare(stored, sent) is (Presence.EQUAL if is_equal else Presence.OTHER)


@pytest.mark.parametrize("kind", TYPES)
def test_the_same_payload_under_another_lac_is_equal(kind: DigestType) -> None:
    digest = Digest(kind, b"secret")
    for payload in (b"", b"p", bytes(1000)):
        stored = entry(digest, payload, lac=2)
        assert compare(stored, entry(digest, payload, lac=4)) is Presence.EQUAL
        assert compare(stored, entry(digest, payload, lac=4, length=701)) is Presence.OTHER


@pytest.mark.parametrize("kind", [DigestType.CRC32C, DigestType.CRC32])
@pytest.mark.parametrize("at", range(25))
def test_no_byte_of_a_payload_passes_for_a_longer_digest(kind: DigestType, at: int) -> None:
    digest = Digest(kind)
    payload = bytes(range(25))
    forged = bytearray(payload)
    forged[at] ^= 1
    stored = entry(digest, payload)
    assert compare(stored, entry(digest, bytes(forged), lac=2)) is Presence.OTHER
    # The digest of the payload, or one of another type: neither makes it the same entry.
    head = entry(digest, payload, lac=2)[: -len(payload)]
    assert compare(stored, head + forged) is Presence.OTHER
    for other in TYPES:
        size = len(payload) + len(head) - 32 - Digest(other).size
        sent = entry(Digest(other), bytes(forged[-size:]), lac=2)
        assert compare(stored, sent) is Presence.OTHER


def test_an_entry_without_a_digest_is_compared_behind_what_a_digest_may_occupy() -> None:
    """Nothing shows that it is not one with HMAC. What is stored stays in both cases."""
    digest = Digest(DigestType.DUMMY)
    payload = bytes(range(40))
    for at in range(40):
        forged = bytearray(payload)
        forged[at] ^= 1
        expected = Presence.EQUAL if at < 20 else Presence.OTHER
        sent = entry(digest, bytes(forged), lac=3)
        assert compare(entry(digest, payload), sent) is expected
        # Under the same LAC any difference is one of the payload.
        sent = entry(digest, bytes(forged))
        assert compare(entry(digest, payload), sent) is Presence.OTHER
    assert compare(entry(digest, b"short"), entry(digest, b"shore")) is Presence.OTHER
