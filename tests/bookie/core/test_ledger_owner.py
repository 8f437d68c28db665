"""To whom a ledger belongs: metadata that was changed proves nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bookie.core.ledger_owner import Fit, LedgerOwner
from ledger.core.entry import DigestType, master_key
from ledger.core.ledger_keys import NO_KEYS, ClusterSecret, LedgerKeys
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.permissions import STREAM_TAG

SECRET = LedgerKeys([ClusterSecret(b"a-secret-of-the-cluster-" * 3)])
PASSWORDS = st.sampled_from([b"", b"one", b"two"])
NAMESPACES = st.sampled_from([None, "a", "b"])
KEYS = st.sampled_from([b"", b"short", *(master_key(one) for one in (b"", b"one", b"two"))])


def metadata_of(namespace: str | None, password: bytes, ledger_id: int = 7) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("a:1",)),),
        digest_type=DigestType.CRC32C,
        password=password,
        custom={} if namespace is None else {STREAM_TAG: f"{namespace}/s".encode()},
    )


def derived(namespace: str | None, keys: LedgerKeys, by: LedgerKeys = SECRET) -> LedgerMetadata:
    """Returns metadata of a ledger with a derived key, as a process with `keys` reads it."""
    stored = metadata_of(namespace, b"")
    tag, _ = by.new_key(7, stored.custom)
    return keys.completed(replace(stored, custom={**stored.custom, "ledgerstream-key": tag}))


@given(NAMESPACES, PASSWORDS, st.none() | KEYS, st.none() | KEYS)
def test_a_ledger_fits_if_its_key_is_that_of_the_metadata(
    namespace: str | None, password: bytes, here: bytes | None, given_key: bytes | None
) -> None:
    owner = LedgerOwner.of(metadata_of(namespace, password))
    compared = given_key if here is None else here
    expected = Fit.FITS
    if compared is not None and len(compared) == 20 and compared != master_key(password):
        expected = Fit.DIFFERS
    assert owner.namespace == namespace
    assert owner.fit(here, given_key) is expected


@given(NAMESPACES, NAMESPACES)
def test_a_ledger_that_is_given_to_another_namespace_does_not_fit(
    namespace: str | None, changed: str | None
) -> None:
    here = master_key(derived(namespace, SECRET).password)
    fits = LedgerOwner.of(derived(changed, SECRET)).fit(here, None)
    assert (fits is Fit.FITS) == (namespace == changed)


def test_what_the_metadata_does_not_say_is_doubt() -> None:
    here = master_key(derived("a", SECRET).password)
    other = LedgerKeys([ClusterSecret(b"another-secret-" * 3)])
    for unknown in (derived("a", NO_KEYS), derived("a", SECRET, by=other)):
        assert LedgerOwner.of(unknown).fit(here, None) is Fit.DOUBTFUL
    old = replace(metadata_of(None, b""), digest_type=None, format_version=1)
    assert LedgerOwner.of(old).fit(here, None) is Fit.DOUBTFUL
    assert LedgerOwner.of(old).fit(b"", here) is Fit.FITS, "the key that was here is lost"


def test_no_key_is_shown() -> None:
    owner = LedgerOwner.of(metadata_of("a", b"one"))
    assert repr(owner.key) not in repr(owner)
