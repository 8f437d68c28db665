"""Makes what a small cluster needs to admit nobody but its users: an authority, certificates, and
the first users.

For tests and small clusters; others have an authority and users of their own. All files are their
owner's alone, and none is ever overwritten: what exists is used. Certificates need the library
`cryptography`, which the rest of the package does not.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger.core.authentication import scram
from ledger.core.authentication.names import check_user_name
from ledger.core.permissions import Grant, Role
from ledger.credentials import read_private, read_secret
from ledger.errors import InvalidArgument
from ledger.metastore.base import MetadataStore
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import UserStore, new_user
from ledger.metastore.zookeeper.access import parse_credentials, user_id
from ledger.runtime.private_files import DIRECTORY_MODE, private_opener

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

BOOKIES: Final = "bookies"
"""The user that bookies and the janitor are: they copy and delete ledgers of all namespaces."""
ZOOKEEPER_OWNERS: Final = "bookies"
ZOOKEEPER_CLIENTS: Final = "clients"
"""The two users that share ZooKeeper's nodes (`ledger.metastore.node_kinds`)."""
AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
"""How long certificates are valid, counted from the day before; 825 is what most clients accept."""
_AUTHORITY: Final = "ca"
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}", re.ASCII)
_PASSWORD_BITS: Final = 192
_SECRET_BITS: Final = 256
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SecurityDirectory:
    """The layout of a directory with certificates, keys and credentials.

    Attributes:
        path: the directory.
        admin: the name of the first user, who may do everything.
    """

    path: Path
    admin: str = "admin"

    @property
    def authority_file(self) -> Path:
        """The certificate of the authority, which clients and bookies trust."""
        return self.certificate_file(_AUTHORITY)

    def certificate_file(self, name: str) -> Path:
        return self.path / f"{name}.pem"

    def key_file(self, name: str) -> Path:
        return self.path / f"{name}.key"

    def credentials_file(self, user: str) -> Path:
        return self.path / f"{user}.toml"

    def password_file(self, user: str) -> Path:
        return self.path / f"{user}.password"

    @property
    def secret_file(self) -> Path:
        """The secret of the cluster, from which keys of ledgers are derived."""
        return self.path / "cluster.secret"

    def zookeeper_file(self, user: str) -> Path:
        """The credentials for ZooKeeper of `ZOOKEEPER_OWNERS` or `ZOOKEEPER_CLIENTS`."""
        return self.path / f"{user}.zookeeper"

    @property
    def zookeeper_acl(self) -> str:
        """The setting `zookeeper_acl`: the ids of both users. Raises InvalidArgument."""
        files = (self.zookeeper_file(user) for user in (ZOOKEEPER_OWNERS, ZOOKEEPER_CLIENTS))
        return ",".join(user_id(parse_credentials(read_private(one), str(one))) for one in files)

    @property
    def users(self) -> tuple[str, str]:
        """The users whose credentials are here."""
        return BOOKIES, self.admin

    def bookie_settings(self, name: str) -> dict[str, object]:
        """Returns the settings of a bookie with the certificate `name`: it refuses what is not
        encrypted, clients that have not authenticated, and what was not permitted."""
        path = self.path.absolute()
        return {
            "tls_certificate_file": str(path / f"{name}.pem"),
            "tls_key_file": str(path / f"{name}.key"),
            "tls_ca_file": str(path / f"{_AUTHORITY}.pem"),
            "tls_required": True,
            "tls_to_bookies": "start_tls",
            "http_tls": True,
            "authentication_mechanisms": ["SCRAM-SHA-256"],
            "credentials_file": str(path / f"{BOOKIES}.toml"),
            "permissions": True,
            "cluster_secret_file": str(path / self.secret_file.name),
            "derived_keys_required": True,
        }

    def zookeeper_settings(self) -> dict[str, object]:
        """Returns those of a bookie whose metadata is in ZooKeeper. Raises InvalidArgument."""
        owners = self.zookeeper_file(ZOOKEEPER_OWNERS).absolute()
        return {"zookeeper_credentials_file": str(owners), "zookeeper_acl": self.zookeeper_acl}


