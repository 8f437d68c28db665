"""No bytes that a peer sends end a bookie, exceed its memory limits or affect other peers."""

from __future__ import annotations

import random
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import Status
from ledger.wire import v2, v3
from ledger.wire.messages import (
    FRAME_BYTES_MAX,
    AddRequest,
    AddResponse,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)
from tests.effort import scaled
from tests.system.cluster import StandaloneCluster
from tests.system.conftest import StartCluster

pytestmark = pytest.mark.system

ATTACKS = scaled(ci=2_000, night=20_000)
_AT_ONCE = 20
_GROWTH_BYTES_MAX = 256 * 1024 * 1024
KEY = master_key(b"secret")
DIGEST = Digest(DigestType.CRC32C, b"secret")


def memory_bytes(pid: int, name: str = "VmRSS") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) * 1024


def frame_of(version: int, body: RequestBody, txn_id: int = 0) -> bytes:
    request = Request(version, txn_id, body)
    return v2.encode_request(request) if version < 3 else v3.encode_request(request)


def entry_of(ledger_id: int, entry_id: int) -> bytes:
    payload = b"payload %d" % entry_id
    header, body = DIGEST.encode_entry(ledger_id, entry_id, entry_id - 1, 10, payload)
    return header + bytes(body)


def valid_frames(rng: random.Random) -> bytes:
    """Returns one to three frames of one version, of any kind."""
    ledger_id, entry_id = rng.randrange(50), rng.randrange(20)
    entry = entry_of(ledger_id, entry_id)
    lac = DIGEST.encode_lac(ledger_id, entry_id)
    only_v2: list[RequestBody] = [
        BatchReadRequest(ledger_id, entry_id, 10, 1 << 16),
        AddRequest(ledger_id, entry_id, KEY, entry, takes_range_acks=True),
    ]
    only_v3: list[RequestBody] = [
        ReadRequest(ledger_id, -1, previous_lac=5, timeout_ms=1, is_piggyback=True),
        WriteLacRequest(ledger_id, entry_id, KEY, lac),
        ReadLacRequest(ledger_id),
        GetBookieInfoRequest(3),
        ForceLedgerRequest(ledger_id),
        ListEntriesRequest(ledger_id),
        StartTlsRequest(),
    ]
    both: list[RequestBody] = [
        AddRequest(ledger_id, entry_id, KEY, entry),
        AddRequest(ledger_id, entry_id, KEY, entry, is_recovery=True),
        ReadRequest(ledger_id, entry_id),
        ReadRequest(ledger_id, entry_id, KEY, is_fencing=True),
        AuthRequest("some.Plugin", b"token"),
    ]
    version = rng.choice((2, 3))
    choices = both + (only_v2 if version == 2 else only_v3)
    return b"".join(
        frame_of(version, rng.choice(choices), txn_id=rng.randrange(1000))
        for _ in range(rng.randint(1, 3))
    )


def mutated(rng: random.Random) -> bytes:
    data = bytearray(valid_frames(rng))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data)) if data else 0
        change = rng.randrange(5)
        if change == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1 and data:
            data[at] = rng.randrange(256)
        elif change == 2:
            del data[at:]
        elif change == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 40))
        elif len(data) >= 4:
            struct.pack_into(">i", data, 0, rng.choice((0, -1, 1, 3, 1 << 20, 1 << 23, 2**31 - 1)))
    return bytes(data)


def random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 4, 5, 20, 100, 1000, 70_000)))


async def attack(port: int, data: bytes) -> None:
    """Sends bytes, closes its sending side, and reads until the bookie closes the connection."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        try:
            await stream.send_all(data)
            await stream.send_eof()
            while await stream.receive_some(1 << 16):
                pass
        except trio.BrokenResourceError:
            pass  # closed by the bookie while we were still sending


class Neighbour:
    """A correct client on a connection of its own, which must never be affected."""

    LEDGER_ID = 1 << 40

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._added = 0

    def _call(self, body: RequestBody) -> object:
        self._socket.sendall(frame_of(2, body))
        (size,) = struct.unpack(">i", self._exactly(4))
        return v2.decode_response(self._exactly(size)).body

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            assert chunk, "the neighbour's connection was closed"
            data += chunk
        return data

    def add_one(self) -> None:
        entry_id = self._added
        entry = entry_of(self.LEDGER_ID, entry_id)
        answer = self._call(AddRequest(self.LEDGER_ID, entry_id, KEY, entry))
        assert answer == AddResponse(Status.OK, self.LEDGER_ID, entry_id, entry_id)
        self._added += 1

    def read_all(self) -> int:
        for entry_id in range(self._added):
            answer = self._call(ReadRequest(self.LEDGER_ID, entry_id))
            assert isinstance(answer, ReadResponse)
            assert answer.status is Status.OK
            assert answer.body is not None
            assert bytes(answer.body) == entry_of(self.LEDGER_ID, entry_id)
        return self._added

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def bookie(start_cluster: StartCluster) -> StandaloneCluster:
    # The neighbour's ledger is not in the metadata: a collection would delete it.
    return start_cluster("--no-restart", bookies=1, LEDGERSTREAM_GARBAGE_INTERVAL_MS="3600000")


@pytest.fixture
def neighbour(bookie: StandaloneCluster) -> Iterator[Neighbour]:
    client = Neighbour(bookie.ports()[0])
    yield client
    client.close()


@pytest.mark.parametrize("make", [random_bytes, mutated], ids=["random", "mutated"])
async def test_thousands_of_hostile_inputs(
    make: Callable[[random.Random], bytes], bookie: StandaloneCluster, neighbour: Neighbour
) -> None:
    rng = random.Random(make.__name__)
    port, pid = bookie.ports()[0], bookie.pid_of(1)
    neighbour.add_one()
    before = memory_bytes(pid)
    for _ in range(0, ATTACKS, _AT_ONCE):
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(_AT_ONCE):
                    nursery.start_soon(attack, port, make(rng))
        neighbour.add_one()
    assert neighbour.read_all() == ATTACKS // _AT_ONCE + 1
    assert bookie.pid_of(1) == pid, "the bookie died and was started again"
    grown = memory_bytes(pid, "VmHWM") - before
    assert grown < _GROWTH_BYTES_MAX, f"the bookie grew by {grown >> 20} MiB"
    refusals = [line for line in bookie.logs().splitlines() if "cause=" in line]
    assert refusals, "some inputs must have been refused"
    peers = [re.search(r"peer=(\S+)", line) for line in refusals]
    assert all(peers), "each refusal names the peer"
    assert len(refusals) <= ATTACKS, "at most one line per connection"


async def test_the_size_in_a_frame_is_checked_first(
    bookie: StandaloneCluster, neighbour: Neighbour
) -> None:
    """The frame limit is checked before memory is allocated, so the size alone takes none."""
    port, pid = bookie.ports()[0], bookie.pid_of(1)
    neighbour.add_one()
    before = memory_bytes(pid)
    for size in (FRAME_BYTES_MAX + 1, 1 << 30, 2**31 - 1, -1):
        with trio.fail_after(30):
            await attack(port, struct.pack(">i", size) + b"\x02\x01\x00\x00" + bytes(100))
    allowed = struct.pack(">iI", FRAME_BYTES_MAX, 0x02010000) + bytes(100)
    waiting = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(200)]
    try:
        for each in waiting:
            each.sendall(allowed)
        neighbour.add_one()
        grown = memory_bytes(pid) - before
        assert grown < _GROWTH_BYTES_MAX, f"200 half-sent frames cost {grown >> 20} MiB"
    finally:
        for each in waiting:
            each.close()
    assert neighbour.read_all() == 2
