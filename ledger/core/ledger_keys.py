"""Derives the passwords of ledgers from the secret of their cluster, and recognizes their keys.

The secret gives each namespace a key, and that key gives each of its ledgers a password. So a
client that has the keys of its namespaces, and not the secret, knows no password of another one. A
bookie, which has the secret, recognizes the key of a ledger that it has never seen, without its
metadata, once it knows the namespaces that are in use; and the metadata need not hold the password:
`completed` fills it in. The custom metadata `ledgerstream-key` names the secret (docs/formats.md).
Neither a secret nor a key may be shown, nor compared in a time that depends on it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.core.entry import master_key
from ledger.core.metadata import DERIVED_KEY_PREFIX, OWN_KEY_TAG, LedgerMetadata
from ledger.core.permissions import check_namespace, namespace_of_ledger
from ledger.errors import InvalidArgument, Unauthorized

SECRET_BYTES_MIN: Final = 32
SECRETS_MAX: Final = 16
"""Secrets in one file."""
NAMESPACE_KEYS_MAX: Final = 500
"""Keys of namespaces in one file."""
PROVEN_NAMESPACES_MAX: Final = 64
"""Keys of namespaces that a bookie tries at the first contact with a ledger, about 2 us each."""
NO_NAMESPACE: Final = ""
"""Under this name ledgers without a namespace have their key; no namespace has it."""
_NO_NAMESPACE_TEXT: Final = "-"
_FILE_BYTES_MAX: Final = 64 * 1024
_KEY_BYTES: Final = 32
_PASSWORD_LABEL: Final = b"ledgerstream ledger password v1"
_NAMESPACE_LABEL: Final = b"ledgerstream namespace key v1"
_ID_LABEL: Final = b"ledgerstream cluster secret id v1"
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")
_SECRET_NAME = re.compile(r"[0-9a-f]{16}")
_KEY_HEX = re.compile(r"[0-9a-f]{64}")
_NAMESPACE_WORD: Final = "namespace"


@dataclass(frozen=True, slots=True)
class NamespaceKey:
    """The key of one namespace, and the name of the secret that it comes from."""

    namespace: str
    secret_name: str
    value: bytes = field(repr=False)

    def password(self, ledger_id: int) -> bytes:
        """Returns the password (32 bytes) of a ledger of the namespace."""
        message = _PASSWORD_LABEL + ledger_id.to_bytes(8, "big")
        return hmac.digest(self.value, message, hashlib.sha256)

    def line(self) -> str:
        """Returns the line that gives this key to a client, in the file that it names as its
        `cluster_secret_file`. It is a secret."""
        name = self.namespace or _NO_NAMESPACE_TEXT
        return f"{_NAMESPACE_WORD} {name} {self.secret_name} {self.value.hex()}"


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """One secret of a cluster."""

    value: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """A name that does not reveal the secret: 16 hexadecimal digits."""
        return hmac.digest(self.value, _ID_LABEL, hashlib.sha256)[:8].hex()

    def namespace_key(self, namespace: str) -> NamespaceKey:
        """Returns the key of a namespace; that of `NO_NAMESPACE` is for ledgers without one."""
        message = _NAMESPACE_LABEL + namespace.encode()
        value = hmac.digest(self.value, message, hashlib.sha256)
        return NamespaceKey(namespace, self.name, value)


class LedgerKeys:
    """The secrets of a cluster, or the keys of some of its namespaces; without either it derives
    nothing.

    Args:
        secrets: keys of new ledgers come from the first; those of the others are accepted.
        namespace_keys: the same for one namespace each; one goes before the secrets.
    """

    def __init__(
        self,
        secrets: Sequence[ClusterSecret] = (),
        namespace_keys: Sequence[NamespaceKey] = (),
    ) -> None:
        self._secrets = {one.name: one for one in secrets}
        self._first: dict[str, NamespaceKey] = {}
        self._given: dict[tuple[str, str], NamespaceKey] = {}
        for one in namespace_keys:
            self._first.setdefault(one.namespace, one)
            self._given[one.namespace, one.secret_name] = one

    def __bool__(self) -> bool:
        return self.has_secret or bool(self._given)

    @property
    def has_secret(self) -> bool:
        """Whether keys of all namespaces can be derived, as bookies must be able to."""
        return bool(self._secrets)

    def new_key(self, ledger_id: int, custom: Mapping[str, bytes]) -> tuple[bytes, bytes]:
        """Returns the value of the tag `OWN_KEY_TAG` and the password of a new ledger with this
        custom metadata. There must be keys. Raises Unauthorized if that of its namespace is not
        here."""
        (key,) = self.namespace_keys([_namespace(custom)])
        return DERIVED_KEY_PREFIX + key.secret_name.encode(), key.password(ledger_id)

    def namespace_keys(self, namespaces: Sequence[str]) -> list[NamespaceKey]:
        """Returns the key of each namespace by which new ledgers are made. Raises Unauthorized if
        one is not here."""
        return [self._new_namespace_key(one) for one in namespaces]

    def _new_namespace_key(self, namespace: str) -> NamespaceKey:
        key = self._first.get(namespace)
        if key is not None:
            return key
        for secret in self._secrets.values():
            return secret.namespace_key(namespace)
        of = f"of namespace {namespace}" if namespace else "of ledgers without a namespace"
        cure = namespace or "--without-namespace"
        raise Unauthorized(
            f"the key {of} is not in this client's cluster_secret_file, which has those of "
            f"{len(self._first)} others. Cure: an administrator prints it by `ledgerstream "
            f"security namespace-key {cure}`"
        )

    def key_of(self, metadata: LedgerMetadata) -> NamespaceKey | None:
        """Returns the key of a namespace from which the password of a ledger is derived, by its
        metadata; None if it is not derived, or neither that key nor the secret is here."""
        if not metadata.has_derived_key:
            return None
        tag = metadata.custom[OWN_KEY_TAG].removeprefix(DERIVED_KEY_PREFIX)
        name, namespace = tag.decode("ascii", "replace"), _namespace(metadata.custom)
        secret = self._secrets.get(name)
        if secret is not None:
            return secret.namespace_key(namespace)
        return self._given.get((namespace, name))

    def completed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Returns the metadata with its derived password, if it has one and its key is here."""
        key = self.key_of(metadata)
        if key is None:
            return metadata
        return replace(metadata, password=key.password(metadata.ledger_id))


