"""The replies of a bookie to each operation have the same fields as those of Apache's bookie."""

from __future__ import annotations

import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from bookie.server.requests import AUTH_DISABLED_PLUGIN
from bookie.storage.ledger_storage import LedgerStorage
from ledger.core.availability import EntriesHeld, decode_entries_held
from ledger.errors import Status
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2, v3
from ledger.wire.messages import (
    FRAME_BYTES_MAX,
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    ErrorResponse,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    StartTlsRequest,
    WriteLacRequest,
    WriteLacResponse,
)
from tests.bookie.server.test_server import DIGEST, KEY, SETTINGS, Peer, add, entry_of, peer_of
from tests.real_cluster import RealCluster, real_cluster


def poll_after(known_lac: int, timeout_ms: int | None = 60_000) -> ReadRequest:
    return ReadRequest(7, -1, is_piggyback=True, previous_lac=known_lac, timeout_ms=timeout_ms)


async def exchange(cluster: RealCluster, *frames: bytes) -> list[bytes]:
    """Sends frames (with their lengths) over one connection, each after the reply to the
    previous."""
    replies = []
    async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
        for frame in frames:
            await stream.send_all(frame)
            data = b""
            with trio.fail_after(10):
                while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                    data += (received := await stream.receive_some(1 << 20))
                    assert received, "the bookie left"
            replies.append(data[4:])
    return replies


async def polled(
    peer: Peer, request: ReadRequest, meanwhile: Callable[[], Awaitable[object]]
) -> ReadResponse:
    """Returns the reply to a poll that waits until `meanwhile` has run."""
    answers: list[ReadResponse] = []

    async def poll() -> None:
        answers.append(await peer.ask(ReadResponse, request, 3, timeout_s=60))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked()
            assert not answers, "the poll did not wait"
            await meanwhile()
    return answers[0]


# ---- reads


@pytest.mark.parametrize("version", [2, 3])
async def test_only_minus_one_means_the_last_entry(tmp_path: Path, version: int) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for entry_id in range(3):
            await peer.ask(AddResponse, add(7, entry_id), version)
        for entry_id in (-2, -(2**63), 3, 2**63 - 1):
            read = await peer.ask(ReadResponse, ReadRequest(7, entry_id), version)
            assert read == ReadResponse(Status.NO_SUCH_ENTRY, 7, entry_id)


