"""The clusters that are attacked: real processes, one that serves everybody and one secured.

A secured cluster has four users besides its own: the *owner* of the namespace "victim", an
*insider* with the role `write` on it, a *tenant* with a namespace of its own, and an *operator*.
"""

from __future__ import annotations

import base64
import random
import ssl
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import trio

from ledger.core.authentication import scram
from ledger.core.metadata import LedgerMetadata
from ledger.core.permissions import Grant, Role
from ledger.credentials import Credentials, Secret, read_client_settings
from ledger.metastore import open_store
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import UserStore, new_user
from ledger.options import ClientOptions
from stream import Namespace
from tests.system.cluster import StandaloneCluster, wait_for

VICTIM, TENANTS = "victim", "tenants"
"""Namespaces."""
OWNER, INSIDER, TENANT, OPERATOR = "owner", "insider", "tenant", "operator"
ROLES = {
    OWNER: Grant(OWNER, Role.MANAGE, VICTIM),
    INSIDER: Grant(INSIDER, Role.WRITE, VICTIM),
    TENANT: Grant(TENANT, Role.MANAGE, TENANTS),
    OPERATOR: Grant(OPERATOR, Role.OPERATE),
}
CONNECTIONS_MAX = 120
VARIABLES = {
    "LEDGERSTREAM_CONNECTIONS_MAX": str(CONNECTIONS_MAX),
    "LEDGERSTREAM_REPLIES_BYTES_MAX": "32MB",
    "LEDGERSTREAM_JOURNAL_FILE_BYTES_MAX": "16MB",
    "LEDGERSTREAM_CHECKPOINT_INTERVAL_MS": "500",
    "LEDGERSTREAM_GARBAGE_INTERVAL_MS": "3600000",
}


def password_of(user: str) -> str:
    return f"the password of {user}"


class AttackedCluster:
    """`ledgerstream standalone`, its files made under umask 0."""

    def __init__(
        self,
        directory: Path,
        *,
        is_secured: bool,
        bookies: int = 3,
        files_max: tuple[int, int] | None = None,
    ) -> None:
        """`files_max`: the soft and the hard limit of the processes' descriptors."""
        self.is_secured = is_secured
        self.bookies = range(1, bookies + 1)
        options = ("--secure",) if is_secured else ()
        variables = dict(VARIABLES)
        if files_max is not None:
            del variables[
                "LEDGERSTREAM_CONNECTIONS_MAX"
            ]  # the default is more than there are files
        self.processes = StandaloneCluster(
            directory, bookies, options, variables, umask=0, files_max=files_max
        )

    @property
    def security(self) -> Path:
        return self.processes.directory / "security"

    def start(self) -> None:
        self.processes.start()
        trio.run(self._prepare)

    async def _prepare(self) -> None:
        quorum = min(3, len(self.bookies))
        if self.is_secured:
            async with open_store(self.processes.uri) as store:
                for user in ROLES:
                    salts = {mechanism: random.randbytes(16) for mechanism in scram.HASHES}
                    password = password_of(user)
                    made = new_user(user, password, salts=salts, now_ms=1, digest_md5=False)
                    await UserStore(store).create(made)
                await Permissions(store).grant(ROLES.values())
            for number in self.bookies:
                wait_for(partial(self._admits_the_operator, number))
        for name, user in ((VICTIM, OWNER), (TENANTS, TENANT)):
            async with self.namespace(name, user) as namespace:
                await namespace.ensure(
                    ensemble_size=quorum, write_quorum=quorum, ack_quorum=min(2, quorum)
                )

    def _admits_the_operator(self, bookie: int) -> bool:
        return self.http(bookie, "GET", "/metrics", OPERATOR)[0] == 200

    # ---- clients

    def options(self, user: str | None, **more: Any) -> ClientOptions:
        """The options of a client of this user, who encrypts; None: without credentials."""
        if not self.is_secured:
            return ClientOptions(**more)
        settings = read_client_settings(self.security / "admin.toml")
        settings.pop("credentials_file")
        if user is not None:
            more["credentials"] = Credentials(user=user, password=Secret(password_of(user)))
        return ClientOptions(**settings, **more)

    @asynccontextmanager
    async def namespace(self, name: str = VICTIM, user: str = OWNER) -> AsyncIterator[Namespace]:
        options = self.options(user, add_timeout_s=2.0, ensemble_change_timeout_s=8.0)
        async with Namespace.connect(self.processes.uri, name, options=options) as namespace:
            yield namespace

    def address(self, bookie: int) -> tuple[str, int]:
        return "127.0.0.1", self.processes.ports()[bookie - 1]

    def bookie_id(self, bookie: int) -> str:
        host, port = self.address(bookie)
        return f"{host}:{port}"

    def as_admin(self) -> tuple[str, ...]:
        """The options of a command."""
        return ("--credentials", str(self.security / "admin.toml")) if self.is_secured else ()

    # ---- HTTP

    def http_address(self, bookie: int) -> tuple[str, int]:
        settings = tomllib.loads(self.processes.settings_of(bookie).read_text())
        return "127.0.0.1", settings["http_port"]

    def http(
        self, bookie: int, method: str, path: str, user: str | None, body: bytes = b""
    ) -> tuple[int, bytes]:
        """Returns the status and the content of the answer to a request of this user."""
        address = self.http_address(bookie)
        connection = HTTPConnection(*address, timeout=30)
        if self.is_secured:
            context = ssl.create_default_context(cafile=self.security / "ca.pem")
            connection = HTTPSConnection(*address, timeout=30, context=context)
        headers = {}
        if user is not None and self.is_secured:
            pair = f"{user}:{password_of(user)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


async def append(namespace: Namespace, stream: str, values: Sequence[bytes]) -> None:
    async with namespace.writer(stream, create=True) as writer:
        await writer.append_many(values)


async def newest_ledger(namespace: Namespace, stream: str) -> LedgerMetadata:
    metadata = await namespace.scope.stream_metadata(stream)
    return await namespace.client.ledger_metadata(metadata.segments[-1].ledger_id)
