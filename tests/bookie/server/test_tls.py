"""A bookie encrypts by START_TLS and on a port of its own, and with TLS required only so."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.standalone.cluster import free_ports
from ledger.errors import BookieUnavailable, Status
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddResponse,
    AuthRequest,
    BatchReadRequest,
    ErrorResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
)
from tests.bookie.server.test_operations import exchange
from tests.bookie.server.test_server import DIGEST, KEY, SETTINGS, add
from tests.certificates import Authority
from tests.ledger.runtime.test_tls import counted_calls
from tests.real_cluster import RealCluster, real_cluster

TLS = v3.encode_request(Request(3, 9, StartTlsRequest()))


@asynccontextmanager
async def encrypted_cluster(
    authority: Authority, bookies: int = 1, **settings: Any
) -> AsyncIterator[RealCluster]:
    certificate, key = authority.issue("bookie", "127.0.0.1")
    given: dict[str, Any] = {"tls_certificate_file": str(certificate), "tls_key_file": str(key)}
    async with real_cluster(
        authority.directory, bookies, **(SETTINGS | given | settings)
    ) as cluster:
        yield cluster


def options(authority: Authority, mode: str = "start_tls", **more: Any) -> dict[str, Any]:
    patient = dict.fromkeys(("connect_timeout_s", "add_timeout_s", "read_timeout_s"), 60.0)
    return {"tls": mode, "tls_ca_file": str(authority.file)} | patient | more


async def write_and_read(cluster: RealCluster, **given: Any) -> None:
    quorums: dict[str, Any] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    async with (
        cluster.client(**given) as client,
        client.create_ledger(**quorums) as writer,
    ):
        for number in range(20):
            await writer.append(b"%d" % number * 5000)
        await writer.close()
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = [entry.payload for entry in await reader.read(0, 19)]
    assert [bytes(entry) for entry in entries] == [b"%d" % n * 5000 for n in range(20)]


async def receive(stream: trio.abc.ReceiveStream) -> bytes:
    data = b""
    with trio.fail_after(10):
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            received = await stream.receive_some(1 << 20)
            assert received, "the bookie closed the connection"
            data += received
    return data[4:]


@pytest.mark.parametrize("version", [2, 3])
async def test_a_client_encrypts_what_it_writes_and_reads(tmp_path: Path, version: int) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority, tls_required=True) as cluster:
        await write_and_read(cluster, wire_version=version, **options(authority))
        server = cluster.bookies[0].server
        assert server is not None
        assert server.tls is not None
        assert server.tls.statistics.handshakes >= 1
        assert server.tls.statistics.handshakes_failed == 0


async def test_a_thousand_adds_stay_within_their_budget_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What encryption costs beside its bytes: client and bookie together, acks included."""
    calls = counted_calls(monkeypatch)
    authority = Authority(tmp_path)
    one: dict[str, Any] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    async with (
        encrypted_cluster(authority, tls_required=True) as cluster,
        cluster.client(**options(authority)) as client,
        client.create_ledger(**one) as writer,
    ):
        await writer.append(b"first")
        calls.clear()
        for _ in range(1000):
            writer.append_nowait(bytes(100))
        await writer.flush()
    # 170 kB are three pieces of 64 KiB and eleven records of 16 KiB; acks are few.
    assert calls["write"] <= 12
    assert calls["read"] <= 25


async def test_without_a_certificate_start_tls_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        (answer,) = await exchange(cluster, TLS)
        assert v3.decode_response(answer).body == ErrorResponse(Status.BAD_REQUEST, pb.START_TLS)
        async with cluster.client(**options(authority)) as client:
            bookie = cluster.bookies[0].bookie_id
            with pytest.raises(BookieUnavailable, match=r"does not start TLS \(BAD_REQUEST\)"):
                await client.pool.wait_connected(bookie, 2)


async def test_clear_and_encrypted_clients_share_a_bookie_that_does_not_require(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority) as cluster:
        await write_and_read(cluster)
        await write_and_read(cluster, **options(authority))


REFUSED_V3: list[tuple[RequestBody, object]] = [
    (add(7, 0), AddResponse(Status.UNAUTHORIZED, 7, 0, 0)),
    (ReadRequest(7, 0, is_fencing=True, master_key=KEY), ReadResponse(Status.UNAUTHORIZED, 7, 0)),
    (AuthRequest("some.Plugin", b"token"), ErrorResponse(Status.UNAUTHORIZED, pb.AUTH)),
    (ForceLedgerRequest(7), ForceLedgerResponse(Status.UNAUTHORIZED, 7)),
    (GetBookieInfoRequest(3), None),
    (ListEntriesRequest(7), None),
    (ReadLacRequest(7), None),
    (WriteLacRequest(7, 3, KEY, DIGEST.encode_lac(7, 3)), None),
]