def make_security_directory(
    layout: SecurityDirectory,
    certificates: Mapping[str, Sequence[str]],
    *,
    rng: random.Random,
    now_ms: int,
    days: int = CERTIFICATE_DAYS,
) -> list[Path]:
    """Makes what is missing in the directory, and returns the files that were made.

    `certificates` has the names of the bookies' certificates, each with its hosts and addresses.
    `rng` draws passwords: a `random.SystemRandom`. Raises InvalidArgument for a host that none can
    be, for half of what belongs together, and if `cryptography` is not installed.
    """
    check_user_name(layout.admin)
    reserved = {_AUTHORITY, BOOKIES, layout.admin}
    if len(reserved) < 3:
        raise InvalidArgument(f"{layout.admin} cannot be the name of the first user here")
    for name, hosts in certificates.items():
        if name in reserved:
            raise InvalidArgument(f"{name} is a file of this directory already, and no host")
        for host in (name, *hosts):
            if not _HOST.fullmatch(host) or (":" in host and not _is_address(host)):
                raise InvalidArgument(
                    f"{host!r} is no host: give a name or an address, without port and scheme"
                )
    _require_cryptography()
    try:
        layout.path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        made: list[Path] = []
        authority = _Authority(layout, now_ms, made)
        for name, hosts in certificates.items():
            authority.issue(name, hosts, days)
        authority.issue(layout.admin, (), days)
        for user in layout.users:
            made += _make_credentials(layout, user, rng)
        made += _make_secrets(layout, rng)
    except OSError as error:
        raise InvalidArgument(f"{error.filename}: {error.strerror}") from error
    return made


def make_security_directory_at_once(
    layout: SecurityDirectory,
    certificates: Mapping[str, Sequence[str]],
    *,
    rng: random.Random,
    now_ms: int,
) -> None:
    """Makes the directory as `make_security_directory` does, all of it or nothing, also if this
    process is killed; one that exists is not touched. Its certificates are valid as long as that of
    the authority, because it stays with a cluster on one machine."""
    if layout.path.exists():
        return
    new = layout.path.with_name(f"{layout.path.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # left by a process that was killed
    make_security_directory(
        SecurityDirectory(new, layout.admin),
        certificates,
        rng=rng,
        now_ms=now_ms,
        days=AUTHORITY_DAYS,
    )
    os.rename(new, layout.path)


async def create_first_users(
    store: MetadataStore, layout: SecurityDirectory, *, rng: random.Random, now_ms: int
) -> list[str]:
    """Creates the users of the directory, with the role `admin`, and returns those created.

    A user that exists is left as it is, with its password and without another role. Raises
    InvalidArgument, MetadataUnavailable, MetadataCorrupt, MetadataConflict.
    """
    users, created = UserStore(store), []
    for name in layout.users:
        password = read_secret(layout.password_file(name)).reveal()
        if await users.read(name) is not None:
            continue
        # The role first: who finds the user later need not ask whether it was given.
        await Permissions(store).grant([Grant(name, Role.ADMIN)])
        salts = {mechanism: rng.randbytes(scram.SALT_BYTES) for mechanism in scram.HASHES}
        await users.create(new_user(name, password, salts=salts, now_ms=now_ms, digest_md5=False))
        created.append(name)
    return created


def _make_credentials(layout: SecurityDirectory, user: str, rng: random.Random) -> list[Path]:
    password, credentials = layout.password_file(user), layout.credentials_file(user)
    made = []
    if not password.exists():
        _write_new(password, f"{rng.getrandbits(_PASSWORD_BITS):0{_PASSWORD_BITS // 4}x}\n")
        made.append(password)
    if not credentials.exists():
        _write_new(
            credentials,
            f'user = "{user}"\n'
            f'password_file = "{password.name}"\n'
            f'tls = "start_tls"\n'
            f'tls_ca_file = "{layout.authority_file.name}"\n'
            f'cluster_secret_file = "{layout.secret_file.name}"\n',
        )
        made.append(credentials)
    return made


def _make_secrets(layout: SecurityDirectory, rng: random.Random) -> list[Path]:
    texts = {layout.secret_file: f"{rng.getrandbits(_SECRET_BITS):0{_SECRET_BITS // 4}x}\n"}
    for user in (ZOOKEEPER_OWNERS, ZOOKEEPER_CLIENTS):
        password = f"{rng.getrandbits(_PASSWORD_BITS):0{_PASSWORD_BITS // 4}x}"
        texts[layout.zookeeper_file(user)] = f"{user}:{password}\n"
    made = [path for path in texts if not path.exists()]
    for path in made:
        _write_new(path, texts[path])
    return made


def _write_new(path: Path, data: bytes | str) -> None:
    with open(path, "xb", opener=private_opener) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401 - whether it is there
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            "certificates are made with the library cryptography, which is not installed. Cure: "
            "pip install 'ledgerstream[security]'"
        ) from error


