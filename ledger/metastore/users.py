"""Users: one node of JSON each, with what a bookie needs to recognise a password, and not the
password.

A password is salted and hashed many times, for each mechanism of SCRAM. What DIGEST-MD5 needs is
as good as the password, so that it is kept only where an operator asks for it. Fields that a later
release added are kept by a change of the password. Each change also writes the parent of all users,
in the same transaction, so that a bookie follows them with one watch.
"""

from __future__ import annotations

import base64
import builtins
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.core.authentication import scram
from ledger.core.authentication.digest_md5 import user_secret
from ledger.core.authentication.names import check_user_name
from ledger.core.authentication.saslprep import saslprep
from ledger.core.authentication.scram import ScramVerifier, verifier_of
from ledger.errors import InvalidArgument, MetadataCorrupt, NodeExists, NoSuchNode
from ledger.metastore.base import Create, Delete, MetadataStore, Node, Put

PATH: Final = "/ledgerstream/users"
SECRET_PATH: Final = "/ledgerstream/authentication"
FORMAT_VERSION: Final = 1
SECRET_BYTES: Final = 32

_NOTE: Final = Put(PATH, json.dumps({"version": FORMAT_VERSION}).encode())
"""Written with each change: the version of the node counts them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user. Times are milliseconds since 1970."""

    name: str
    created_ms: int
    changed_ms: int
    """When the password was set."""
    verifiers: Mapping[str, ScramVerifier]
    """By mechanism."""
    digest_md5: bytes | None = field(default=None, repr=False)
    """The secret for DIGEST-MD5, if it was asked for."""


def new_user(
    name: str, password: str, *, salts: Mapping[str, bytes], now_ms: int, digest_md5: bool
) -> User:
    """Returns a user with this password.

    `salts` has a random one of `scram.SALT_BYTES` bytes for each mechanism of SCRAM. Raises
    InvalidArgument for a name or a password that cannot be used. Takes about 20 ms.
    """
    check_user_name(name)
    verifiers = {
        mechanism: verifier_of(mechanism, password, salts[mechanism], scram.ITERATIONS)
        for mechanism in scram.HASHES
    }
    secret = user_secret(name, saslprep(password)) if digest_md5 else None
    return User(
        name=name, created_ms=now_ms, changed_ms=now_ms, verifiers=verifiers, digest_md5=secret
    )


class UserStore:
    """The users of one metadata store. All methods raise MetadataUnavailable, and InvalidArgument
    for a name that no user can have."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def create(self, user: User) -> None:
        """Stores a new user. Raises NodeExists."""
        created = Create(path_of(user.name), _encode(user, {}))
        try:
            await self._store.transaction([created, _NOTE])
        except NodeExists:
            raise NodeExists(
                f"user {user.name} exists already; `ledgerstream user passwd {user.name}` gives it "
                "another password"
            ) from None

    async def read(self, name: str) -> User | None:
        """Returns a user, None if there is none. Raises MetadataCorrupt."""
        try:
            node = await self._store.get(path_of(name))
        except NoSuchNode:
            return None
        return _decode(name, node)

    async def list(self) -> builtins.list[User]:
        """Returns all that can be read, sorted by name; damaged ones are logged."""
        found = []
        for name in await self._store.children(PATH):
            try:
                user = await self.read(name)
            except (InvalidArgument, MetadataCorrupt) as error:
                log.warning("user_ignored user=%s error=%r", name, str(error))
                continue
            if user is not None:  # otherwise it was deleted after the listing
                found.append(user)
        return found

    async def change(self, user: User) -> None:
        """Replaces the secrets of a user, and keeps when it was created and what this release
        does not know; a damaged node is replaced as a whole. Raises NoSuchNode,
        MetadataConflict."""
        path = path_of(user.name)
        try:
            node = await self._store.get(path)
        except NoSuchNode:
            raise no_such_user(user.name) from None
        try:
            before = _document(path, node.data)
        except MetadataCorrupt:
            before = {}
        changed = Put(path, _encode(user, before), node.version)
        await self._store.transaction([changed, _NOTE])

    async def delete(self, name: str) -> None:
        """Deletes a user. Raises NoSuchNode."""
        try:
            await self._store.transaction([Delete(path_of(name)), _NOTE])
        except NoSuchNode:
            raise no_such_user(name) from None

    async def watch(self) -> AsyncGenerator[object, None]:
        """Yields a mark now and after changes of users; it differs from the one before if there
        was any. Close it: `async with aclosing(users.watch()) as marks`."""
        async with aclosing(self._store.watch(PATH)) as nodes:
            async for node in nodes:
                yield None if node is None else (node.version, node.created_ms)

    async def cluster_secret(self, drawn: bytes) -> bytes:
        """Returns the secret from which the cluster makes up verifiers for users that do not exist:
        `drawn`, random, if there is none yet. Raises MetadataCorrupt."""
        data = json.dumps({"version": FORMAT_VERSION, "secret": _text(drawn)}).encode()
        try:
            await self._store.create(SECRET_PATH, data)
        except NodeExists:
            node = await self._store.get(SECRET_PATH)
            try:
                return _bytes(_document(SECRET_PATH, node.data)["secret"])
            except (KeyError, TypeError, ValueError) as error:
                raise _corrupt(SECRET_PATH, error) from None
        return drawn


def no_such_user(name: str) -> NoSuchNode:
    """Returns the error for a user that does not exist."""
    return NoSuchNode(f"there is no user {name}; `ledgerstream user list` shows all")


def path_of(name: str) -> str:
    """Returns the path of a user's node. Raises InvalidArgument."""
    return f"{PATH}/{check_user_name(name)}"