@pytest.mark.parametrize(("body", "expected"), REFUSED_V3)
async def test_nothing_is_carried_out_in_clear_where_tls_is_required(
    tmp_path: Path, body: RequestBody, expected: object
) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority, tls_required=True) as cluster:
        (answer,) = await exchange(cluster, v3.encode_request(Request(3, 1, body)))
        refused = v3.decode_response(answer).body
        assert refused.status is Status.UNAUTHORIZED
        assert expected is None or refused == expected
        storage = cluster.bookies[0].storage
        assert storage is not None
        assert storage.state(7) is None


async def test_adds_and_reads_of_v2_are_refused_in_clear_and_others_end_the_connection(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    adding = v2.encode_request(Request(2, 0, add(7, 0)))
    reading = v2.encode_request(Request(2, 0, ReadRequest(7, 0)))
    async with encrypted_cluster(authority, tls_required=True) as cluster:
        answers = await exchange(cluster, adding, adding, reading)
        statuses = [v2.decode_response(answer).body.status for answer in answers]
        assert statuses == [Status.UNAUTHORIZED] * 3
        for body in (BatchReadRequest(7, 0, 1, 100), AuthRequest("some.Plugin", b"")):
            async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
                await stream.send_all(v2.encode_request(Request(2, 0, body)))
                with trio.fail_after(5):
                    assert await stream.receive_some() == b""
        server = cluster.bookies[0].server
        assert server is not None
        assert server.tls is not None
        assert server.tls.statistics.refused_in_clear == 3
        storage = cluster.bookies[0].storage
        assert storage is not None
        assert storage.state(7) is None


async def test_requests_behind_start_tls_are_not_carried_out(tmp_path: Path) -> None:
    """They came in clear: a program in between could have added them."""
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority) as cluster:
        async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
            await stream.send_all(TLS + v3.encode_request(Request(3, 1, add(7, 0))))
            answer = v3.decode_response(await receive(stream)).body
            assert answer == StartTlsResponse(Status.OK)
            with trio.fail_after(5), contextlib.suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
        storage = cluster.bookies[0].storage
        assert storage is not None
        assert storage.state(7) is None


async def test_start_tls_is_the_first_request_or_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority) as cluster:
        adding = v3.encode_request(Request(3, 1, add(7, 0)))
        _, answer = await exchange(cluster, adding, TLS)
        assert v3.decode_response(answer).body == ErrorResponse(Status.BAD_REQUEST, pb.START_TLS)


async def test_a_slow_handshake_ends_in_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority, tls_handshake_ms_max=50) as cluster:
        async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
            await stream.send_all(TLS)
            await receive(stream)
            await stream.send_all(b"\x16\x03\x01")  # the beginning of a record
            with trio.fail_after(5):
                assert await stream.receive_some() == b""
        server = cluster.bookies[0].server
        assert server is not None
        assert server.tls is not None
        assert server.tls.statistics.handshakes_failed == 1
        await write_and_read(cluster, **options(authority))


@pytest.mark.parametrize(
    ("begins_days", "ends_days", "host", "cause"),
    [
        (-9.0, -1.0, "127.0.0.1", "certificate has expired"),
        (1.0, 9.0, "127.0.0.1", "certificate is not yet valid"),
        (-1.0, 9.0, "127.0.0.2", "IP address mismatch"),
    ],
)
async def test_a_client_says_what_is_wrong_with_a_certificate(
    tmp_path: Path, begins_days: float, ends_days: float, host: str, cause: str
) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority) as cluster:
        authority.issue("bookie", host, begins_days=begins_days, ends_days=ends_days)
        async with cluster.client(**options(authority)) as client:
            with pytest.raises(BookieUnavailable, match=cause):
                await client.pool.wait_connected(cluster.bookies[0].bookie_id, 2)


async def test_host_names_are_checked_unless_that_is_switched_off(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority) as cluster:
        authority.issue("bookie", "another.example")
        await write_and_read(cluster, **options(authority, tls_checks_host_names=False))


async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with (
        encrypted_cluster(authority) as cluster,
        cluster.client(**options(other)) as client,
    ):
        with pytest.raises(BookieUnavailable, match="unable to get local issuer certificate"):
            await client.pool.wait_connected(cluster.bookies[0].bookie_id, 2)


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    settings: dict[str, Any] = {
        "tls_client_certificate": "required",
        "tls_ca_file": str(authority.file),
    }
    async with encrypted_cluster(authority, **settings) as cluster:
        own, key = authority.issue("client")
        mine = {"tls_certificate_file": str(own), "tls_key_file": str(key)}
        await write_and_read(cluster, **options(authority, **mine))
        async with cluster.client(**options(authority)) as client:
            with pytest.raises(BookieUnavailable, match="certificate required"):
                await client.pool.call(
                    cluster.bookies[0].bookie_id, GetBookieInfoRequest(3), timeout_s=60
                )


