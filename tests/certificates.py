"""Certificates for tests: an authority, and what it signs, in PEM files."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def _name(common_name: str, unit: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if unit:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    return x509.Name(attributes)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Authority:
    """A certificate authority whose certificate is in `directory`/NAME.pem."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = _name(name)
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            self._builder(self.name, self.key.public_key(), now - DAY, now + 3650 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        begins: datetime.datetime,
        ends: datetime.datetime,
        issuer: x509.Name | None = None,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )

    def issue(
        self,
        name: str,
        *hosts: str,
        begins_days: float = -1.0,
        ends_days: float = 365.0,
        unit: str = "",
        password: bytes = b"",
        is_self_signed: bool = False,
    ) -> tuple[Path, Path]:
        """Writes NAME.pem and NAME.key, for these hosts, and returns their paths. Files of that
        name are replaced, as programs that renew certificates do it. `is_self_signed`: by its own
        key instead of the authority's."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        builder = self._builder(
            _name(name, unit),
            key.public_key(),
            now + begins_days * DAY,
            now + ends_days * DAY,
            _name(name, unit) if is_self_signed else None,
        )
        if hosts:
            names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(key if is_self_signed else self.key, hashes.SHA256())
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password)
        key_bytes = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )
        paths = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        pieces = certificate.public_bytes(serialization.Encoding.PEM), key_bytes
        for path, data in zip(paths, pieces, strict=True):
            fresh = path.with_suffix(".fresh")
            fresh.write_bytes(data)
            fresh.chmod(0o600)
            os.replace(fresh, path)
        return paths
