"""No client has access to a ledger with an unknown master key, and no request ends the bookie."""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bookie.core.ledger_state import LedgerState
from bookie.server.requests import Requests
from bookie.storage.bookie_storage import BookieStorage
from ledger.errors import Status
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2, v3
from ledger.wire.messages import AddRequest, AddResponse, BatchReadRequest, ReadRequest, Request
from tests.bookie.server.test_server import KEY, SETTINGS, add, entry_of, peer_of
from tests.real_cluster import RealCluster, real_cluster

KEYLESS, NEW, DELETED, KNOWN = 5, 6, 8, 7
KEYS = [b"", b"k", KEY, KEY[:19], KEY + b"k", bytes(20), bytes(300)]
_IDS = struct.Struct(">qq")


def storage_of(cluster: RealCluster) -> BookieStorage:
    storage = cluster.bookies[0].storage
    assert storage is not None
    return storage


def _forget_key(storage: BookieStorage, ledger_id: int) -> LedgerState:
    """Removes the master key, as a rebuild does if neither old index nor metadata can be read."""
    state = storage.state(ledger_id)
    if state is None:
        state = storage.create(ledger_id, b"")
    state.master_key = b""
    state.is_limbo = True
    state.fence()
    storage.state_changed(state)
    return state


def _frame(message: pb.Request) -> bytes:
    message.header.version = pb.VERSION_THREE
    message.header.txnId = 1
    data: bytes = message.SerializePartialToString()
    return data


def keyed_add(ledger_id: int, key: bytes, *, is_recovery: bool, entry_id: int = 1) -> bytes:
    message = pb.Request()
    message.header.operation = pb.ADD_ENTRY
    part = message.addRequest
    part.ledgerId, part.entryId, part.masterKey = ledger_id, entry_id, key
    part.body = entry_of(ledger_id, entry_id)
    if is_recovery:
        part.flag = pb.AddRequest.RECOVERY_ADD
    return _frame(message)


def keyed_fence(ledger_id: int, key: bytes) -> bytes:
    message = pb.Request()
    message.header.operation = pb.READ_ENTRY
    part = message.readRequest
    part.ledgerId, part.entryId, part.masterKey = ledger_id, -1, key
    part.flag = pb.ReadRequest.FENCE_LEDGER
    return _frame(message)


def keyed_lac(ledger_id: int, key: bytes) -> bytes:
    message = pb.Request()
    message.header.operation = pb.WRITE_LAC
    part = message.writeLacRequest
    part.ledgerId, part.lac, part.masterKey = ledger_id, 3, key
    part.body = _IDS.pack(ledger_id, 3)
    return _frame(message)


