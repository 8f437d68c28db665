"""A fixed script of calls of Apache's Java client, against one bookie behind a recording proxy.

Ensembles have one bookie, and each call waits for the previous one, so that the same calls give the
same frames. Each conversation has a new cluster, so that ledger ids start again, too.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient

from ledger.metastore.bookies import BookieInfo, encode_info
from ledger.proto import bookkeeper_protocol_pb2 as pb
from tests.golden.conversation import Event, is_v3
from tests.interop.conftest import init_cluster
from tests.interop.java_client import JavaClient, JavaError, JavaVm, payload
from tests.interop.wire.recording_proxy import RecordingProxy

PASSWORD = b"secret of the ledger"
DIGESTS = ("CRC32", "MAC", "CRC32C", "DUMMY")
ALONE: dict[str, Any] = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


def register(zookeeper_address: str, root: str, proxy: RecordingProxy) -> None:
    """Registers the proxy in the cluster instead of the bookie."""
    zookeeper = KazooClient(hosts=zookeeper_address)
    zookeeper.start()
    try:
        info = encode_info(BookieInfo("127.0.0.1", proxy.port))
        zookeeper.create(f"{root}/available/{proxy.bookie_id}", info)
    finally:
        zookeeper.stop()
        zookeeper.close()


class Script:
    """One conversation. `has_batch_reads` means that the client is 4.17 or newer."""

    def __init__(
        self,
        vm: JavaVm,
        proxy: RecordingProxy,
        uris: tuple[str, str],
        *,
        v2: bool,
        has_batch_reads: bool,
        directory: Path,
    ) -> None:
        """`uris` are two clusters whose only bookie is the proxy; `directory` is empty."""
        self._vm = vm
        self._proxy = proxy
        self._uris = uris
        self._v2 = v2
        self._has_batch_reads = has_batch_reads
        self._directory = directory

    async def play(self) -> None:
        async with self._client() as writer, self._client() as reader:
            await self._write_and_read(writer)
            await self._read_what_is_open(writer, reader)
            await self._fence(writer, reader)
            await self._long_poll(writer, reader)
            if self._has_batch_reads:
                await self._batch_read(writer)
            if not self._v2:
                await self._deferred_sync(writer)
                await self._entries_of_ledger(writer)
            await self._do("bookie info", reader.call("bookie_info"))
        await self._explicit_lac()
        await self._wrong_key()
        await self._authenticate()
        await self._start_tls()

    @asynccontextmanager
    async def _client(self, cluster: int = 0, **settings: Any) -> AsyncIterator[JavaClient]:
        async with JavaClient.open(
            self._vm, self._uris[cluster], v2=self._v2, **settings
        ) as client:
            yield client

    async def _do(self, call: str, made: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        self._proxy.call = call
        return await made

    async def _fails(self, call: str, made: Awaitable[dict[str, Any]], name: str) -> None:
        self._proxy.call = call
        with pytest.raises(JavaError) as caught:
            await made
        assert caught.value.name == name, f"{call}: {caught.value}"

    async def _create(self, client: JavaClient, digest: str = "CRC32C", **more: Any) -> Any:
        return await client.call("create", digest=digest, password=PASSWORD, **ALONE, **more)

    async def _open(self, client: JavaClient, ledger: int, **more: Any) -> Any:
        return await client.call("open", ledger=ledger, digest="CRC32C", password=PASSWORD, **more)

    async def _append(self, client: JavaClient, call: str, handle: int, *sizes: int) -> None:
        for size in sizes:
            data = payload(1, size, size)
            await self._do(call, client.call("append", handle=handle, data=data))

    async def _write_and_read(self, writer: JavaClient) -> None:
        for digest in DIGESTS:
            made = await self._create(writer, digest)
            await self._append(writer, f"add, {digest}", made["handle"], 0, 1, 300)
            self._proxy.call = f"read, {digest}"
            await writer.read(made["handle"], 0, 2)
            await self._do(f"close, {digest}", writer.call("close", handle=made["handle"]))
        made = await self._create(writer, adv=True)
        for entry in (1, 2, 0):
            self._proxy.call = "add with an id of one's own"
            since = len(self._proxy.events)
            answer = writer.vm.request("write", handle=made["handle"], entry=entry, data=b"x")
            await self._proxy.wait_for(lambda event: not event.is_request, since)
        answer.result()

    async def _read_what_is_open(self, writer: JavaClient, reader: JavaClient) -> None:
        made = await self._create(writer)
        ledger = made["ledger"]
        opened = await self._do(
            "open without recovery, unknown ledger", self._open(reader, ledger, recovery=False)
        )
        handle = opened["handle"]
        await self._do("read LAC, unknown ledger", reader.call("read_lac", handle=handle))
        await self._append(writer, "add", made["handle"], 10, 20)
        for op in ("read_lac", "try_read_lac", "explicit_lac"):
            await self._do(op.replace("_", " "), reader.call(op, handle=handle))
        unconfirmed = {"handle": handle, "first": 0, "last": 1}
        await self._do("read unconfirmed", reader.call("read_unconfirmed", **unconfirmed))
        missing = {"handle": handle, "first": 2, "last": 2}
        await self._fails(
            "read a missing entry", reader.call("read_unconfirmed", **missing), "NoSuchEntry"
        )

    async def _fence(self, writer: JavaClient, reader: JavaClient) -> None:
        made = await self._create(writer)
        await self._append(writer, "add", made["handle"], 5, 6, 7)
        opened = await self._do("open with recovery", self._open(reader, made["ledger"]))
        assert (opened["lac"], opened["closed"]) == (2, True)
        await self._fails(
            "add after the fence",
            writer.call("append", handle=made["handle"], data=b"late"),
            "LedgerFenced",
        )
        self._proxy.call = "read a recovered ledger"
        await reader.read(opened["handle"], 0, 2)
        empty = await self._create(writer)
        await self._do("open an empty ledger with recovery", self._open(reader, empty["ledger"]))
        await self._fails(
            "add to an empty ledger that is fenced",
            writer.call("append", handle=empty["handle"], data=b"late"),
            "LedgerFenced",
        )

    async def _long_poll(self, writer: JavaClient, reader: JavaClient) -> None:
        made = await self._create(writer)
        writing = made["handle"]
        opened = await self._do(
            "open without recovery", self._open(reader, made["ledger"], recovery=False)
        )
        handle = opened["handle"]
        await self._fails(
            "long poll, unknown ledger",
            reader.call("long_poll", handle=handle, entry=0, timeout_ms=50),
            "NoSuchLedgerExists",
        )
        await self._append(writer, "add", writing, 30)
        await self._do("read LAC", reader.call("try_read_lac", handle=handle))
        await self._do(
            "long poll, no news", reader.call("long_poll", handle=handle, entry=0, timeout_ms=50)
        )

        async def append() -> None:
            await self._append(writer, "long poll woken by an add", writing, 40)

        await self._poll_meanwhile(reader, handle, "long poll woken by an add", 0, append)
        await self._append(writer, "add", writing, 50)
        await self._do(
            "long poll, news are there",
            reader.call("long_poll", handle=handle, entry=1, timeout_ms=5000),
        )

        async def fence() -> None:
            await self._do("long poll woken by a fence", self._open(writer, made["ledger"]))

        await self._poll_meanwhile(reader, handle, "long poll woken by a fence", 2, fence)

    async def _poll_meanwhile(
        self,
        reader: JavaClient,
        handle: int,
        call: str,
        entry: int,
        meanwhile: Callable[[], Awaitable[None]],
    ) -> None:
        """Waits for a parked poll; v2 has no long polls, so that the poll has ended by then."""
        since = len(self._proxy.events)

        async def poll() -> None:
            await self._do(
                call, reader.call("long_poll", handle=handle, entry=entry, timeout_ms=20_000)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            if self._v2:
                await self._proxy.wait_for(lambda event: not event.is_request, since)
            else:
                await self._proxy.wait_for(_is_parked_poll, since)
            await meanwhile()

    async def _batch_read(self, writer: JavaClient) -> None:
        made = await self._create(writer)
        handle = made["handle"]
        await self._append(writer, "add", handle, 100, 200, 300, 400)
        if not self._v2:
            return  # the client sends plain reads then
        batches = {
            "batch read": {"first": 0, "count": 3, "bytes": 1 << 20},
            "batch read bounded by size": {"first": 0, "count": 4, "bytes": 500},
            "batch read larger than the bound": {"first": 2, "count": 2, "bytes": 10},
            "batch read without bounds": {"first": 0, "count": 0, "bytes": 0},
        }
        for call, bounds in batches.items():
            await self._do(call, writer.call("batch_read", handle=handle, **bounds))

    async def _deferred_sync(self, writer: JavaClient) -> None:
        made = await self._create(writer, deferred_sync=True)
        await self._append(writer, "add with deferred sync", made["handle"], 60, 70)
        await self._do("force", writer.call("force", handle=made["handle"]))
        await self._do("close", writer.call("close", handle=made["handle"]))

    async def _entries_of_ledger(self, writer: JavaClient) -> None:
        made = await self._create(writer)
        where = {"bookie": self._proxy.bookie_id, "ledger": made["ledger"], "last": 5}
        await self._fails(
            "list entries of an unknown ledger",
            writer.call("entries_of_ledger", **where),
            "NoSuchLedgerExists",
        )
        await self._append(writer, "add", made["handle"], 80, 90)
        listed = await self._do("list entries", writer.call("entries_of_ledger", **where))
        assert listed["entries"] == [0, 1]

    async def _explicit_lac(self) -> None:
        async with (
            self._client(explicitLacInterval=20) as writer,
            self._client() as reader,
        ):
            made = await self._create(writer)
            since = len(self._proxy.events)
            await self._append(writer, "explicit LAC", made["handle"], 80)
            await self._proxy.wait_for(_is_write_lac_reply, since)
            opened = await self._do(
                "open without recovery", self._open(reader, made["ledger"], recovery=False)
            )
            response = await self._do(
                "read explicit LAC", reader.call("explicit_lac", handle=opened["handle"])
            )
            assert response["lac"] == 0

            async def append() -> None:
                """Writes an entry with the LAC before it: only the explicit LAC includes it."""
                since = len(self._proxy.events)
                call = "long poll woken by an explicit LAC"
                await self._append(writer, call, made["handle"], 81)
                await self._proxy.wait_for(_is_write_lac_reply, since)

            await self._poll_meanwhile(
                reader, opened["handle"], "long poll woken by an explicit LAC", 1, append
            )

    async def _wrong_key(self) -> None:
        """Uses the other cluster, whose first ledgers have ids that the bookie knows already."""
        async with self._client(cluster=1) as client:
            made = await client.call("create", digest="CRC32C", password=b"other", **ALONE)
            left_open = await client.call("create", digest="CRC32C", password=b"other", **ALONE)
            await self._fails(
                "add with a wrong key",
                client.call("append", handle=made["handle"], data=b"mine"),
                "UnauthorizedAccess",
            )
            await self._fails(
                "fence with a wrong key",
                client.call("open", ledger=left_open["ledger"], digest="CRC32C", password=b"other"),
                "UnauthorizedAccess",
            )

    async def _authenticate(self) -> None:
        plugin = "ledgerstream.interop.TokenAuth"
        async with self._client(clientAuthProviderFactoryClass=plugin) as client:
            made = await self._create(client)
            await self._append(client, "add by an authenticated client", made["handle"], 11)

    async def _start_tls(self) -> None:
        """Connects with TLS, which the bookie does not offer, so that the client refuses."""
        store, password = self._directory / "trusted.p12", self._directory / "password"
        await trio.to_thread.run_sync(_make_trust_store, store, password)
        async with self._client(
            tlsProvider="JDK",
            tlsProviderFactoryClass="org.apache.bookkeeper.tls.TLSContextFactory",
            tlsTrustStoreType="PKCS12",
            tlsTrustStore=store,
            tlsTrustStorePasswordPath=password,
        ) as client:
            made = await self._create(client)
            await self._fails(
                "start TLS",
                client.call("append", handle=made["handle"], data=b"secret"),
                "NotEnoughBookies",
            )


def _make_trust_store(store: Path, password: Path) -> None:
    """Makes a trust store: without it Apache's client does not even request TLS."""
    password.write_text("secret-store")
    options = "-alias any -dname CN=any -keyalg EC -storetype PKCS12 -storepass secret-store"
    subprocess.run(
        ["keytool", "-genkeypair", "-keystore", str(store), *options.split()],
        check=True,
        capture_output=True,
    )


def _is_parked_poll(event: Event) -> bool:
    if not event.is_request or not is_v3(event.frame):
        return False
    message = pb.Request()
    message.ParseFromString(event.frame)
    return message.readRequest.HasField("previousLAC")


def _is_write_lac_reply(event: Event) -> bool:
    if event.is_request or not is_v3(event.frame):
        return False
    message = pb.Response()
    message.ParseFromString(event.frame)
    return message.header.operation == pb.WRITE_LAC


async def converse(
    vm: JavaVm,
    zookeeper_address: str,
    uris: tuple[str, str],
    proxy: RecordingProxy,
    *,
    v2: bool,
    directory: Path,
) -> list[Event]:
    """Runs the script through the proxy in two new clusters; returns the conversation."""
    for uri in uris:
        await trio.to_thread.run_sync(init_cluster, vm, uri)
        root = uri.removeprefix(f"zk://{zookeeper_address}")
        await trio.to_thread.run_sync(register, zookeeper_address, root, proxy)
    has_batch_reads = not vm.version.startswith("4.16.")
    script = Script(vm, proxy, uris, v2=v2, has_batch_reads=has_batch_reads, directory=directory)
    await script.play()
    return list(proxy.events)