class _Authority:
    """The authority of a directory, which is made if there is none. Paths of files that were
    written are added to `made`."""

    def __init__(self, layout: SecurityDirectory, now_ms: int, made: list[Path]) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self._layout, self._made = layout, made
        self._now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
        if self._is_there(_AUTHORITY):
            key_file = layout.key_file(_AUTHORITY)
            try:
                key = serialization.load_pem_private_key(read_private(key_file), None)
                self._certificate = x509.load_pem_x509_certificate(
                    layout.authority_file.read_bytes()
                )
            except (ValueError, TypeError) as error:
                raise InvalidArgument(
                    f"the authority in {layout.path} cannot be used: {error}. Cure: another "
                    "directory, or the files that were made here"
                ) from error
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise InvalidArgument(f"{key_file} is not a key that was made here")
            self._key = key
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("ledgerstream authority")
        builder = self._builder(name, name, self._key.public_key(), AUTHORITY_DAYS)
        self._certificate = self._signed(
            builder.add_extension(
                x509.BasicConstraints(ca=True, path_length=0), critical=True
            ).add_extension(_key_usage(is_authority=True), critical=True)
        )
        self._write(_AUTHORITY, self._certificate, self._key)

    def issue(self, name: str, hosts: Sequence[str], days: int) -> None:
        """Makes a certificate for these hosts, or of a client without any, unless there is one."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        if self._is_there(name):
            return
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]  # bookies are clients of each other
        builder = self._builder(_name(name[:64]), self._certificate.subject, key.public_key(), days)
        if hosts:
            uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = self._signed(
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        self._write(name, certificate, key)

    def _is_there(self, name: str) -> bool:
        pair = self._layout.certificate_file(name), self._layout.key_file(name)
        there = [path for path in pair if path.exists()]
        if len(there) == 1:
            missing = pair[0] if there[0] == pair[1] else pair[1]
            raise InvalidArgument(
                f"{there[0]} exists without {missing.name}, and nothing is overwritten. Cure: put "
                f"{missing.name} back, or remove {there[0].name}"
            )
        return len(there) == 2

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        from cryptography import x509

        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _DAY)  # clocks differ
            .not_valid_after(self._now + (days - 1) * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    def _signed(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())

    def _write(
        self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        from cryptography.hazmat.primitives import serialization as forms

        pem, pkcs8 = forms.Encoding.PEM, forms.PrivateFormat.PKCS8
        secret = key.private_bytes(pem, pkcs8, forms.NoEncryption())
        pieces = (
            (self._layout.key_file(name), secret),
            (self._layout.certificate_file(name), certificate.public_bytes(pem)),
        )
        for path, data in pieces:
            _write_new(path, data)
            self._made.append(path)


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _alternative(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
        encipher_only=False, decipher_only=False, **dict.fromkeys(others, False),
    )  # fmt: skip
