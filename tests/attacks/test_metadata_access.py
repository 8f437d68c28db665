"""Attackers that reach the metadata: nodes of ZooKeeper, its server, and a bookie of their own."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from bookie.standalone.zookeeper_server import CONNECTIONS_MAX
from ledger.errors import LedgerError, Status
from ledger.metastore import open_store
from ledger.metastore.bookies import BookieInfo, BookieRegistry, encode_info
from ledger.metastore.zookeeper.access import ZooKeeperAccess
from ledger.wire import v3
from ledger.wire.messages import Response, StartTlsRequest, StartTlsResponse
from tests.attacks.attackers import may_open_many_files
from tests.attacks.clusters import AttackedCluster, append
from tests.certificates import Authority
from tests.conftest import skip_without_zookeeper
from tests.stream.whole_streams import read_values
from tests.system.cluster import PATIENCE_S, StandaloneCluster

pytestmark = pytest.mark.system


# ---- ZooKeeper


@pytest.fixture(scope="module")
def on_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster of one bookie with a ZooKeeper of its own, whose nodes are their creators'."""
    skip_without_zookeeper()
    may_open_many_files()
    directory = tmp_path_factory.mktemp("zookeeper")
    credentials = directory / "credentials"
    credentials.write_text("bookies:the password\n")
    credentials.chmod(0o600)
    access = {
        "LEDGERSTREAM_ZOOKEEPER_ACL": "creator",
        "LEDGERSTREAM_ZOOKEEPER_CREDENTIALS_FILE": str(credentials),
    }
    options = ("--metadata", "zookeeper")
    cluster = StandaloneCluster(directory / "c", 1, options, access, umask=0)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def zookeeper_of(cluster: StandaloneCluster) -> tuple[str, int]:
    host, _, port = cluster.uri.removeprefix("zk://").partition("/")[0].partition(":")
    return host, int(port)


def every_node(client: KazooClient, path: str = "") -> Iterator[str]:
    for name in client.get_children(path or "/"):
        if f"{path}/{name}" != "/zookeeper":
            yield f"{path}/{name}"
            yield from every_node(client, f"{path}/{name}")


@pytest.mark.zookeeper
def test_no_node_is_open_to_others(on_zookeeper: StandaloneCluster) -> None:
    host, port = zookeeper_of(on_zookeeper)
    ours = KazooClient(f"{host}:{port}", auth_data=[("digest", "bookies:the password")])
    theirs = KazooClient(f"{host}:{port}", auth_data=[("digest", "stranger:a password")])
    ours.start(PATIENCE_S)
    theirs.start(PATIENCE_S)
    try:
        nodes = list(every_node(ours))
        bookie = f"127.0.0.1:{on_zookeeper.ports()[0]}"
        assert f"/ledgers/available/{bookie}" in nodes
        for path in nodes:
            assert {one.id.scheme for one in ours.get_acls(path)[0]} == {"digest"}, path
            for attempt in (theirs.get, theirs.get_children):
                with pytest.raises(NoAuthError):
                    attempt(path)
            with pytest.raises(NoAuthError):
                theirs.set(path, b"forged")
            with pytest.raises(NoAuthError):
                theirs.create(f"{path}/a-node", b"")
        with pytest.raises(NoAuthError):
            theirs.delete(f"/ledgers/available/{bookie}")
    finally:
        for client in (ours, theirs):
            client.stop()
            client.close()


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "access",
    [ZooKeeperAccess(), ZooKeeperAccess(credentials="bookies:another password", acl="creator")],
    ids=["nobody", "wrong password"],
)
async def test_a_bookie_without_the_right_cannot_register(
    on_zookeeper: StandaloneCluster, access: ZooKeeperAccess
) -> None:
    uri = on_zookeeper.uri
    for bookie_id in ("127.0.0.1:1", f"127.0.0.1:{on_zookeeper.ports()[0]}"):
        with pytest.raises(LedgerError):
            async with (
                open_store(uri, access=access, may_create=True) as store,
                BookieRegistry(store).register(
                    bookie_id, BookieInfo("127.0.0.1", 1), takeover_timeout_s=0.5
                ),
            ):
                pytest.fail("it was registered")


