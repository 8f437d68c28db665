"""Loads certificates, keys and authorities into contexts of TLS, and again when their files change.

A context is checked when it is made, so that an unusable file is found before anything starts, and
its files are looked at with each new handshake: nothing is polled. Files that were changed to
something unusable must never replace what works. A private key must never be one that other users
can read.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ledger.credentials import check_not_writable_by_others, read_private
from ledger.errors import InvalidArgument
from ledger.options import ClientOptions
from ledger.runtime.network import PeerCertificate
from ledger.runtime.tls import peer_certificate_of

_log = logging.getLogger(__name__)

_PARTIAL_CHAIN = ssl.VerifyFlags(0x80000)
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""Of OpenSSL: a certificate that is trusted itself ends the chain; its dates are not looked at."""
_PASSWORD_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files; "" is none.

    Attributes:
        certificate: our certificate, and those between it and the authority, in this order.
        key: its private key; "" if that is in the same file.
        key_password: a file whose first line is the password of the key.
        authorities: the certificates of the authorities that peers' certificates are accepted of.
    """

    certificate: str = ""
    key: str = ""
    key_password: str = ""
    authorities: str = ""

    @property
    def private_file(self) -> str:
        """The file with the private key, or ""."""
        return self.key or self.certificate

    def every(self) -> tuple[str, ...]:
        """Returns the files that are given."""
        paths = (self.certificate, self.key, self.key_password, self.authorities)
        return tuple(path for path in paths if path)


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """What our certificate says. `expires_at_s` is in seconds since 1970."""

    names: PeerCertificate
    expires_at_s: float


class TlsContext:
    """A context of TLS that follows its files. Raises InvalidArgument for files that are unusable.

    Args:
        files: where certificates and keys are stored.
        make: returns a context of the right kind, before the files are loaded into it.
        is_server: whether it is that of a server, whose own certificate is looked at.
    """

    def __init__(
        self, files: TlsFiles, make: Callable[[], ssl.SSLContext], *, is_server: bool = False
    ) -> None:
        self.files = files
        self.reloads = 0
        self.reloads_failed = 0
        self._make = make
        self._is_server = is_server
        self._seen = _seen(files)
        self._context, self.own = self._load()

    def current(self) -> ssl.SSLContext:
        """Returns the context for the next handshake. Files that changed are loaded; if they cannot
        be, that is logged once, and what was loaded before stays in use."""
        seen = _seen(self.files)
        if seen != self._seen:
            self._seen = seen
            try:
                self._context, self.own = self._load()
            except InvalidArgument as error:
                self.reloads_failed += 1
                _log.error("changed certificates not loaded, the old ones stay cause=%s", error)
            else:
                self.reloads += 1
                _log.info("certificates loaded again files=%s", ",".join(self.files.every()))
        return self._context

    def _load(self) -> tuple[ssl.SSLContext, OwnCertificate | None]:
        context = self._make()
        load_files(context, self.files)
        return context, _own_certificate(self.files) if self._is_server else None


def server_context(client_certificate: str) -> ssl.SSLContext:
    """Returns a context of a server, without files. `client_certificate` is "none", "optional" or
    "required". Sessions are not resumed: each handshake follows the files of its moment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.verify_mode = {
        "none": ssl.CERT_NONE,
        "optional": ssl.CERT_OPTIONAL,
        "required": ssl.CERT_REQUIRED,
    }[client_certificate]
    return context


def client_context(*, checks_host_names: bool) -> ssl.SSLContext:
    """Returns a context of a client, without files: it accepts only certificates of authorities
    that it trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = checks_host_names
    context.hostname_checks_common_name = False  # it may be the name of a user
    return context


def client_tls(options: ClientOptions) -> TlsContext:
    """Returns the context of a client with these options, for bookies and ZooKeeper. Reads the
    files; raises InvalidArgument if they are unusable."""
    files = TlsFiles(
        certificate=options.tls_certificate_file,
        key=options.tls_key_file,
        key_password=options.tls_key_password_file,
        authorities=options.tls_ca_file,
    )
    checks = options.tls_checks_host_names
    return TlsContext(files, partial(client_context, checks_host_names=checks))


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def load_files(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Loads the files into the context; without a file of authorities a context of a client trusts
    those of the system. Raises InvalidArgument with the file, the cause and the cure."""
    if files.certificate:
        _check_readable(files.certificate, "certificate")
        read_private(files.private_file, "private key")
        _load_own(context, files)
    if files.authorities:
        _check_readable(files.authorities, "file of authorities", is_trusted=True)
        try:
            context.load_verify_locations(files.authorities)
        except ssl.SSLError as error:
            raise InvalidArgument(
                f"{files.authorities} has no certificate of an authority: {_reason(error)}. Cure: "
                "name a PEM file with the certificates of the authorities"
            ) from error
    elif context.protocol == ssl.PROTOCOL_TLS_CLIENT:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    password = _read_password(files.key_password) if files.key_password else None

    def ask() -> str:
        if password is None:
            raise InvalidArgument(
                f"the private key in {files.private_file} is encrypted, and no password is given. "
                "Cure: name the file that has it as the key's password file"
            )
        return password

    try:
        context.load_cert_chain(files.certificate, files.key or None, ask)
    except ssl.SSLError as error:
        raise InvalidArgument(_why_unusable(files, error)) from error


