"""Certificates and passwords for tests of TLS and authentication, and the settings to use them.

Both sides read PEM files; Apache's may also read PKCS12 stores. The users of DIGEST-MD5 are in
`java/jaas.conf`.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from ledger.core.authentication import scram
from ledger.core.authentication.names import DIGEST_MD5
from ledger.credentials import Credentials, Secret
from ledger.metastore import open_store
from ledger.metastore.users import UserStore, new_user
from tests.certificates import Authority

USER = "bookkeeper-ann"
"""With a password. Apache's bookies admit only names with "bookkeeper" in them by default."""
CERTIFIED = "java"
"""The user that a client's certificate names."""

TLS_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
_SASL_CLIENT = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
_SASL_BOOKIE = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
_STORE_PASSWORD = "changeit"
_PASSWORDS = {"BookKeeper": "swordfish", "WrongPassword": "haddock"}
JAAS_OPTIONS = (
    f"-Djava.security.auth.login.config={Path(__file__).resolve().parent / 'java' / 'jaas.conf'}",
    "-Dzookeeper.sasl.client=false",  # the file is not for ZooKeeper
)
"""Options of a JVM whose programs may authenticate by SASL."""

PemFiles = tuple[Path, Path]


class Certificates:
    """Of one authority, which bookies and clients trust, and of a stranger, which nobody does."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.stranger = Authority(directory, "stranger")
        self.bookie = self.authority.issue("bookie", "127.0.0.1")
        self.client = self.authority.issue(CERTIFIED)
        self.foreign = self.stranger.issue("mallory")
        self.store_password = directory / "store.password"
        self.store_password.write_text(_STORE_PASSWORD)

    def of_our_bookie(self) -> dict[str, Any]:
        """Returns settings of a bookie of ledgerstream that encrypts, and knows the authority."""
        certificate, key = self.bookie
        return {
            "tls_certificate_file": str(certificate),
            "tls_key_file": str(key),
            "tls_ca_file": str(self.authority.file),
        }

    def of_our_client(
        self, authority: Authority | None = None, own: PemFiles | None = None
    ) -> dict[str, Any]:
        """Returns options of a client of ledgerstream that encrypts."""
        options: dict[str, Any] = {
            "tls": "start_tls",
            "tls_ca_file": str((authority or self.authority).file),
        }
        if own is not None:
            options |= {"tls_certificate_file": str(own[0]), "tls_key_file": str(own[1])}
        return options

    def of_java(
        self,
        authority: Authority | None = None,
        own: PemFiles | None = None,
        *,
        stores: bool = False,
    ) -> dict[str, Any]:
        """Returns settings of Apache's, of a client that encrypts, or of a bookie whose certificate
        is `own`.

        With OpenSSL and PEM files, Apache's defaults but for the type of files; with `stores` with
        the JDK's TLS and PKCS12.
        """
        trusted = (authority or self.authority).file
        settings: dict[str, Any] = {
            "tlsProviderFactoryClass": TLS_FACTORY,
            "tlsProvider": "JDK" if stores else "OpenSSL",
            "tlsTrustStoreType": "PKCS12" if stores else "PEM",
            "tlsTrustStore": self._trust_store(trusted) if stores else trusted,
        }
        if stores:
            settings["tlsTrustStorePasswordPath"] = self.store_password
        if own is None:
            return settings
        settings |= {"tlsClientAuthentication": True, "tlsKeyStoreType": "PEM"}
        if not stores:
            return settings | {"tlsCertificatePath": own[0], "tlsKeyStore": own[1]}
        return settings | {
            "tlsKeyStoreType": "PKCS12",
            "tlsKeyStore": _key_store(*own),
            "tlsKeyStorePasswordPath": self.store_password,
        }

    @staticmethod
    def _trust_store(pem: Path) -> Path:
        trusted = pkcs12.PKCS12Certificate(_certificate(pem), b"authority")
        store = pem.with_suffix(".trust.p12")
        store.write_bytes(pkcs12.serialize_java_truststore([trusted], _encryption()))
        return store


def _key_store(certificate: Path, key: Path) -> Path:
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    store = certificate.with_suffix(".p12")
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"own", private, _certificate(certificate), None, _encryption()
        )
    )
    return store


def _certificate(pem: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.read_bytes())


def _encryption() -> serialization.KeySerializationEncryption:
    return serialization.BestAvailableEncryption(_STORE_PASSWORD.encode())


def java_user(section: str = "BookKeeper") -> dict[str, Any]:
    """Returns settings of Apache's client that authenticates as a section of `jaas.conf` says."""
    return {
        "clientAuthProviderFactoryClass": _SASL_CLIENT,
        "saslJaasClientSectionName": section,
    }


def java_users() -> dict[str, Any]:
    """Returns settings of Apache's bookie that admits the users of `jaas.conf`."""
    return {"bookieAuthProviderFactoryClass": _SASL_BOOKIE}


def our_user(section: str = "BookKeeper") -> Credentials:
    """Returns the same user for a client of ledgerstream."""
    return Credentials(user=USER, password=Secret(_PASSWORDS[section]), mechanism=DIGEST_MD5)


async def create_user(uri: str) -> None:
    """Creates the user with a password in a cluster of ledgerstream's bookies."""
    user = new_user(
        USER,
        _PASSWORDS["BookKeeper"],
        salts={mechanism: secrets.token_bytes(scram.SALT_BYTES) for mechanism in scram.HASHES},
        now_ms=time.time_ns() // 1_000_000,
        digest_md5=True,
    )
    async with open_store(uri) as store:
        await UserStore(store).create(user)