class ProvenNamespaces:
    """The keys of namespaces by which a bookie recognizes ledgers that it has never seen: those by
    which metadata has proven the key of a ledger most recently, at most 64."""

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, str], NamespaceKey] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: NamespaceKey) -> None:
        """Remembers a key by which the key of a ledger was proven."""
        name = key.namespace, key.secret_name
        self._keys[name] = key
        self._keys.move_to_end(name)
        if len(self._keys) > PROVEN_NAMESPACES_MAX:
            self._keys.popitem(last=False)

    def recognizes(self, ledger_id: int, key: bytes | memoryview) -> bool:
        """Returns whether `key` is the master key of this ledger in one of the namespaces."""
        for name, one in reversed(self._keys.items()):
            if hmac.compare_digest(master_key(one.password(ledger_id)), key):
                self._keys.move_to_end(name)
                return True
        return False


NO_KEYS: Final = LedgerKeys()


def master_key_of(metadata: LedgerMetadata) -> bytes:
    """Returns the master key of a ledger; b"" if its secret is unknown here."""
    return b"" if metadata.is_key_missing else master_key(metadata.password)


def check_key_known(metadata: LedgerMetadata) -> None:
    """Raises Unauthorized if the key of the ledger is derived from a secret that is unknown here,
    so that it can be neither fenced nor written."""
    if metadata.is_key_missing:
        tag = metadata.custom[OWN_KEY_TAG].removeprefix(DERIVED_KEY_PREFIX)
        name, namespace = tag.decode("ascii", "replace"), _namespace(metadata.custom)
        raise Unauthorized(
            f"ledger {metadata.ledger_id} has a key that is derived from the cluster secret "
            f"{name!r} for {f'namespace {namespace}' if namespace else 'no namespace'}, and this "
            "process has neither. Cure: give the file with that secret, or with the key of the "
            "namespace, by cluster_secret_file or LEDGERSTREAM_CLUSTER_SECRET_FILE"
        )


def _namespace(custom: Mapping[str, bytes]) -> str:
    return namespace_of_ledger(custom) or NO_NAMESPACE


def parse_secrets(data: bytes, source: str) -> LedgerKeys:
    """Returns the secrets and keys in a file: one in each line, but for empty ones and those that
    begin with `#`. A secret is at least 32 printable ASCII characters without spaces, such as 64
    hexadecimal digits; the key of a namespace is what `NamespaceKey.line` returns.

    Args:
        data: the bytes of the file.
        source: names it in errors, which never quote it.

    Raises InvalidArgument.
    """
    if len(data) > _FILE_BYTES_MAX:
        raise InvalidArgument(f"{source} has more than {_FILE_BYTES_MAX} bytes. {_CURE}")
    secrets: dict[bytes, ClusterSecret] = {}
    keys: dict[bytes, NamespaceKey] = {}
    for number, line in enumerate(data.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        if b" " in text:
            keys[text] = _parse_key(text, f"{source}, line {number}")
        elif len(text) < SECRET_BYTES_MIN or not _PRINTABLE.fullmatch(text):
            raise InvalidArgument(
                f"{source}, line {number}: {len(text)} bytes; a secret is at least "
                f"{SECRET_BYTES_MIN} printable ASCII characters without spaces. {_CURE}"
            )
        else:
            secrets[text] = ClusterSecret(text)
    if len(secrets) > SECRETS_MAX or len(keys) > NAMESPACE_KEYS_MAX or not (secrets or keys):
        raise InvalidArgument(
            f"{source} has {len(secrets)} secrets and {len(keys)} keys of namespaces, must have at "
            f"least one, and at most {SECRETS_MAX} and {NAMESPACE_KEYS_MAX}. {_CURE}"
        )
    return LedgerKeys(tuple(secrets.values()), tuple(keys.values()))


def _parse_key(text: bytes, where: str) -> NamespaceKey:
    words = text.decode("ascii", "replace").split()
    if len(words) == 4 and words[0] == _NAMESPACE_WORD and _SECRET_NAME.fullmatch(words[2]):
        namespace = NO_NAMESPACE if words[1] == _NO_NAMESPACE_TEXT else words[1]
        try:
            if namespace:
                check_namespace(namespace)
        except InvalidArgument:
            pass
        else:
            if _KEY_HEX.fullmatch(words[3]):
                return NamespaceKey(namespace, words[2], bytes.fromhex(words[3]))
    raise InvalidArgument(
        f"{where}: neither a secret, which has no spaces, nor the key of a namespace. {_CURE}"
    )


_CURE = (
    "Cure: make a file with `openssl rand -hex 32`, the same for all bookies, and give clients what"
    " `ledgerstream security namespace-key` prints"
)