class Raw:
    """A connection for frames that our client never sends."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = bytearray()

    async def ask(self, frame: bytes) -> Status:
        await self.stream.send_all(len(frame).to_bytes(4, "big") + frame)
        while len(self._data) < 4 or len(self._data) < 4 + self._size:
            received = await self.stream.receive_some(1 << 16)
            assert received, "the bookie closed the connection"
            self._data += received
        answer = bytes(self._data[4 : 4 + self._size])
        del self._data[: 4 + self._size]
        return v3.decode_response(answer).body.status

    @property
    def _size(self) -> int:
        return int.from_bytes(self._data[:4], "big")


@asynccontextmanager
async def raw_peer(cluster: RealCluster) -> AsyncIterator[Raw]:
    async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
        with trio.fail_after(20):
            yield Raw(stream)


async def _serves(cluster: RealCluster, entry_id: int = 0) -> None:
    async with peer_of(cluster) as peer:
        with trio.fail_after(20):
            added = await peer.ask(AddResponse, add(99, entry_id), 2)
        assert added.status is Status.OK


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{len(key)}-{key[:1].hex()}")
async def test_no_key_opens_a_ledger_whose_key_is_unknown(tmp_path: Path, key: bytes) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        state = _forget_key(storage_of(cluster), KEYLESS)
        async with raw_peer(cluster) as peer:
            for frame in (
                keyed_lac(KEYLESS, key),
                keyed_fence(KEYLESS, key),
                keyed_add(KEYLESS, key, is_recovery=False),
                keyed_add(KEYLESS, key, is_recovery=True),
            ):
                assert await peer.ask(frame) is Status.UNAUTHORIZED
        assert (state.explicit_lac, state.lac, state.master_key) == (None, -1, b"")
        assert storage_of(cluster).last_entry_id(KEYLESS) == -1
        await _serves(cluster)
        await cluster.stop(0)
        await cluster.start(0)
        await _serves(cluster, 1)


@pytest.mark.parametrize("key", [key for key in KEYS if len(key) != 20], ids=len)
async def test_a_key_of_another_length_creates_no_ledger(tmp_path: Path, key: bytes) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        async with raw_peer(cluster) as peer:
            for frame in (
                keyed_lac(NEW, key),
                keyed_fence(NEW, key),
                keyed_add(NEW, key, is_recovery=False),
                keyed_add(NEW, key, is_recovery=True),
            ):
                assert await peer.ask(frame) in (Status.UNAUTHORIZED, Status.BAD_REQUEST)
        assert storage_of(cluster).state(NEW) is None
        async with raw_peer(cluster) as peer:
            assert await peer.ask(keyed_add(NEW, KEY, is_recovery=False)) is Status.OK
        await _serves(cluster)


def _numbers(rng: random.Random) -> int:
    extreme = [-(2**63), -2, -1, 0, 1, 2, 2**31, 2**63 - 2**32, 2**63 - 2, 2**63 - 1]
    return rng.choice(extreme)


def _random_v3(rng: random.Random) -> bytes:
    message = pb.Request()
    ledger_id = rng.choice([KEYLESS, NEW, DELETED, KNOWN, KNOWN, _numbers(rng)])
    entry_id, key = _numbers(rng), rng.choice(KEYS)
    message.header.operation = rng.choice(pb.OperationType.values())
    message.header.priority = rng.choice([0, 100])
    if rng.random() < 0.8:
        part = message.addRequest
        part.ledgerId, part.entryId, part.masterKey = ledger_id, entry_id, key
        lac, length = _numbers(rng), _numbers(rng)
        part.body = struct.pack(">qqqq", ledger_id, entry_id, lac, length) + rng.randbytes(9)
        part.writeFlags = rng.choice([0, 1, -1])
        if rng.random() < 0.5:
            part.flag = pb.AddRequest.RECOVERY_ADD
    if rng.random() < 0.9:
        read = message.readRequest
        read.ledgerId, read.entryId = ledger_id, entry_id
        if rng.random() < 0.5:
            read.masterKey = key
        if rng.random() < 0.6:
            read.flag = rng.choice([pb.ReadRequest.FENCE_LEDGER, pb.ReadRequest.ENTRY_PIGGYBACK])
        if rng.random() < 0.5:
            read.previousLAC = _numbers(rng)
            read.timeOut = rng.choice([-(2**63), -1, 0, 1, 5, 2**63 - 1])
    if rng.random() < 0.9:
        written = message.writeLacRequest
        written.ledgerId, written.lac, written.masterKey = ledger_id, entry_id, key
        written.body = _IDS.pack(ledger_id, entry_id) + bytes(rng.choice([0, 4, 48, 49]))
    message.readLacRequest.ledgerId = ledger_id
    message.forceLedgerRequest.ledgerId = ledger_id
    message.getBookieInfoRequest.requested = _numbers(rng)
    message.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
    message.authRequest.authPluginName, message.authRequest.payload = "x", b""
    return _frame(message)


def _random_v2(rng: random.Random) -> bytes:
    ledger_id = rng.choice([KEYLESS, NEW, DELETED, KNOWN, KNOWN, _numbers(rng)])
    entry_id, key = _numbers(rng), rng.choice([KEY, bytes(20)])
    kind = rng.randrange(3)
    if kind == 0:
        body = struct.pack(">qqqq", ledger_id, entry_id, _numbers(rng), _numbers(rng))
        request = AddRequest(ledger_id, entry_id, key, body, is_recovery=rng.random() < 0.5)
        return v2.encode_request(Request(2, 0, request))[4:]
    is_fencing = rng.random() < 0.5
    if kind == 1:
        read = ReadRequest(ledger_id, entry_id, key, is_fencing=is_fencing)
        return v2.encode_request(Request(2, 0, read))[4:]
    limits = [-(2**31), -1, 0, 1, 2**31 - 1]
    batch = BatchReadRequest(
        ledger_id,
        entry_id,
        rng.choice(limits),
        rng.choice([*limits, 2**63 - 1, -(2**63)]),
        master_key=key,
        is_fencing=is_fencing,
    )
    return v2.encode_request(Request(2, rng.randrange(2**63), batch))[4:]


def _spoiled(frame: bytes, rng: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.choice([0] * 15 + [1, 2])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.005:
        del data[rng.randrange(1, len(data)) :]
    return bytes(data)


@pytest.mark.parametrize("seed", range(6))
async def test_no_frame_ends_a_bookie(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        async with peer_of(cluster) as peer:
            for entry_id in range(5):
                await peer.ask(AddResponse, add(KNOWN, entry_id), 2)
            await peer.ask(AddResponse, add(DELETED, 0), 2)
        storage = storage_of(cluster)
        _forget_key(storage, KEYLESS)
        deleted = storage.state(DELETED)
        assert deleted is not None
        states = storage.directory_of(DELETED).garbage._states
        while states._saving:  # noqa: ASYNC110
            await trio.sleep(0.01)
        states.deleted(deleted)
        make = _random_v3 if seed % 2 else _random_v2
        for _ in range(25):
            async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
                frames = [_spoiled(make(rng), rng) for _ in range(40)]
                data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
                with trio.move_on_after(0.05):
                    await stream.send_all(data)
                    while await stream.receive_some(1 << 16):
                        pass
        assert not [one for one in storage.journals if one.failure is not None]
        for directory in storage.directories:
            await directory.task.made()  # one of its own may be in progress
        await _serves(cluster, 5)
        await cluster.stop(0)
        await cluster.start(0)
        await _serves(cluster, 6)


@pytest.mark.parametrize("where", ["at once", "when it is its turn", "late"])
@pytest.mark.parametrize("error", [AssertionError, KeyError, ValueError])
async def test_an_internal_error_costs_one_connection(
    where: str,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    internal_errors: list[logging.LogRecord],
) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster:
        await _serves(cluster)

        def stumble(*_: object, **__: object) -> None:
            raise error("a thing")

        async def stumble_later(*_: object, **__: object) -> None:
            raise error("a thing")

        frame = keyed_lac(KNOWN, KEY)
        with monkeypatch.context() as patched:
            if where == "at once":
                patched.setattr(Requests, "_write_lac", stumble)
            elif where == "when it is its turn":
                patched.setattr(Requests, "_look_at_space", stumble_later)
                message = pb.Request()
                message.header.operation = pb.GET_BOOKIE_INFO
                message.getBookieInfoRequest.requested = 3
                frame = _frame(message)
            else:
                patched.setattr(v3, "encode_response", stumble)
                frame = keyed_add(KNOWN, KEY, is_recovery=False)
            async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
                with trio.fail_after(20):
                    await stream.send_all(len(frame).to_bytes(4, "big") + frame)
                    assert not await stream.receive_some(1 << 16)
        await _serves(cluster, 2)
    assert len(internal_errors) == 1
    assert error.__name__ in internal_errors[0].getMessage()
    assert "stumble" in internal_errors[0].getMessage()
    internal_errors.clear()
