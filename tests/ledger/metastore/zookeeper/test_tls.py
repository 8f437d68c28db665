"""A session over TLS with a real ZooKeeper; what ends TLS in front of it is a proxy."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ledger.errors import MetadataUnavailable
from ledger.metastore.zookeeper.store import open_zookeeper
from ledger.options import ClientOptions
from ledger.runtime.certificates import TlsContext, client_tls
from tests.certificates import Authority
from tests.zookeeper import RunningZooKeeper

pytestmark = pytest.mark.zookeeper


@asynccontextmanager
async def ending_tls(authority: Authority, address: str, host: str) -> AsyncIterator[str]:
    """Yields the address of a cluster that is reached over TLS alone."""
    certificate, key = authority.issue("zookeeper", host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server, _, port = address.rpartition(":")

    async def pump(source: trio.abc.ReceiveStream, target: trio.abc.SendStream) -> None:
        async for data in source:
            await target.send_all(data)

    async def serve(client: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            async with (
                await trio.open_tcp_stream(server, int(port)) as inside,
                client,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(pump, inside, client)
                await pump(client, inside)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        clear = await trio.open_tcp_listeners(0, host="127.0.0.1")
        listeners = [trio.SSLListener(one, context) for one in clear]
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        bound = clear[0].socket.getsockname()[1]
        yield f"zk://127.0.0.1:{bound}/encrypted/ledgers"
        nursery.cancel_scope.cancel()


def tls_of(authority: Authority) -> TlsContext:
    return client_tls(ClientOptions(metadata_tls=True, tls_ca_file=str(authority.file)))


async def test_a_session_works_over_tls(shared_zookeeper: RunningZooKeeper, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        ending_tls(authority, shared_zookeeper.address, "127.0.0.1") as uri,
        open_zookeeper(uri, session_timeout_ms=20_000, tls=tls_of(authority)) as store,
    ):
        # Many replies in one record of TLS: what is decrypted must not wait for more to arrive.
        with trio.fail_after(60):
            await store.create("/nodes", b"")
            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(store.create, f"/nodes/{number}", bytes(2000))
            assert len(await store.children("/nodes")) == 200
            assert (await store.get("/nodes/7")).data == bytes(2000)


@pytest.mark.parametrize(
    ("host", "is_known", "cause"),
    [
        ("127.0.0.2", True, "IP address mismatch"),
        ("127.0.0.1", False, "unable to get local issuer certificate"),
    ],
)
async def test_a_server_without_the_right_certificate_is_not_used(
    shared_zookeeper: RunningZooKeeper, tmp_path: Path, host: str, is_known: bool, cause: str
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    tls = tls_of(authority if is_known else other)
    async with ending_tls(authority, shared_zookeeper.address, host) as uri:
        with pytest.raises(MetadataUnavailable, match=f"TLS: its certificate.*{cause}"):
            async with open_zookeeper(uri, session_timeout_ms=2000, tls=tls):
                raise AssertionError("a session was opened")
