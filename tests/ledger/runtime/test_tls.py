"""An encrypted transport keeps the promises of any transport, over real sockets and slow ones."""

from __future__ import annotations

import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.runtime.certificates import TlsContext, TlsFiles, client_context, server_context
from ledger.runtime.network import PeerCertificate, TcpTransport, Transport
from ledger.runtime.tls import TlsTransport, new_scratch, open_tls
from tests.certificates import Authority


class Contexts:
    def __init__(self, directory: Path, client_certificate: str = "none") -> None:
        self.authority = Authority(directory)
        certificate, key = self.authority.issue("server", "127.0.0.1")
        own, own_key = self.authority.issue("client", unit="writers")
        authorities = str(self.authority.file)
        self.server = TlsContext(
            TlsFiles(
                certificate=str(certificate),
                key=str(key),
                authorities=authorities if client_certificate != "none" else "",
            ),
            partial(server_context, client_certificate),
            is_server=True,
        ).current()
        self.client = TlsContext(
            TlsFiles(certificate=str(own), key=str(own_key), authorities=authorities),
            partial(client_context, checks_host_names=True),
        ).current()


class Reluctant:
    """A transport that accepts and returns only few bytes, or none, by chance."""

    peer = "reluctant"
    peer_certificate = None

    def __init__(self, inner: Transport, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng

    def send(self, data: bytes | bytearray | memoryview) -> int:
        if self._rng.random() < 0.5:
            raise BlockingIOError
        return self._inner.send(memoryview(data)[: self._rng.randint(1, 20_000)])

    def recv_into(self, buffer: memoryview) -> int:
        if self._rng.random() < 0.3:
            raise BlockingIOError
        return self._inner.recv_into(buffer[: self._rng.randint(1, 20_000)])

    async def wait_readable(self) -> None:
        await self._inner.wait_readable()

    async def wait_writable(self) -> None:
        await self._inner.wait_writable()

    def end_sending(self) -> None:
        self._inner.end_sending()

    def close(self) -> None:
        self._inner.close()


@asynccontextmanager
async def pair(
    contexts: Contexts, rng: random.Random | None = None
) -> AsyncIterator[tuple[TlsTransport, TlsTransport]]:
    left, right = socket.socketpair()
    here: Transport = TcpTransport(left)
    there: Transport = TcpTransport(right)
    if rng is not None:
        here, there = Reluctant(here, rng), Reluctant(there, rng)
    opened: dict[str, TlsTransport] = {}

    async def serve() -> None:
        opened["server"] = await open_tls(there, contexts.server, new_scratch(), is_server=True)

    async def connect() -> None:
        opened["client"] = await open_tls(
            here, contexts.client, new_scratch(), server_hostname="127.0.0.1"
        )

    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                nursery.start_soon(connect)
        yield opened["client"], opened["server"]
    finally:
        here.close()
        there.close()


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Returns how often anything in this process encrypts and decrypts from now on."""
    calls: Counter[str] = Counter()
    for name in ("read", "write"):
        method = getattr(ssl.SSLObject, name)

        def counting(*given: Any, name: str = name, method: Any = method) -> Any:
            calls[name] += 1
            return method(*given)

        monkeypatch.setattr(ssl.SSLObject, name, counting)
    return calls


async def send_all(transport: Transport, data: bytes, rng: random.Random) -> None:
    """Sends pieces as a queue does: what was not accepted comes first, and may have grown."""
    sent = 0
    while sent < len(data):
        size = rng.choice((1, 2, 100, 16_384, 70_000, 300_000))
        try:
            sent += transport.send(memoryview(data)[sent : sent + size])
        except BlockingIOError:
            await transport.wait_writable()


async def receive_all(transport: Transport, size: int, rng: random.Random) -> bytes:
    received = bytearray()
    space = memoryview(bytearray(200_000))
    while len(received) < size:
        await transport.wait_readable()
        try:
            count = transport.recv_into(space[: rng.choice((1, 1000, 16_384, 200_000))])
        except BlockingIOError:
            continue
        assert count, "the connection ended early"
        received += space[:count]
    return bytes(received)


@pytest.mark.parametrize("seed", range(6))
async def test_bytes_arrive_once_and_in_order_whatever_the_socket_accepts(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    there, back = rng.randbytes(1_000_000), rng.randbytes(300_000)
    async with pair(Contexts(tmp_path), rng if seed else None) as (client, server):
        got: dict[str, bytes] = {}

        async def receive(transport: Transport, size: int, name: str) -> None:
            got[name] = await receive_all(transport, size, rng)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_all, client, there, rng)
                nursery.start_soon(send_all, server, back, rng)
                nursery.start_soon(receive, server, len(there), "there")
                nursery.start_soon(receive, client, len(back), "back")
        assert got["there"] == there
        assert got["back"] == back


async def test_a_gathered_send_is_sent_in_one_piece(tmp_path: Path) -> None:
    async with pair(Contexts(tmp_path)) as (client, server):
        sizes: list[int] = []
        inner = client._inner

        class Counting(Reluctant):
            def send(self, data: bytes | bytearray | memoryview) -> int:
                sizes.append(len(data))
                return inner.send(data)

        client._inner = Counting(inner, random.Random(1))
        assert client.send(bytes(60_000)) == 60_000
        assert len(sizes) == 1  # four records
        space = memoryview(bytearray(100_000))
        await server.wait_readable()
        assert server.recv_into(space) == 60_000


async def test_a_record_costs_one_read_and_a_piece_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget: a further read, which finds nothing, raises and costs more than that of a small
    record."""
    calls = counted_calls(monkeypatch)
    space = memoryview(bytearray(100_000))
    async with pair(Contexts(tmp_path)) as (client, server):
        for size, records in ((100, 1), (16 * 1024, 1), (60_000, 4)):
            calls.clear()
            assert client.send(bytes(size)) == size
            await server.wait_readable()
            assert server.recv_into(space) == size
            assert calls == {"write": 1, "read": records}
        with pytest.raises(BlockingIOError):
            server.recv_into(space)
        # Into a small buffer: what is left is read without the socket, and then nothing is.
        client.send(b"question")
        await server.wait_readable()
        calls.clear()
        assert [server.recv_into(space[:4]), server.recv_into(space[:4])] == [4, 4]
        assert calls["read"] == 2


async def test_after_the_end_of_sending_the_rest_arrives_and_then_the_end(tmp_path: Path) -> None:
    async with pair(Contexts(tmp_path)) as (client, server):
        client.send(b"question")
        server.send(b"answer")
        server.end_sending()
        space = memoryview(bytearray(100))
        with trio.fail_after(5):
            assert await receive_all(client, 6, random.Random(1)) == b"answer"
            await client.wait_readable()
            assert client.recv_into(space) == 0
            assert client.recv_into(space) == 0
            assert await receive_all(server, 8, random.Random(1)) == b"question"


async def test_a_client_certificate_is_known_to_the_server(tmp_path: Path) -> None:
    async with pair(Contexts(tmp_path, "required")) as (client, server):
        assert server.peer_certificate == PeerCertificate(
            common_name="client", organizational_units=("writers",)
        )
        assert client.peer_certificate is not None
        assert client.peer_certificate.ip_addresses == ("127.0.0.1",)
        assert client.version == "TLSv1.3"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_older_versions_are_not_spoken(tmp_path: Path) -> None:
    contexts = Contexts(tmp_path)
    contexts.client.minimum_version = ssl.TLSVersion.TLSv1
    contexts.client.maximum_version = ssl.TLSVersion.TLSv1_1
    contexts.client.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ExceptionGroup) as caught:
        async with pair(contexts):
            pass
    assert caught.group_contains(ssl.SSLError)


async def test_a_forged_record_breaks_the_connection(tmp_path: Path) -> None:
    async with pair(Contexts(tmp_path)) as (client, server):
        inner = client._inner

        class Forging(Reluctant):
            def send(self, data: bytes | bytearray | memoryview) -> int:
                changed = bytearray(data)
                changed[-1] ^= 1
                return inner.send(changed)

        client._inner = Forging(inner, random.Random(1))
        client.send(b"question")
        await server.wait_readable()
        with pytest.raises(ssl.SSLError):
            server.recv_into(memoryview(bytearray(100)))
