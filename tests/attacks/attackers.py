"""Attackers: what they send, and as whom.

- `open`: a peer of a cluster that serves everybody; it knows the passwords of all ledgers.
- `in clear`: a peer of a secured cluster that does not encrypt.
- `anonymous`: one that encrypts, and proves nothing.
- `tenant`: a user with a right password, and rights on another namespace only.
- `insider`: a user with the role `write` on the namespace that is attacked.
"""

from __future__ import annotations

import random
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from ledger.connection.authentication import authenticate
from ledger.connection.connection import BookieConnection
from ledger.connection.encryption import ClientTls
from ledger.connection.mechanisms import CredentialsProvider
from ledger.errors import BookieUnavailable, LedgerError, Status
from ledger.runtime.network import TcpNetwork, TcpTransport, Transport
from ledger.wire.messages import RequestBody
from tests.attacks.clusters import INSIDER, OWNER, TENANT, AttackedCluster
from tests.system.cluster import memory_bytes

KINDS = ("open", "in clear", "anonymous", "tenant", "insider")
SOURCES = tuple(f"127.0.0.{number}" for number in range(2, 8))
"""Addresses of attackers; clients have 127.0.0.1."""
_AT_ONCE = 16


def attackers(*kinds: str) -> pytest.MarkDecorator:
    """A test for each of these kinds; it takes the fixture `attacker`."""
    return pytest.mark.parametrize("attacker", kinds, indirect=True)


@dataclass(frozen=True)
class Attacker:
    target: AttackedCluster
    kind: str

    @property
    def may_write(self) -> bool:
        """Whether bookies take its requests for those of a client of the victim's namespace."""
        return self.kind in ("open", "insider")

    @property
    def user(self) -> str | None:
        return {"tenant": TENANT, "insider": INSIDER}.get(self.kind)

    @asynccontextmanager
    async def connection(self, bookie: int, version: int = 2) -> AsyncIterator[BookieConnection]:
        """A connection for whole requests."""
        async with connected(self.target, bookie, version, self._tls(), self._provider()) as it:
            yield it

    async def ask(self, connection: BookieConnection, body: RequestBody) -> Status | None:
        """Returns the status of the answer; None: the bookie closed the connection instead."""
        try:
            return (await connection.call(body, 10)).status
        except BookieUnavailable:
            return None

    def _tls(self) -> ClientTls | None:
        return None if self.kind in ("open", "in clear") else tls_of(self.target)

    def _provider(self) -> CredentialsProvider | None:
        return provider_of(self.target, self.user)

    @asynccontextmanager
    async def flood(
        self, bookie: int, count: int, data: bytes = b"", sources: tuple[str, ...] = SOURCES
    ) -> AsyncIterator[list[Transport]]:
        """Opens connections that stay, sends `data` over each as far as it is taken, and reads
        nothing."""
        held: list[Transport] = []
        turns, tls, provider = trio.CapacityLimiter(_AT_ONCE), self._tls(), self._provider()

        async def one(source: str) -> None:
            async with turns:
                with suppress(OSError, LedgerError, trio.TooSlowError):
                    held.append(transport := await self._raw(bookie, source, tls, provider))
                    rest = memoryview(data)
                    with suppress(BlockingIOError):
                        while rest:
                            rest = rest[transport.send(rest) :]

        try:
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    nursery.start_soon(one, sources[number % len(sources)])
            yield held
        finally:
            for transport in held:
                transport.close()

    async def _raw(
        self,
        bookie: int,
        source: str,
        tls: ClientTls | None,
        provider: CredentialsProvider | None,
    ) -> Transport:
        address = self.target.address(bookie)
        connected = socket.create_connection(address, 30, (source, 0))
        transport: Transport = TcpTransport(connected)
        try:
            with trio.fail_after(30):
                if tls is not None:
                    name = self.target.bookie_id(bookie)
                    transport = await tls.encrypt(transport, name, address[0])
                    if provider is not None:
                        await authenticate(transport, name, 2, provider)
        except BaseException:
            transport.close()
            raise
        return transport


def tls_of(cluster: AttackedCluster) -> ClientTls | None:
    return ClientTls.of(cluster.options(None))


def provider_of(cluster: AttackedCluster, user: str | None) -> CredentialsProvider | None:
    credentials = cluster.options(user).credentials
    if credentials is None:
        return None
    return CredentialsProvider(credentials, random.SystemRandom())


@asynccontextmanager
async def connected(
    cluster: AttackedCluster,
    bookie: int,
    version: int,
    tls: ClientTls | None,
    provider: CredentialsProvider | None,
) -> AsyncIterator[BookieConnection]:
    async def resolve(_: str) -> tuple[str, int]:
        return cluster.address(bookie)

    connection = BookieConnection(
        cluster.bookie_id(bookie),
        version,
        outbox_bytes_max=16 << 20,
        tls=tls,
        auth=lambda: provider,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, TcpNetwork(), resolve, 10.0)
        await connection.wait_connected()
        yield connection
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def neighbor(cluster: AttackedCluster, bookie: int) -> AsyncIterator[BookieConnection]:
    """A new connection of the victim's owner to one bookie."""
    async with connected(
        cluster, bookie, 2, tls_of(cluster), provider_of(cluster, OWNER)
    ) as connection:
        yield connection


# ---- what an attack costs


@contextmanager
def memory_grows_by_at_most(cluster: AttackedCluster, bookie: int, most: int) -> Iterator[None]:
    """Fails if the process of a bookie has `most` bytes more at any time during the block."""
    pid = cluster.processes.pid_of(bookie)
    before = memory_bytes(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # VmHWM counts from here
    yield
    assert cluster.processes.pid_of(bookie) == pid, "the bookie died, and was started again"
    grown = memory_bytes(pid, "VmHWM") - before
    assert grown <= most, f"the bookie grew by {grown >> 20} MiB, at most {most >> 20} are allowed"


def may_open_many_files() -> None:
    """Raises the limit of descriptors of this process, which has the other ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
