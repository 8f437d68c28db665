"""Keys that are derived from a secret: fixed values, recognition, and files with secrets."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import DigestType, master_key
from ledger.core.ledger_keys import (
    NO_KEYS,
    ClusterSecret,
    LedgerKeys,
    check_key_known,
    master_key_of,
    parse_secrets,
)
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.errors import InvalidArgument, Unauthorized

SECRET = ClusterSecret(b"0123456789abcdef" * 4)
OLDER = ClusterSecret(b"an older secret, which is kept for old ledgers".replace(b" ", b"-"))
INT63 = st.integers(0, 2**63 - 1)


def metadata_of(ledger_id: int, tag: bytes) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("a:1",)),),
        digest_type=DigestType.CRC32C,
        custom={"ledgerstream-key": tag},
    )


def test_derived_keys_stay_as_they_are() -> None:
    """Computed with openssl: HMAC-SHA256 of the label, and of another label with the ledger id."""
    assert SECRET.name == "8a0186fd6c715669"
    assert SECRET.password(7) == bytes.fromhex(
        "c9272ee35db602737a4212d17ed688b56d896024fe54c2865f7d76e1d3600622"
    )
    assert master_key(SECRET.password(7)).hex() == "51b94cf0ef4d185308c0343f17a8b7697e87e4a7"


@given(INT63, INT63)
def test_a_key_is_recognized_for_its_own_ledger_alone(one: int, other: int) -> None:
    keys = LedgerKeys([SECRET, OLDER])
    for secret in (SECRET, OLDER):
        key = master_key(secret.password(one))
        assert keys.is_derived(one, key)
        assert keys.is_derived(other, key) == (one == other)
        assert not NO_KEYS.is_derived(one, key)
    assert not keys.is_derived(one, master_key(b""))
    assert not keys.is_derived(one, bytes(20))


def test_new_ledgers_take_the_first_secret_and_old_ones_keep_theirs() -> None:
    old_tag, old_password = LedgerKeys([OLDER]).new_key(7)
    keys = LedgerKeys([SECRET, OLDER])
    tag, password = keys.new_key(7)
    assert (tag, password) == (b"derived:8a0186fd6c715669", SECRET.password(7))
    assert keys.completed(metadata_of(7, tag)).password == password
    assert keys.completed(metadata_of(7, old_tag)).password == old_password


def test_without_its_secret_a_ledger_has_no_key() -> None:
    stored = metadata_of(7, LedgerKeys([SECRET]).new_key(7)[0])
    unknown = LedgerKeys([OLDER]).completed(stored)
    assert unknown == stored
    assert master_key_of(unknown) == b""
    with pytest.raises(Unauthorized, match=r"8a0186fd6c715669.*Cure"):
        check_key_known(unknown)
    check_key_known(LedgerKeys([SECRET]).completed(stored))


def test_ledgers_with_other_keys_are_left_alone() -> None:
    own = metadata_of(7, b"1")
    assert LedgerKeys([SECRET]).completed(own) is own
    assert master_key_of(own) == hashlib.sha1(b"ledger").digest()
    check_key_known(own)


def test_a_file_has_a_secret_in_each_line() -> None:
    data = b"# made on Monday\n" + SECRET.value + b"\n\n  " + OLDER.value + b"  \n"
    keys = parse_secrets(data, "a file")
    assert keys.new_key(1) == LedgerKeys([SECRET]).new_key(1)
    assert keys.is_derived(1, master_key(OLDER.password(1)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 secrets"),
        (b"# nothing\n\n", "0 secrets"),
        (b"short-secret-that-anyone-guesses", None),
        (b"short", "line 1: 5 bytes"),
        (SECRET.value + b"\nshort", "line 2: 5 bytes"),
        (b"with blanks in it, however long it may be", "line 1"),
        (b"\xff" * 40, "line 1"),
        (b"x" * 70_000, "65536 bytes"),
        (b"\n".join(b"%040d" % n for n in range(17)), "17 secrets"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_quoting_it(
    data: bytes, why: str | None
) -> None:
    if why is None:
        assert parse_secrets(data, "a file")
        return
    with pytest.raises(InvalidArgument, match=why) as caught:
        parse_secrets(data, "a file")
    assert "Cure: " in str(caught.value)
    assert "short" not in str(caught.value)


def test_no_secret_is_shown() -> None:
    shown = f"{SECRET!r} {LedgerKeys([SECRET])!r} {SECRET}"
    assert SECRET.value.decode() not in shown
    assert repr(SECRET.value) not in shown
