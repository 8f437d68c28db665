"""Keys that are derived from a secret: fixed values, recognition, and files with secrets."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import DigestType, master_key
from ledger.core.ledger_keys import (
    NO_KEYS,
    PROVEN_NAMESPACES_MAX,
    ClusterSecret,
    LedgerKeys,
    ProvenNamespaces,
    check_key_known,
    master_key_of,
    parse_secrets,
)
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.permissions import STREAM_TAG
from ledger.errors import InvalidArgument, Unauthorized

SECRET = ClusterSecret(b"0123456789abcdef" * 4)
OLDER = ClusterSecret(b"an older secret, which is kept for old ledgers".replace(b" ", b"-"))
INT63 = st.integers(0, 2**63 - 1)
NAMESPACES = st.sampled_from(["", "a", "b", "ab", "team-a", "a.b_c"])


def tags(namespace: str) -> dict[str, bytes]:
    return {STREAM_TAG: f"{namespace}/s".encode()} if namespace else {}


def metadata_of(ledger_id: int, tag: bytes, namespace: str = "") -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("a:1",)),),
        digest_type=DigestType.CRC32C,
        custom={"ledgerstream-key": tag} | tags(namespace),
    )


def test_derived_keys_stay_as_they_are() -> None:
    """Computed with openssl: HMAC-SHA256 of one label with the namespace by the secret, and of
    another label with the ledger id by the result."""
    assert SECRET.name == "8a0186fd6c715669"
    key = SECRET.namespace_key("demo")
    assert key.line() == (
        "namespace demo 8a0186fd6c715669 "
        "f834c19fd3be5446930756767643e00ee4239b8811785581deee4827f1ae6dc5"
    )
    assert SECRET.namespace_key("").line() == (
        "namespace - 8a0186fd6c715669 "
        "c427fc896f9acd1182203cf27dfb02484178a40d569f8c59656944c9412a851a"
    )
    assert key.password(7) == bytes.fromhex(
        "a6309714f29537d899801403e6ea471d792cd6b64e035d5c2842b21a82d84c97"
    )
    assert master_key(key.password(7)).hex() == "68be054372e7c8dab56a7931b3fc4ebfcd7cb548"


@given(INT63, INT63, NAMESPACES, NAMESPACES)
def test_a_key_is_recognized_for_its_own_ledger_and_namespace_alone(
    one: int, other: int, namespace: str, another: str
) -> None:
    proven = ProvenNamespaces()
    for secret in (SECRET, OLDER):
        key = master_key(secret.namespace_key(namespace).password(one))
        assert not proven.recognizes(one, key), "nothing was proven by this secret"
        proven.add(secret.namespace_key(namespace))
        assert proven.recognizes(one, key)
        assert proven.recognizes(other, key) == (one == other)
        foreign = master_key(secret.namespace_key(another).password(one))
        assert proven.recognizes(one, foreign) == (namespace == another)
    assert not proven.recognizes(one, master_key(b""))
    assert not proven.recognizes(one, bytes(20))


def test_a_bookie_tries_only_the_namespaces_that_were_used_last() -> None:
    proven = ProvenNamespaces()
    keys = [SECRET.namespace_key(f"n{number}") for number in range(PROVEN_NAMESPACES_MAX + 1)]
    for key in keys[:-1]:
        proven.add(key)
    assert proven.recognizes(7, master_key(keys[0].password(7)))
    proven.add(keys[-1])
    assert len(proven) == PROVEN_NAMESPACES_MAX
    assert proven.recognizes(7, master_key(keys[0].password(7)))
    assert not proven.recognizes(7, master_key(keys[1].password(7)))


@given(INT63, NAMESPACES, NAMESPACES)
def test_the_key_of_a_namespace_serves_its_ledgers_and_no_others(
    ledger_id: int, namespace: str, another: str
) -> None:
    whole = LedgerKeys([SECRET])
    given_keys = LedgerKeys((), [SECRET.namespace_key(namespace)])
    assert whole.has_secret
    assert not given_keys.has_secret
    assert given_keys
    tag, password = given_keys.new_key(ledger_id, tags(namespace))
    assert (tag, password) == whole.new_key(ledger_id, tags(namespace))
    stored = metadata_of(ledger_id, tag, another)
    completed = given_keys.completed(stored)
    if another == namespace:
        assert completed.password == password
        assert completed == whole.completed(stored)
        return
    assert completed.is_key_missing
    assert whole.completed(stored).password != password
    with pytest.raises(Unauthorized, match=r"namespace-key.*|--without-namespace"):
        given_keys.new_key(ledger_id, tags(another))
    with pytest.raises(Unauthorized, match="Cure"):
        check_key_known(completed)


def test_new_ledgers_take_the_first_secret_and_old_ones_keep_theirs() -> None:
    old_tag, old_password = LedgerKeys([OLDER]).new_key(7, {})
    keys = LedgerKeys([SECRET, OLDER])
    tag, password = keys.new_key(7, {})
    assert (tag, password) == (
        b"derived:8a0186fd6c715669",
        SECRET.namespace_key("").password(7),
    )
    assert keys.completed(metadata_of(7, tag)).password == password
    assert keys.completed(metadata_of(7, old_tag)).password == old_password
    both = LedgerKeys((), [SECRET.namespace_key("a"), OLDER.namespace_key("a")])
    assert both.new_key(7, tags("a")) == LedgerKeys([SECRET]).new_key(7, tags("a"))
    older = metadata_of(7, old_tag, "a")
    assert both.completed(older) == keys.completed(older)


def test_without_its_secret_a_ledger_has_no_key() -> None:
    stored = metadata_of(7, LedgerKeys([SECRET]).new_key(7, {})[0])
    unknown = LedgerKeys([OLDER]).completed(stored)
    assert unknown == stored
    assert master_key_of(unknown) == b""
    with pytest.raises(Unauthorized, match=r"8a0186fd6c715669.*Cure"):
        check_key_known(unknown)
    check_key_known(LedgerKeys([SECRET]).completed(stored))
    assert not NO_KEYS


def test_ledgers_with_other_keys_are_left_alone() -> None:
    own = metadata_of(7, b"1")
    assert LedgerKeys([SECRET]).completed(own) is own
    assert master_key_of(own) == hashlib.sha1(b"ledger").digest()
    check_key_known(own)


def test_a_file_has_a_secret_or_a_key_in_each_line() -> None:
    key = SECRET.namespace_key("demo").line().encode()
    data = b"# made on Monday\n" + SECRET.value + b"\n\n  " + OLDER.value + b"  \n" + key
    keys = parse_secrets(data, "a file")
    assert keys.new_key(1, {}) == LedgerKeys([SECRET]).new_key(1, {})
    old = metadata_of(1, LedgerKeys([OLDER]).new_key(1, {})[0])
    assert not keys.completed(old).is_key_missing
    without = SECRET.namespace_key("").line().encode()
    of_client = parse_secrets(key + b"\n" + without, "a file")
    for namespace in ("demo", ""):
        expected = keys.new_key(9, tags(namespace))
        assert of_client.new_key(9, tags(namespace)) == expected


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 secrets"),
        (b"# nothing\n\n", "0 secrets"),
        (b"short-secret-that-anyone-guesses", None),
        (b"short", "line 1: 5 bytes"),
        (SECRET.value + b"\nshort", "line 2: 5 bytes"),
        (b"with blanks in it, however long it may be", "line 1"),
        (b"namespace de*mo 8a0186fd6c715669 " + b"0" * 64, "line 1"),
        (b"namespace demo 8a0186fd6c715669 short", "line 1"),
        (b"namespace demo 8a0186fd6c715 " + b"0" * 64, "line 1"),
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
    key = SECRET.namespace_key("demo")
    keys = LedgerKeys([SECRET], [key])
    shown = f"{SECRET!r} {keys!r} {SECRET} {key!r} {key} {ProvenNamespaces()!r}"
    assert SECRET.value.decode() not in shown
    assert key.value.hex() not in shown
    assert repr(key.value) not in shown
    assert repr(SECRET.value) not in shown
