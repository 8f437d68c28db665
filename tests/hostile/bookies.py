"""The bookies that are attacked, each a process with a cluster of its own: one serves everybody,
the other has TLS, users and permissions. What they take, the system and they themselves say."""

from __future__ import annotations

import random
import socket
import ssl
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from ledger.core.authentication.names import DIGEST_MD5, MECHANISMS
from ledger.core.authentication.scram import HASHES, SALT_BYTES
from ledger.core.permissions import STREAM_TAG, Grant, Role
from ledger.credentials import Credentials, Secret
from ledger.metastore import ClusterAddress, open_store
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.permissions import Permissions
from ledger.metastore.users import UserStore, new_user
from ledger.options import ClientOptions
from tests.bookie.server.permitted_cluster import metadata_of
from tests.bookie.server.test_tokens import AUDIENCE, ED, public, token
from tests.certificates import Authority
from tests.system.cluster import environment, memory_bytes

MIB = 1 << 20
_SETTINGS = """
metadata_uri = "sqlite://{directory}/cluster.db"
port = {port}
http_port = {http_port}
bookie_id = "127.0.0.1:{port}"
journal_directories = ["{directory}/journal"]
ledger_directories = ["{directory}/ledgers"]
garbage_interval_ms = 3600000
journal_queue_bytes_max = "16MB"
write_cache_bytes = "16MB"
read_cache_bytes = "16MB"
index_cache_bytes = "16MB"
receive_bytes_max = "32MB"
replies_bytes_max = "32MB"
"""
GROWTH_BYTES_MAX = 192 * MIB
"""How much memory a bookie may take beyond that before the attack: what these settings allow it to
keep, which is 144 MB, and a third."""
_SECURE_SETTINGS = """
tls_certificate_file = "{certificate}"
tls_key_file = "{key}"
tls_ca_file = "{authority}"
tls_client_certificate = "optional"
tls_port = {tls_port}
http_tls = true
authentication_mechanisms = {mechanisms}
token_keys_file = "{keys}"
token_audience = "{audience}"
secrets_in_clear_allowed = true
permissions = true
audit_file = "{directory}/audit.log"
audit_file_bytes_max = 1048576
"""
OWN_LEDGERS = range(900_000, 900_010)
"""Those of the attacking user."""
_PASSWORD = "the neighbour's password"
_EXPIRES_S = 24 * 3600
_TRIES_MAX = 50
_TRY_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Usage:
    """What a bookie takes."""

    memory_bytes: int
    descriptors: int
    tasks: int
    connections: int


@dataclass(slots=True, kw_only=True)
class AttackedBookie:
    """A process, and how to reach it."""

    name: str
    directory: Path
    port: int
    http_port: int
    tls_port: int = 0
    process: trio.Process | None = None

    @property
    def is_secure(self) -> bool:
        return bool(self.tls_port)

    @property
    def uri(self) -> str:
        return f"sqlite://{self.directory}/cluster.db"

    @property
    def log(self) -> Path:
        return self.directory / "stderr"

    def options(self) -> ClientOptions:
        """Returns the options of a client with every right to ledgers without a namespace."""
        patient = ClientOptions(add_timeout_s=60.0, read_timeout_s=60.0, connect_timeout_s=60.0)
        if not self.is_secure:
            return patient
        return ClientOptions(
            add_timeout_s=60.0,
            read_timeout_s=60.0,
            connect_timeout_s=60.0,
            tls="direct",
            tls_ca_file=str(self.directory / "authority.pem"),
            credentials=Credentials(user="neighbour", password=Secret(_PASSWORD)),
        )

    def memory_bytes(self) -> int:
        assert self.process is not None
        return memory_bytes(self.process.pid)

    async def usage(self) -> Usage:
        """Asks the system, and the bookie over HTTP, as an operator does: again if a new connection
        lost its place among the few to those of attackers, which come from thousands of hosts."""
        for _ in range(_TRIES_MAX):
            with suppress(trio.BrokenResourceError):
                found = await self._metrics()
                if found is not None:
                    break
            await trio.sleep(_TRY_AGAIN_S)
        else:
            raise AssertionError(f"no metrics over HTTP in {_TRIES_MAX} tries")
        return Usage(
            self.memory_bytes(),
            int(found["process_open_fds"]),
            int(found["ledgerstream_bookie_tasks"]),
            int(found["ledgerstream_bookie_connections"]),
        )

    async def _metrics(self) -> dict[str, float] | None:
        stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", self.http_port)
        credentials = ""
        if self.is_secure:
            context = ssl.create_default_context(cafile=self.directory / "authority.pem")
            stream = trio.SSLStream(
                stream, context, server_hostname="127.0.0.1", https_compatible=True
            )
            credentials = f"Authorization: Bearer {token(sub='operator', exp=_expiry())}\r\n"
        async with stream:
            head = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{credentials}\r\n"
            await stream.send_all(head.encode())
            answer = b""
            while data := await stream.receive_some(1 << 16):
                answer += data
        if not answer:
            return None
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        body = answer.partition(b"\r\n\r\n")[2].decode()
        lines = [line.split(" ") for line in body.splitlines() if line[:1].isalpha()]
        return {pair[0]: float(pair[1]) for pair in lines if len(pair) == 2 and "{" not in pair[0]}