async def test_the_lac_is_returned_with_an_entry_but_not_with_a_fence(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        await peer.ask(AddResponse, add(7, 1), 2)
        assert (await peer.ask(ReadResponse, ReadRequest(7, 0))).max_lac == 0
        fence = await peer.ask(ReadResponse, ReadRequest(7, 0, KEY, is_fencing=True))
        assert (fence.status, fence.max_lac) == (Status.OK, None)


async def test_a_fencing_batch_fences_before_it_reads(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        async with peer_of(cluster) as peer:
            await peer.ask(AddResponse, add(7, 0), 2)
            for key, status in ((bytes(20), Status.UNAUTHORIZED), (KEY, Status.OK)):
                batch = BatchReadRequest(7, 0, 5, 1000, key, is_fencing=True)
                answer = await peer.ask(BatchReadResponse, batch, 2)
                assert (answer.status, len(answer.bodies)) == (status, status is Status.OK)
            unknown = BatchReadRequest(8, 0, 5, 1000, KEY, is_fencing=True)
            answer = await peer.ask(BatchReadResponse, unknown, 2)
            assert answer.status is Status.NO_SUCH_ENTRY
        await cluster.stop(0)
        await cluster.start(0)
        async with peer_of(cluster) as peer:
            for ledger_id in (7, 8):
                refused = await peer.ask(AddResponse, add(ledger_id, 1), 2)
                assert refused.status is Status.FENCED


# ---- long polls


async def test_a_poll_returns_when_the_lac_advanced(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        before_ms = time.time_ns() // 1_000_000
        answer = await polled(
            peer,
            poll_after(-1),
            lambda: peer.ask(AddResponse, add(7, 1), 2),
        )
        assert (answer.entry_id, answer.max_lac) == (0, 0)
        assert answer.lac_update_ms is not None
        assert before_ms <= answer.lac_update_ms <= time.time_ns() // 1_000_000
        known = await peer.ask(ReadResponse, poll_after(-1))
        assert (known.entry_id, known.lac_update_ms) == (0, None)


async def test_a_poll_without_piggyback_reads_its_entry_when_the_lac_advances(
    tmp_path: Path,
) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        answer = await polled(
            peer,
            ReadRequest(7, 1, previous_lac=-1, timeout_ms=60_000),
            lambda: peer.ask(AddResponse, add(7, 1), 2),
        )
        assert answer == ReadResponse(Status.OK, 7, 1, entry_of(7, 1), 0)


async def test_a_fence_wakes_a_poll_once_and_then_polls_wait_again(tmp_path: Path) -> None:
    """Otherwise a reader would poll without a pause until the ledger is closed."""
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        poll = poll_after(-1)
        fence = ReadRequest(7, -1, KEY, is_fencing=True)
        woken = await polled(peer, poll, lambda: peer.ask(ReadResponse, fence, 2))
        assert woken == ReadResponse(Status.OK, 7, -1, max_lac=-1)
        recovered = add(7, 1, is_recovery=True)
        woken = await polled(peer, poll, lambda: peer.ask(AddResponse, recovered, 2))
        assert (woken.entry_id, woken.max_lac) == (0, 0)


async def test_polls_of_a_ledger_without_entries(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for timeout_ms in (None, 1):
            poll = poll_after(-1, timeout_ms)
            unknown = await peer.ask(ReadResponse, poll)
            assert unknown == ReadResponse(Status.NO_SUCH_LEDGER, 7, -1)
        await peer.ask(ReadResponse, ReadRequest(7, -1, KEY, is_fencing=True), 2)
        empty = await peer.ask(ReadResponse, poll)
        assert empty == ReadResponse(Status.NO_SUCH_ENTRY, 7, -1)
        packet = DIGEST.encode_lac(7, 4)
        await peer.ask(WriteLacResponse, WriteLacRequest(7, 4, KEY, packet))
        elsewhere = await peer.ask(ReadResponse, poll)
        assert elsewhere == ReadResponse(Status.OK, 7, -1, max_lac=4)


async def test_a_piggybacked_entry_is_requested_as_entry_minus_one(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        poll = ReadRequest(7, 0, is_piggyback=True, previous_lac=-1)
        assert (await peer.ask(ReadResponse, poll)).status is Status.BAD_REQUEST


# ---- LAC


async def test_an_unknown_ledger_has_no_lac(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        answer = await peer.ask(ReadLacResponse, ReadLacRequest(7))
        assert answer == ReadLacResponse(Status.NO_SUCH_ENTRY, 7)
        packet = DIGEST.encode_lac(7, 4)
        await peer.ask(WriteLacResponse, WriteLacRequest(7, 4, KEY, packet))
        answer = await peer.ask(ReadLacResponse, ReadLacRequest(7))
        assert answer == ReadLacResponse(Status.OK, 7, packet)


async def test_a_lac_packet_must_match_its_request(tmp_path: Path) -> None:
    packet = DIGEST.encode_lac(7, 4)
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for body in (b"", packet[:15], packet + bytes(60), DIGEST.encode_lac(8, 4)):
            refused = await peer.ask(WriteLacResponse, WriteLacRequest(7, 4, KEY, body))
            assert refused == WriteLacResponse(Status.BAD_REQUEST, 7)
        refused = await peer.ask(WriteLacResponse, WriteLacRequest(7, 5, KEY, packet))
        assert refused.status is Status.BAD_REQUEST
        answer = await peer.ask(ReadLacResponse, ReadLacRequest(7))
        assert answer.status is Status.NO_SUCH_ENTRY


# ---- connections


@pytest.mark.parametrize("version", [2, 3])
async def test_authentication_is_answered_as_disabled(tmp_path: Path, version: int) -> None:
    codec = v2 if version == 2 else v3
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        asked = Request(version, 7, AuthRequest("some.Plugin", b"token"))
        (reply,) = await exchange(cluster, codec.encode_request(asked))
    answer = codec.decode_response(reply).body
    assert answer == AuthResponse(Status.OK, AUTH_DISABLED_PLUGIN, b"")


async def test_a_client_of_v2_may_request_tls_in_v3_first(tmp_path: Path) -> None:
    """Pulsar's client does so, and after the refusal continues in v2 on the same connection."""
    tls = v3.encode_request(Request(3, 9, StartTlsRequest()))
    auth = v2.encode_request(Request(2, 0, AuthRequest("some.Plugin", b"")))
    adding = v2.encode_request(Request(2, 0, add(7, 0)))
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        refused, greeted, added = await exchange(cluster, tls, auth, adding)
    assert v3.decode_response(refused).body == ErrorResponse(Status.BAD_REQUEST, pb.START_TLS)
    assert v2.decode_response(greeted).body == AuthResponse(Status.OK, AUTH_DISABLED_PLUGIN, b"")
    assert v2.decode_response(added).body == AddResponse(Status.OK, 7, 0, 0)


@pytest.mark.parametrize("version", [0, 1])
async def test_older_versions_are_answered_in_their_own(tmp_path: Path, version: int) -> None:
    frames = [
        v2.encode_request(Request(version, 0, add(7, 0))),
        v2.encode_request(Request(version, 0, ReadRequest(7, 0))),
        v2.encode_request(Request(version, 5, BatchReadRequest(7, 0, 1, 100))),
    ]
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        replies = await exchange(cluster, *frames)
    responses = [v2.decode_response(reply) for reply in replies]
    assert [response.version for response in responses] == [version] * 3
    assert all(response.body.status is Status.OK for response in responses)


@pytest.mark.parametrize("first_byte", [3, 9, 11, 255])
async def test_a_first_frame_of_a_future_version_is_answered(
    tmp_path: Path, first_byte: int
) -> None:
    frame = struct.pack(">iI", 20, first_byte << 24 | v2.READ << 16) + struct.pack(">qq", 7, 0)
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        (reply,) = await exchange(cluster, frame)
    assert reply == struct.pack(">Iiqq", first_byte << 24 | v2.READ << 16, 103, 7, 0)


@pytest.mark.parametrize("version", [2, 3])
async def test_the_largest_entry_of_apaches_clients_is_accepted(
    tmp_path: Path, version: int
) -> None:
    payload = bytes(FRAME_BYTES_MAX - 500 - 36)
    entry = entry_of(7, 0, payload=payload)
    assert len(entry) == FRAME_BYTES_MAX - 500
    async with (
        real_cluster(tmp_path, 1, garbage_interval_ms=3_600_000) as cluster,
        peer_of(cluster, outbox_bytes_max=16 << 20) as peer,
    ):
        added = await peer.ask(AddResponse, AddRequest(7, 0, KEY, entry), version)
        assert added.status is Status.OK
        read = await peer.ask(ReadResponse, ReadRequest(7, 0), version)
        assert read.body == entry
        batch = await peer.ask(BatchReadResponse, BatchReadRequest(7, 0, 9, 1 << 40), 2)
        assert batch.bodies == (entry,)


async def test_only_requested_values_are_reported(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        for requested, reported in ((0, []), (1, ["total"]), (2, ["free"]), (7, ["total", "free"])):
            info = await peer.ask(GetBookieInfoResponse, GetBookieInfoRequest(requested))
            known = {"total": info.total_bytes, "free": info.free_bytes}
            assert [name for name, size in known.items() if size is not None] == reported


async def test_a_wrong_key_of_any_length_is_a_wrong_key(tmp_path: Path) -> None:
    """But a key of another length never creates a ledger, since it could not be stored."""

    def framed(operation: pb.OperationType.ValueType, message: pb.Request) -> bytes:
        message.header.version = pb.VERSION_THREE
        message.header.operation = operation
        message.header.txnId = 1
        data = message.SerializeToString()
        return len(data).to_bytes(4, "big") + data

    def adding(ledger_id: int, key: bytes) -> bytes:
        part = pb.AddRequest(
            ledgerId=ledger_id, entryId=0, masterKey=key, body=entry_of(ledger_id, 0)
        )
        return framed(pb.ADD_ENTRY, pb.Request(addRequest=part))

    def fencing(ledger_id: int, key: bytes) -> bytes:
        part = pb.ReadRequest(
            ledgerId=ledger_id, entryId=0, masterKey=key, flag=pb.ReadRequest.FENCE_LEDGER
        )
        return framed(pb.READ_ENTRY, pb.Request(readRequest=part))

    frames = [adding(7, KEY)]
    frames += [make(7, key) for make in (adding, fencing) for key in (b"", b"short", bytes(21))]
    frames += [adding(8, b"short"), fencing(9, b"short")]
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        replies = [v3.decode_response(reply) for reply in await exchange(cluster, *frames)]
    statuses = [reply.body.status for reply in replies]
    wrong = [Status.UNAUTHORIZED] * 6
    assert statuses == [Status.OK, *wrong, Status.BAD_REQUEST, Status.UNAUTHORIZED]


# ---- list of entries


async def test_a_list_of_entries_contains_those_in_cache_and_index(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        storage = cluster.bookies[0].storage
        assert storage is not None
        unknown = await peer.ask(ListEntriesResponse, ListEntriesRequest(7))
        assert unknown == ListEntriesResponse(Status.NO_SUCH_LEDGER, 7)
        held: set[int] = set()
        for turn in ((0, 1, 2, 5, 9), (3, 9, 20), (4, 6, 30, 31)):
            for entry_id in turn:
                await peer.ask(AddResponse, add(7, entry_id), 2)
            held |= set(turn)
            answer = await peer.ask(ListEntriesResponse, ListEntriesRequest(7))
            assert answer.status is Status.OK
            assert answer.availability is not None
            assert ids_of(answer.availability) == held
            await storage.checkpoint()
        answer = await peer.ask(ListEntriesResponse, ListEntriesRequest(7))
        assert answer.availability is not None
        assert ids_of(answer.availability) == held


async def test_few_lists_of_entries_are_made_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may contain the ids of a whole write cache, although its request is small."""
    listed, at_once, most = LedgerStorage.entries_held, 0, 0

    async def entries_held(self: LedgerStorage, ledger_id: int) -> EntriesHeld:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await trio.sleep(0.01)
        held = await listed(self, ledger_id)
        at_once -= 1
        return held

    monkeypatch.setattr(LedgerStorage, "entries_held", entries_held)
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        async with peer_of(cluster) as peer:
            await peer.ask(AddResponse, add(7, 0), 2)

        async def ask() -> None:
            async with peer_of(cluster) as peer:
                answer = await peer.ask(ListEntriesResponse, ListEntriesRequest(7))
                assert list(decode_entries_held(answer.availability or b"")) == [(0, 0)]

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
    assert 1 <= most <= 2


async def test_a_ledger_in_limbo_has_no_list_of_entries(tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, peer_of(cluster) as peer:
        await peer.ask(AddResponse, add(7, 0), 2)
        storage = cluster.bookies[0].storage
        assert storage is not None
        storage.directories[0].states[7].is_limbo = True
        answer = await peer.ask(ListEntriesResponse, ListEntriesRequest(7))
        assert answer == ListEntriesResponse(Status.UNKNOWN_LEDGER_STATE, 7)


def ids_of(availability: bytes) -> set[int]:
    return {
        entry_id
        for first, last in decode_entries_held(availability)
        for entry_id in range(first, last + 1)
    }