@pytest.mark.zookeeper
def test_the_server_lists_nothing(on_zookeeper: StandaloneCluster) -> None:
    for command in (b"cons", b"dump", b"mntr", b"wchp"):
        with socket.create_connection(zookeeper_of(on_zookeeper), PATIENCE_S) as connection:
            connection.sendall(command)
            assert b"not in the whitelist" in connection.recv(4096)
    data = on_zookeeper.directory / "zookeeper" / "data"
    assert {path.stat().st_mode & 0o077 for path in (data, *data.rglob("*"))} == {0}


@pytest.mark.slow  # its queue of new connections is short
@pytest.mark.zookeeper
def test_the_server_has_bounded_connections(on_zookeeper: StandaloneCluster) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            connection = socket.create_connection(zookeeper_of(on_zookeeper), PATIENCE_S)
            stack.enter_context(connection)
        connection.settimeout(PATIENCE_S)
        assert connection.recv(1) == b"", "more connections than the limit"


# ---- a hostile bookie


class HostileBookie:
    """A server that agrees to start TLS, with a certificate that is not for its host, and records
    what clients send after that."""

    def __init__(self, certificate: tuple[Path, Path]) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*certificate)
        self.received: list[bytes] = []
        self.refused = trio.Event()
        self.port = 0

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._talk, [listener])

    async def _talk(self, stream: trio.SocketStream) -> None:
        try:
            request = await stream.receive_some(4096)
            if not isinstance(v3.decode_request(request[4:]).body, StartTlsRequest):
                self.received.append(request)
            await stream.send_all(_start_tls_accepted(request[4:]))
            encrypted = trio.SSLStream(stream, self.context, server_side=True)
            self.received.append(bytes(await encrypted.receive_some(4096)))
        except trio.BrokenResourceError:
            self.refused.set()
        finally:
            await trio.aclose_forcefully(stream)


def _start_tls_accepted(request: bytes) -> bytes:
    answer = Response(3, v3.decode_request(request).txn_id, StartTlsResponse(Status.OK))
    return v3.encode_response(answer)


@asynccontextmanager
async def hostile_bookie(certificate: tuple[Path, Path]) -> AsyncIterator[HostileBookie]:
    hostile = HostileBookie(certificate)
    async with trio.open_nursery() as nursery:
        await nursery.start(hostile.serve)
        yield hostile
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("signed_by", ["another authority", "ours, for another name"])
@pytest.mark.parametrize("is_new", [True, False], ids=["its own id", "the id of another"])
async def test_a_hostile_bookie_that_is_registered_gains_nothing(
    secured_cluster: AttackedCluster, tmp_path: Path, signed_by: str, is_new: bool
) -> None:
    """Not even with the right to write the metadata: its certificate is not for the host."""
    if signed_by == "another authority":
        certificate = Authority(tmp_path).issue("hostile", "127.0.0.1")
    else:  # of a client
        certificate = secured_cluster.security / "admin.pem", secured_cluster.security / "admin.key"
    stream = f"hostile-{signed_by.split()[0].strip(',')}-{is_new}"
    async with (
        hostile_bookie(certificate) as hostile,
        open_store(secured_cluster.processes.uri) as store,
    ):
        data = encode_info(BookieInfo("127.0.0.1", hostile.port, starts_tls=True))
        taken = secured_cluster.bookie_id(2)
        path = f"/ledgers/available/{f'127.0.0.1:{hostile.port}' if is_new else taken}"
        if is_new:
            await store.create(path, data, is_ephemeral=True)
        else:
            node = await store.get(path)
            await store.put(path, data, node.version)
        try:
            with trio.fail_after(60):
                while not hostile.refused.is_set():  # it is in the ensemble of one of them
                    async with secured_cluster.namespace() as namespace:
                        await append(namespace, stream, [b"secret"])
                async with secured_cluster.namespace() as namespace:
                    assert set(await read_values(namespace, stream)) == {b"secret"}
            assert hostile.received == []
        finally:
            if not is_new:
                await store.put(path, node.data, (await store.get(path)).version)