def _expiry() -> int:
    return int(time.time()) + _EXPIRES_S


def attackers_token() -> str:
    """Returns the token of the user whose credentials attackers have."""
    return token(sub="mallory", exp=_expiry())


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def configured(directory: Path, *, secure: bool) -> AttackedBookie:
    """Writes the settings of a bookie, and what it needs."""
    directory.mkdir()
    port, http_port, tls_port = _free_ports(3)
    text = _SETTINGS.format(directory=directory, port=port, http_port=http_port)
    if secure:
        authority = Authority(directory)
        certificate, key = authority.issue("bookie", "127.0.0.1", "localhost")
        keys = directory / "keys.pem"
        keys.write_bytes(public(ED))
        text += _SECURE_SETTINGS.format(
            certificate=certificate, key=key, authority=authority.file, keys=keys,
            tls_port=tls_port, mechanisms=list(MECHANISMS), audience=AUDIENCE, directory=directory,
        ).replace("'", '"')  # fmt: skip
    config = directory / "bookie.toml"
    config.write_text(text)
    for path in (config, directory / "keys.pem"):
        if path.exists():
            path.chmod(0o600)
    return AttackedBookie(
        name=directory.name, directory=directory, port=port, http_port=http_port,
        tls_port=tls_port if secure else 0,
    )  # fmt: skip


@asynccontextmanager
async def running(bookie: AttackedBookie, *, is_checked: bool) -> AsyncGenerator[None]:
    """Runs a bookie until the end of the block. With `is_checked` the interpreter looks for
    resources that are not closed, which takes twice as long."""
    checks = ("-X", "dev", "-W", "error") if is_checked else ()
    program = [sys.executable, "-P", *checks, "-m", "stream.cli"]
    command = [*program, "bookie", "run", "--config", str(bookie.directory / "bookie.toml")]
    with bookie.log.open("wb") as stderr:
        bookie.process = await trio.lowlevel.open_process(
            command, stdout=-1, stderr=stderr, env=environment()
        )
    process = bookie.process
    assert process.stdout is not None
    try:
        with trio.fail_after(120):
            ready = await process.stdout.receive_some()
        assert ready.startswith(b"ready "), bookie.log.read_text()
        yield
        process.terminate()
        with trio.move_on_after(60):
            await process.wait()
    finally:
        process.kill()
        await process.wait()


async def create_users(bookie: AttackedBookie) -> None:
    """Creates the users of a bookie that has some, and the ledgers of the attacker."""
    rng = random.SystemRandom()
    async with open_store(bookie.uri) as store:
        root = ClusterAddress.parse(bookie.uri).root
        for ledger_id in OWN_LEDGERS:
            assert STREAM_TAG in metadata_of(ledger_id, "m").custom
            await LedgerStore(store, root).create(metadata_of(ledger_id, "m"))
        for name in ("neighbour", "mallory"):
            salts = {mechanism: rng.randbytes(SALT_BYTES) for mechanism in HASHES}
            user = new_user(
                name, _PASSWORD, salts=salts, now_ms=time.time_ns() // 10**6,
                digest_md5=DIGEST_MD5 in MECHANISMS,
            )  # fmt: skip
            await UserStore(store).create(user)
        await Permissions(store).grant(
            [
                Grant("neighbour", Role.LEDGER),
                Grant("operator", Role.OPERATE),
                Grant("mallory", Role.MANAGE, "m"),
            ]
        )
