"""Unusable certificates and keys are found before anything starts, and replace no good ones."""

from __future__ import annotations

import logging
import ssl
from functools import partial
from pathlib import Path

import pytest

from ledger.errors import InvalidArgument
from ledger.runtime.certificates import (
    TlsContext,
    TlsFiles,
    client_context,
    is_for_host,
    server_context,
)
from ledger.runtime.network import PeerCertificate
from tests.certificates import Authority


def context_of(certificate: Path, key: Path | str = "", password: Path | str = "") -> TlsContext:
    files = TlsFiles(certificate=str(certificate), key=str(key), key_password=str(password))
    return TlsContext(files, partial(server_context, "none"), is_server=True)


def test_what_a_certificate_says_is_known(tmp_path: Path) -> None:
    own = context_of(*Authority(tmp_path).issue("own", "b1.example", "10.0.0.1")).own
    assert own is not None
    assert own.names == PeerCertificate(
        common_name="own", dns_names=("b1.example",), ip_addresses=("10.0.0.1",)
    )


def test_an_expired_certificate_can_be_loaded_and_says_so(tmp_path: Path) -> None:
    own = context_of(*Authority(tmp_path).issue("own", begins_days=-9, ends_days=-2)).own
    assert own is not None
    assert 0 < own.expires_at_s < 4e9


@pytest.mark.parametrize("hosts", [(), ("b1.example",)])
def test_a_host_is_in_the_alternative_names_or_nowhere(
    tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    """A common name is that of a user: one called like a bookie must not pass for it."""
    authority = Authority(tmp_path)
    server = context_of(*authority.issue("b1.example", *hosts)).current()
    client = client_context(checks_host_names=True)
    client.load_verify_locations(authority.file)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname="b1.example")
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    if hosts:
        asking.do_handshake()
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            asking.do_handshake()


def test_a_key_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")
    with pytest.raises(InvalidArgument, match=r"two\.key does not fit the certificate in .*one"):
        context_of(certificate, key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    certificate, key = Authority(tmp_path).issue("own")
    key.chmod(mode)
    with pytest.raises(InvalidArgument, match=rf"mode {mode:04o}: others .* Cure: chmod 600"):
        context_of(certificate, key)


def test_authorities_that_every_user_can_change_are_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = TlsFiles(authorities=str(authority.file))
    make = partial(client_context, checks_host_names=True)
    authority.file.chmod(0o664)  # the umask of some systems lets the group write
    TlsContext(files, make)
    authority.file.chmod(0o646)
    with pytest.raises(InvalidArgument, match=r"mode 0646: every user .* trusted.* chmod o-w"):
        TlsContext(files, make)


def test_missing_files_are_named(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("own")
    for files in (
        TlsFiles(certificate=str(tmp_path / "absent"), key=str(key)),
        TlsFiles(certificate=str(certificate), key=str(tmp_path / "absent")),
        TlsFiles(authorities=str(tmp_path / "absent")),
    ):
        with pytest.raises(InvalidArgument, match="absent cannot be read: No such file"):
            TlsContext(files, partial(client_context, checks_host_names=True))


def test_files_that_are_not_pem_are_refused(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("own")
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"garbage")
    garbage.chmod(0o600)
    for files in ((garbage, key), (certificate, garbage), (certificate, "")):
        with pytest.raises(InvalidArgument, match="not a certificate and its private key in PEM"):
            context_of(*files)
    with pytest.raises(InvalidArgument, match="no certificate of an authority"):
        TlsContext(
            TlsFiles(authorities=str(garbage)), partial(client_context, checks_host_names=True)
        )


def test_an_encrypted_key_needs_its_password(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("own", password=b"secret")
    with pytest.raises(InvalidArgument, match="is encrypted, and no password is given"):
        context_of(certificate, key)
    password = tmp_path / "password"
    password.write_bytes(b"wrong\n")
    password.chmod(0o600)
    with pytest.raises(InvalidArgument, match="cannot be read with the password in") as caught:
        context_of(certificate, key, password)
    assert "wrong" not in str(caught.value)
    password.write_bytes(b"\n")
    with pytest.raises(InvalidArgument, match=r"first line of .* is empty"):
        context_of(certificate, key, password)
    password.write_bytes(b"secret\nmore\n")
    context_of(certificate, key, password)
    password.chmod(0o644)
    with pytest.raises(InvalidArgument, match="others can read or change the password"):
        context_of(certificate, key, password)


def test_files_are_loaded_again_when_they_changed_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("own", "a.example")
    context = context_of(certificate, key)
    before = context.current()
    assert context.current() is before
    # A renewal that is half done: the certificate is new, its key is not there yet.
    old_key = key.read_bytes()
    authority.issue("own", "b.example")
    new_key = key.read_bytes()
    key.write_bytes(old_key)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert context.current() is before
        assert caplog.text.count("changed certificates not loaded") == 1
        assert (context.reloads, context.reloads_failed) == (0, 1)
        key.write_bytes(new_key)
        after = context.current()
        assert after is not before
        assert context.current() is after
    assert (context.reloads, context.reloads_failed) == (1, 1)
    assert context.own is not None
    assert context.own.names.dns_names == ("b.example",)
    key.unlink()
    assert context.current() is after


@pytest.mark.parametrize(
    ("host", "is_for"),
    [
        ("b1.example", True),
        ("B1.Example", True),
        ("x.racks.example", True),
        ("y.x.racks.example", False),
        ("racks.example", False),
        ("10.0.0.1", True),
        ("10.0.0.2", False),
        ("2001:db8::1", True),
        ("2001:DB8::0:1", True),
        ("2001:db8::2", False),
        ("10.0.0.3", False),
        ("b1", False),
    ],
)
def test_the_hosts_of_a_certificate(host: str, is_for: bool) -> None:
    names = PeerCertificate(
        common_name="b1",
        dns_names=("b1.example", "*.racks.example", "10.0.0.3"),
        ip_addresses=("10.0.0.1", "2001:DB8:0:0:0:0:0:1\n"),
    )
    assert is_for_host(names, host) is is_for