def _why_unusable(files: TlsFiles, error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if "MISMATCH" in reason:
        return (
            f"the private key in {files.private_file} does not fit the certificate in "
            f"{files.certificate}. Cure: name the key that the certificate was made for"
        )
    if files.key_password and reason != "NO_START_LINE":
        return (
            f"the private key in {files.private_file} cannot be read with the password in "
            f"{files.key_password}. Cure: write the key's password in the first line of that file"
        )
    if "TOO_SMALL" in reason or "TOO_WEAK" in reason:
        return (
            f"the certificate in {files.certificate} is too weak for TLS: {_reason(error)}. Cure: "
            "make one with an EC key, or an RSA key of 2048 bits or more, signed with SHA-256"
        )
    return (
        f"{files.certificate} and {files.private_file} are not a certificate and its private key "
        f"in PEM: {_reason(error)}. Cure: name PEM files, the certificate first in its file"
    )


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _check_readable(path: str, what: str, *, is_trusted: bool = False) -> None:
    try:
        with open(path, "rb") as file:
            file.read(1)
            if is_trusted:
                check_not_writable_by_others(file)
    except OSError as error:
        raise InvalidArgument(
            f"the {what} in {path} cannot be read: {error.strerror}. Cure: name a file that this "
            "user can read"
        ) from error


def _read_password(path: str) -> str:
    lines = read_private(path, "password")[:_PASSWORD_BYTES_MAX].splitlines()
    if not lines or not lines[0]:
        raise InvalidArgument(f"the first line of {path} is empty. Cure: write the password there")
    return lines[0].decode("utf-8", "surrogateescape")


def is_for_host(names: PeerCertificate, host: str) -> bool:
    """Returns whether a certificate with these names is for `host`, as clients check it: by an
    address, a name, or a name with one wildcard in front."""
    host = host.lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        _, dot, parent = host.partition(".")
        wanted = (host, f"*.{parent}") if dot else (host,)
        return any(name.lower() in wanted for name in names.dns_names)
    # `ssl` writes an address of IPv6 in full, and with a line feed in some releases.
    return any(ipaddress.ip_address(one.strip()) == address for one in names.ip_addresses)


def _seen(files: TlsFiles) -> tuple[tuple[int, ...], ...]:
    """Returns what changes with the contents of the files."""
    found: list[tuple[int, ...]] = []
    for path in files.every():
        try:
            at = os.stat(path)
        except OSError as error:
            found.append((error.errno or 0,))
        else:
            found.append((at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_mode))
    return tuple(found)


def _own_certificate(files: TlsFiles) -> OwnCertificate:
    """Returns what our certificate says. `ssl` parses only certificates of peers that it verified,
    so that a client in memory connects to a server in memory, and trusts this one."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_own(server, files)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(files.certificate)
    client.verify_flags = _PARTIAL_CHAIN | _NO_CHECK_TIME
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (asking, answering, asking):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLError as error:
        raise InvalidArgument(
            f"the certificate in {files.certificate} cannot be that of a server or client of TLS: "
            f"{getattr(error, 'verify_message', '') or _reason(error)}. Cure: make one for "
            "both, or without extended key usage"
        ) from error
    found = asking.getpeercert()
    assert found, "the client in memory has verified the certificate"
    expires_at = found["notAfter"]
    assert isinstance(expires_at, str)
    return OwnCertificate(peer_certificate_of(found), ssl.cert_time_to_seconds(expires_at))
