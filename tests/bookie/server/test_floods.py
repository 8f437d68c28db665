"""Every request of a flood gets exactly one reply, whatever is short in the bookie: memory for
replies, write cache, journal, places of reads; over both versions of the protocol. Requests for
which a bookie has few places are not slower for it."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Iterator

import pytest
import trio

from bookie.core.disk_space import WriteGate
from bookie.server.read_scheduler import ReadLimits
from bookie.storage.options import StorageOptions
from bookie.testing.transport import SimTransport
from ledger.errors import Status
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)
from tests.bookie.server.simulated_server import KIB, SimulatedServer, call, run_server, send_all
from tests.bookie.server.test_server import KEY, entry_of
from tests.effort import seeds

_CONNECTIONS = 6
_LEDGERS = 8
_WITHIN_S = 300.0
"""Of virtual time, in which a bookie that is never slow for longer than a second has answered."""
_OTHER_KEY = b"x" * 20
_LAC_PACKET = struct.Struct(">qq4s")
_HEADER = struct.Struct(">I")
_IDS = struct.Struct(">qq")
_ID = struct.Struct(">q")

Key = tuple[int | str, ...]
"""What names a request in its reply."""


class _Flood:
    """The frames of one connection, and the replies that they must get."""

    def __init__(self, rng: random.Random, version: int, count: int) -> None:
        self._rng = rng
        self.version = version
        self.wanted: Counter[Key] = Counter()
        self.frames = [self._frame(number) for number in range(count)]

    def _frame(self, number: int) -> bytes:
        if self.version == 3:
            return self._frame_v3(number)
        body = self._body_v2()
        frame = bytearray(v2.encode_request(Request(2, number, body)))
        if not isinstance(body, AuthRequest) and self._rng.random() < 0.03:
            frame[4] = self._rng.choice((1, 7, 255))  # the version
        if isinstance(body, AddRequest):
            key: Key = (v2.ADD, body.ledger_id, body.entry_id)
        elif isinstance(body, BatchReadRequest):
            key = (v2.BATCH_READ, body.ledger_id, body.entry_id, number)
        elif isinstance(body, ReadRequest):
            key = (v2.READ, body.ledger_id, body.entry_id)
        else:
            key = (v2.AUTH,)
        self.wanted[key] += 1
        return bytes(frame)

    def _frame_v3(self, number: int) -> bytes:
        self.wanted[3, number] += 1
        frame = v3.encode_request(Request(3, number, self._body_v3()))
        if self._rng.random() < 0.02:  # the version, in the header
            frame = frame.replace(b"\x0a\x06\x08\x03", b"\x0a\x06\x08\x02", 1)
        return frame

    def _add(self) -> AddRequest:
        rng = self._rng
        ledger_id, entry_id = (
            self._ledger(),
            rng.choice((*[rng.randrange(60)] * 9, rng.randrange(5000))),
        )
        payload = bytes([rng.randrange(3)]) * rng.choice((0, 10, 100, 3000))
        return AddRequest(
            ledger_id,
            entry_id,
            KEY if rng.random() < 0.95 else _OTHER_KEY,
            entry_of(ledger_id, entry_id, rng.choice((-1, entry_id - 1)), payload),
            is_recovery=rng.random() < 0.2,
            is_high_priority=rng.random() < 0.05,
            takes_range_acks=self.version == 2 and rng.random() < 0.3,
        )

    def _ledger(self) -> int:
        rng = self._rng
        return rng.randrange(_LEDGERS) if rng.random() < 0.9 else rng.choice((-1, 10**6))

    def _read(self, **more: int | bool | None) -> ReadRequest:
        is_fencing = not more and self._rng.random() < 0.01
        return ReadRequest(
            self._ledger(),
            self._rng.choice((-2, -1, *range(20), 4000)) if not more else -1,
            KEY if is_fencing else None,
            is_fencing=is_fencing,
            is_high_priority=self._rng.random() < 0.1,
            **more,  # type: ignore[arg-type]
        )

    def _body_v2(self) -> RequestBody:
        rng = self._rng
        kind = rng.randrange(10)
        if kind < 6:
            return self._add()
        if kind < 8:
            return self._read()
        if kind == 8 and rng.random() < 0.1:
            return AuthRequest("some.Plugin", b"token")
        is_fencing = rng.random() < 0.01
        return BatchReadRequest(
            self._ledger(),
            rng.choice((-1, *range(20))),
            rng.choice((-1, 0, 1, 10, 10_000)),
            rng.choice((-1, 100, 1 << 16, 1 << 18, 1 << 30)),
            KEY if is_fencing else None,
            is_fencing=is_fencing,
        )

    def _body_v3(self) -> RequestBody:
        rng = self._rng
        kind = rng.randrange(12)
        ledger_id = self._ledger()
        if kind < 4:
            return self._add()
        if kind < 6:
            return self._read()
        if kind == 6:
            return self._read(
                previous_lac=rng.choice((-1, 5, 3000)),
                timeout_ms=rng.choice((None, -1, 0, 1, 10, 3000)),
                is_piggyback=rng.random() < 0.5,
            )
        if kind == 7:
            lac = rng.choice((-1, 5, 100))
            return WriteLacRequest(ledger_id, lac, KEY, _LAC_PACKET.pack(ledger_id, lac, b"crc!"))
        return (
            ReadLacRequest(ledger_id),
            GetBookieInfoRequest(rng.randrange(4)),
            rng.choice((ForceLedgerRequest(ledger_id), AuthRequest("x", b""), StartTlsRequest())),
            ListEntriesRequest(ledger_id),
        )[kind - 8]

    # ---- replies

    def keys_of(self, frame: memoryview) -> Iterator[Key]:
        """Yields what a reply answers."""
        if self.version == 3:
            yield 3, v3.decode_response(frame).txn_id
            return
        header: int = _HEADER.unpack_from(frame)[0]
        operation = header >> 16 & 0xFF
        if operation == v2.AUTH:
            yield (operation,)
            return
        ledger_id, entry_id = _IDS.unpack_from(frame, 8)
        if operation == v2.BATCH_READ:
            yield operation, ledger_id, entry_id, *_ID.unpack_from(frame, 24)
            return
        last = _ID.unpack_from(frame, 24)[0] if _is_range(header) else entry_id
        for one in range(entry_id, last + 1):
            yield operation, ledger_id, one


def _is_range(header: int) -> bool:
    return header & (0xFF0000 | v2.RANGE_ACKS) == v2.ADD << 16 | v2.RANGE_ACKS


async def _run(bookie: SimulatedServer, name: str, flood: _Flood, rng: random.Random) -> None:
    transport = await bookie.network.of(name).connect("bookie", 3181)
    wanted, pause = Counter(flood.wanted), rng.choice((0.0, 0.02, 0.2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, transport, flood.frames, rng)
        received, space = bytearray(), memoryview(bytearray(64 * KIB))
        while wanted:
            await transport.wait_readable()
            try:
                count = transport.recv_into(space[: rng.choice((100, 4 * KIB, 64 * KIB))])
            except BlockingIOError:
                continue
            assert count, f"the connection ended, replies to {_some(wanted)} are missing"
            received += space[:count]
            for frame in _taken(received):
                for key in flood.keys_of(frame):
                    assert wanted[key] > 0, f"a reply too many to {key}"
                    wanted[key] -= 1
                    if not wanted[key]:
                        del wanted[key]
            if rng.random() < pause:
                await trio.sleep(rng.random() * 0.5)
    await trio.sleep(5)
    with pytest.raises(BlockingIOError):  # nothing more
        transport.recv_into(space)
    transport.close()


async def _send(transport: SimTransport, frames: list[bytes], rng: random.Random) -> None:
    pause = rng.choice((0.0, 0.1))
    pending = memoryview(b"".join(frames))
    while pending:
        size = rng.choice((30, 1000, 20 * KIB, len(pending)))
        await send_all(transport, pending[:size])
        pending = pending[size:]
        if rng.random() < pause:
            await trio.sleep(rng.random() * 0.1)


def _taken(received: bytearray) -> list[memoryview]:
    frames, at = [], 0
    while len(received) - at >= 4:
        end = at + 4 + int.from_bytes(received[at : at + 4], "big")
        if end > len(received):
            break
        frames.append(memoryview(bytes(received[at + 4 : end])))
        at = end
    del received[:at]
    return frames


def _some(wanted: Counter[Key]) -> str:
    return f"{wanted.total()} requests, such as {list(wanted)[:5]}"


async def _disturb(bookie: SimulatedServer, rng: random.Random) -> None:
    """Slows the disks, fills them, and makes checkpoints; never for long."""
    gate: WriteGate = bookie.simulated.storage.gate
    while True:
        await trio.sleep(rng.random())
        what = rng.randrange(8)
        if what < 2:
            bookie.slow_disk.read_s = rng.choice((0.0, 0.001, 0.05, 0.3))
        elif what < 4:
            await bookie.flush()
        elif what == 4:
            gate.set(is_read_only=True, takes_recovery=rng.random() < 0.5)
            await trio.sleep(rng.random())
            gate.set(is_read_only=False, takes_recovery=True)
        elif what < 7:
            bookie.disk.gate = held = trio.Event()
            if what == 6:
                bookie.disk.sync_gate = held
            await trio.sleep(rng.random())
            bookie.disk.gate = bookie.disk.sync_gate = None
            held.set()


@pytest.mark.parametrize("seed", seeds(ci=4, night=1000))
def test_every_request_of_a_flood_gets_one_reply(seed: int) -> None:
    rng = random.Random(seed)
    floods = [_Flood(rng, rng.choice((2, 3)), rng.choice((20, 400))) for _ in range(_CONNECTIONS)]

    async def scenario(bookie: SimulatedServer) -> None:
        bookie.network.options.buffer_bytes = rng.choice((4, 16, 256)) * KIB
        bookie.slow_disk.read_s = rng.choice((0.0, 0.01))
        with trio.move_on_after(_WITHIN_S) as scope:
            async with trio.open_nursery() as disturbing:
                disturbing.start_soon(_disturb, bookie, rng)
                async with trio.open_nursery() as nursery:
                    for number, flood in enumerate(floods):
                        nursery.start_soon(_run, bookie, f"peer{number}", flood, rng)
                disturbing.cancel_scope.cancel()
        assert not scope.cancelled_caught, f"seed {seed}: replies are missing"
        assert not bookie.server.statistics().reply_bytes
        assert not bookie.server.statistics().held_add_bytes

    run_server(
        scenario,
        options=StorageOptions(
            write_cache_bytes=rng.choice((256, 1024, 16 * 1024)) * KIB,
            read_cache_bytes=rng.choice((10, 256)) * KIB,
            read_ahead_bytes=4 * KIB,
            checkpoint_interval_s=rng.choice((2, 1e9)),
            states_max=rng.choice((10, 10_000)),
        ),
        directories=rng.choice((1, 2)),
        journals=rng.choice((1, 2)),
        queued_bytes_max=rng.choice((8, 64, 256)) * KIB,
        add_wait_s_max=rng.choice((0.1, 1.0, 10.0)),
        replies_bytes_max=rng.choice((20, 200, 10_000)) * KIB,
        read_limits=ReadLimits(rng.choice((3, 50, 10_000)), rng.choice((2, 20, 5000))),
        receive_bytes_max=rng.choice((64, 1024)) * KIB,
    )


def test_a_disk_is_asked_once_for_the_space_that_many_ask_for() -> None:
    asked_at: list[float] = []

    async def scenario(bookie: SimulatedServer) -> None:
        async def space(_: str) -> tuple[int, int]:
            asked_at.append(trio.current_time())
            await trio.sleep(0.05)
            return 100, len(asked_at)

        bookie.disk.space = space  # type: ignore[method-assign, assignment]
        request = GetBookieInfoRequest(3)
        async with bookie.peer("peer", 3) as peer:
            for _ in range(3):
                before = len(asked_at)
                async with trio.open_nursery() as nursery:
                    for _number in range(500):
                        nursery.start_soon(call, peer, request, 0.5)
                # Two at most begin before one has ended.
                assert len(asked_at) - before <= 2
                await trio.sleep(1)
                last = await call(peer, request)
                assert last == GetBookieInfoResponse(Status.OK, 100, len(asked_at))
                await trio.sleep(1)

    run_server(scenario)