def _encode(user: User, before: Mapping[str, Any]) -> bytes:
    verifiers = {
        mechanism: {
            "salt": _text(one.salt),
            "iterations": one.iterations,
            "stored_key": _text(one.stored_key),
            "server_key": _text(one.server_key),
        }
        for mechanism, one in user.verifiers.items()
    }
    document = {
        **before,
        "version": FORMAT_VERSION,
        "name": user.name,
        "created_ms": before.get("created_ms", user.created_ms),
        "changed_ms": user.changed_ms,
        "scram": verifiers,
        "digest_md5": None if user.digest_md5 is None else _text(user.digest_md5),
    }
    return json.dumps(document).encode()


def _decode(name: str, node: Node) -> User:
    path = path_of(name)
    document = _document(path, node.data)
    try:
        if document["name"] != name:
            raise ValueError("it has the name of another user")
        digest_md5 = document["digest_md5"]
        return User(
            name=name,
            created_ms=_number(document["created_ms"]),
            changed_ms=_number(document["changed_ms"]),
            verifiers={
                mechanism: ScramVerifier(
                    _bytes(one["salt"]),
                    _number(one["iterations"]),
                    _bytes(one["stored_key"]),
                    _bytes(one["server_key"]),
                )
                for mechanism, one in document["scram"].items()
            },
            digest_md5=None if digest_md5 is None else _bytes(digest_md5),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _corrupt(path, error) from None


def _document(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
        if not isinstance(document, dict):
            raise TypeError("it is not a JSON object")
        if document["version"] != FORMAT_VERSION:
            raise ValueError(f"it has format version {document['version']!r}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _corrupt(path, error) from None
    return document


def _corrupt(path: str, error: Exception) -> MetadataCorrupt:
    # The type alone for all but our own errors: another text might contain a part of the node.
    why = str(error) if str(error).startswith("it ") else f"{type(error).__name__}"
    return MetadataCorrupt(
        f"{path} cannot be read: {why}. Cure: `ledgerstream user passwd`, or delete the user"
    )


def _number(value: object) -> int:
    if type(value) is not int or not 0 < value < 1 << 63:
        raise ValueError("it has a number that is none")
    return value


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(value: str) -> bytes:
    data = base64.b64decode(value.encode("ascii"), validate=True)
    if not data:
        raise ValueError("it has an empty secret")
    return data