async def test_an_authority_that_is_removed_signs_no_more_clients(tmp_path: Path) -> None:
    """Certificates are reloaded with the next handshake; connections that are open stay open."""
    authority, old = Authority(tmp_path), Authority(tmp_path, "old")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.file.read_bytes() + old.file.read_bytes())
    settings: dict[str, Any] = {"tls_client_certificate": "required", "tls_ca_file": str(both)}
    own, key = old.issue("client")
    given = options(authority, tls_certificate_file=str(own), tls_key_file=str(key))
    async with encrypted_cluster(authority, **settings) as cluster:
        bookie = cluster.bookies[0].bookie_id
        async with cluster.client(**given) as client, cluster.client(**given) as later:
            asked = GetBookieInfoRequest(3)
            assert (await client.pool.call(bookie, asked, timeout_s=60)).status is Status.OK
            both.write_bytes(authority.file.read_bytes())
            with pytest.raises(BookieUnavailable, match="unknown ca"):
                await later.pool.call(bookie, asked, timeout_s=60)
            assert (await client.pool.call(bookie, asked, timeout_s=60)).status is Status.OK


async def test_certificates_are_renewed_under_load(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with encrypted_cluster(authority) as cluster:
        server = cluster.bookies[0].server
        assert server is not None
        assert server.tls is not None
        quorums: dict[str, Any] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        async with (
            cluster.client(**options(authority)) as client,
            client.create_ledger(**quorums) as writer,
        ):
            for round_no in range(5):
                for number in range(50):
                    assert await writer.append(bytes(100)) == 50 * round_no + number
                authority.issue("bookie", "127.0.0.1", ends_days=400 + round_no)
                await write_and_read(cluster, **options(authority))
        assert server.tls.context.reloads == 5
        assert server.tls.context.reloads_failed == 0


async def test_a_proxy_that_strips_start_tls_gets_no_request(tmp_path: Path) -> None:
    """It answers for the bookie that there is no TLS, and would pass on the rest in clear."""
    authority = Authority(tmp_path)
    received: list[bytes] = []

    async def strip(stream: trio.SocketStream) -> None:
        frame = await receive(stream)
        request = v3.decode_request(frame)
        assert isinstance(request.body, StartTlsRequest)
        refusal = ErrorResponse(Status.BAD_REQUEST, pb.START_TLS)
        await stream.send_all(v3.encode_response(Response(3, request.txn_id, refusal)))
        received.append(await stream.receive_some())

    async with encrypted_cluster(authority) as cluster, trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, strip, listeners)
        port = listeners[0].socket.getsockname()[1]
        async with cluster.client(**options(authority)) as client:
            with pytest.raises(BookieUnavailable, match="does not start TLS"):
                await client.pool.wait_connected(f"127.0.0.1:{port}", 2)
        with trio.fail_after(5):
            while not received:
                await trio.lowlevel.checkpoint()
        assert received == [b""]
        nursery.cancel_scope.cancel()


async def test_a_port_for_tls_is_published_and_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (port,) = free_ports(1)
    async with encrypted_cluster(authority, tls_port=port, tls_required=True) as cluster:
        bookie = cluster.bookies[0]
        info = await bookie.registry.info(bookie.bookie_id)
        assert info is not None
        assert (info.starts_tls, info.tls_port) == (True, port)
        await write_and_read(cluster, **options(authority, "direct"))
        server = bookie.server
        assert server is not None
        assert server.tls is not None
        assert server.tls.statistics.handshakes >= 1
        # Nothing in clear is understood there, and costs no more than its connection.
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(v3.encode_request(Request(3, 1, add(7, 0))))
            with trio.fail_after(5), contextlib.suppress(trio.BrokenResourceError):
                async for data in stream:
                    assert data[:1] == b"\x15"  # an alert
        while server.statistics().connections:
            await trio.lowlevel.checkpoint()
        assert server.statistics().tls.handshakes_failed == 1


async def test_a_direct_client_says_that_a_bookie_has_no_port_for_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        encrypted_cluster(authority) as cluster,
        cluster.client(**options(authority, "direct")) as client,
    ):
        with pytest.raises(BookieUnavailable, match="publishes no port for TLS"):
            await client.pool.wait_connected(cluster.bookies[0].bookie_id, 2)
