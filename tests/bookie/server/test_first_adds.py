"""The first adds of ledgers that are not in memory: many in one chunk have the same results as
single ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio

from bookie.core.adds import frames_ahead
from bookie.core.ledger_state import LedgerState
from bookie.storage.ledger_states import LedgerStates
from bookie.testing.memory_key_value import MemoryKeyValue
from bookie.testing.transport import SimTransport
from ledger.core.entry import master_key
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import AddRequest, AddResponse, ReadRequest, ReadResponse, Request
from tests.bookie.server.simulated_server import (
    KIB,
    SimulatedServer,
    call,
    run_server,
    send_all,
)
from tests.bookie.server.test_server import KEY, entry_of

OTHER_KEY = master_key(b"other")
FENCED, OTHERS = 3, 4
ANSWER_BYTES = 28

Sent = tuple[int, int]


def _frame(ledger_id: int, entry_id: int, *, is_recovery: bool = False) -> bytes:
    body = AddRequest(
        ledger_id, entry_id, KEY, entry_of(ledger_id, entry_id), is_recovery=is_recovery
    )
    return v2.encode_request(Request(2, 0, body))


async def _answers(transport: SimTransport, count: int) -> dict[Sent, Status]:
    answers: dict[Sent, Status] = {}
    received = bytearray()
    space = memoryview(bytearray(64 * KIB))
    while len(answers) < count:
        await transport.wait_readable()
        try:
            received += space[: transport.recv_into(space)]
        except BlockingIOError:
            continue
        while len(received) >= ANSWER_BYTES:
            body = v2.decode_response(bytes(received[4:ANSWER_BYTES])).body
            del received[:ANSWER_BYTES]
            assert isinstance(body, AddResponse)
            assert (body.ledger_id, body.entry_id) not in answers, "answered twice"
            answers[body.ledger_id, body.entry_id] = body.status
    return answers


async def _call_in_chunks(
    bookie: SimulatedServer, frames: Sequence[bytes], cuts: Sequence[int]
) -> dict[Sent, Status]:
    """Sends the frames in pieces that end anywhere, and returns the replies, one to each."""
    transport = await bookie.network.of("writer").connect("bookie", 3181)
    data = b"".join(frames)
    answers: dict[Sent, Status] = {}

    async def receive() -> None:
        answers.update(await _answers(transport, len(frames)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            await send_all(transport, data[begin:end])
            await trio.sleep(0.01)  # virtual time, so that it is received separately
    transport.close()
    return answers


@pytest.mark.parametrize("seed", range(30))
def test_each_add_gets_the_reply_that_it_would_get_alone(seed: int) -> None:
    """Random adds to new, known and fenced ledgers and to those with other keys, in random
    chunks."""
    rng = random.Random(seed)
    directories, journals = rng.choice([(1, 1), (2, 1), (3, 2)])
    sent: list[Sent] = []
    frames: list[bytes] = []
    expected: dict[Sent, Status] = {}
    recoveries = rng.choice([0.1, 0.5, 0.97])
    for number in range(rng.choice([5, 60, 500])):
        ledger_id = rng.choice([FENCED, OTHERS, rng.randrange(10), 10 + number, 10 + number])
        place = ledger_id, 1 + number
        is_recovery = rng.random() < recoveries
        status = Status.OK
        if ledger_id == OTHERS:
            status = Status.UNAUTHORIZED
        elif ledger_id == FENCED and not is_recovery:
            status = Status.FENCED
        sent.append(place)
        frames.append(_frame(*place, is_recovery=is_recovery))
        expected[place] = status
    size = sum(map(len, frames))
    cuts = sorted(rng.sample(range(1, size), rng.randrange(min(size - 1, 6))))

    async def scenario(bookie: SimulatedServer) -> None:
        async with bookie.peer("others") as peer:
            other = AddRequest(OTHERS, 0, OTHER_KEY, entry_of(OTHERS, 0))
            assert (await call(peer, other)).status is Status.OK
            await call(peer, ReadRequest(FENCED, -1, KEY, is_fencing=True))
            assert await _call_in_chunks(bookie, frames, cuts) == expected
            for is_flushed in (False, True):
                for ledger_id, entry_id in rng.sample(sent, min(50, len(sent))):
                    answer = await call(peer, ReadRequest(ledger_id, entry_id))
                    assert isinstance(answer, ReadResponse)
                    assert (answer.status is Status.OK) is (
                        expected[ledger_id, entry_id] is Status.OK
                    )
                    if answer.body is not None:
                        assert bytes(answer.body) == entry_of(ledger_id, entry_id)
                if not is_flushed:
                    await bookie.flush()

    run_server(scenario, directories=directories, journals=journals, queued_bytes_max=8 << 20)


@pytest.mark.parametrize(("highest", "looks_each"), [(9, 0), (10**9, 2)])
def test_a_new_ledger_costs_few_reads_of_the_index(
    monkeypatch: pytest.MonkeyPatch, highest: int, looks_each: int
) -> None:
    """The index is searched for the ledger and for a tombstone, unless its id is above all known
    ones."""
    looks = 0
    really = MemoryKeyValue.get

    def counted(self: MemoryKeyValue, key: bytes) -> bytes | None:
        nonlocal looks
        looks += key[:1] in (b"L", b"T")
        return really(self, key)

    monkeypatch.setattr(MemoryKeyValue, "get", counted)
    frames = [_frame(ledger_id, 0) for ledger_id in range(10, 1010)]

    async def scenario(bookie: SimulatedServer) -> None:
        nonlocal looks
        await _call_in_chunks(bookie, [_frame(highest, 0)], ())
        await bookie.flush()
        looks = 0
        answers = await _call_in_chunks(bookie, frames, ())
        assert set(answers.values()) == {Status.OK}

    run_server(scenario, queued_bytes_max=8 << 20)
    assert looks == looks_each * len(frames)


def test_a_chunk_of_new_ledgers_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = running = 0
    really = LedgerStates.create

    def counted(self: LedgerStates, ledger_id: int, master_key: bytes) -> LedgerState:
        nonlocal longest, running
        running += 1
        longest = max(longest, running)
        return really(self, ledger_id, master_key)

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal running
            running = 0

    monkeypatch.setattr(LedgerStates, "create", counted)
    frames = [_frame(ledger_id, 0) for ledger_id in range(10, 5010)]

    async def scenario(bookie: SimulatedServer) -> None:
        trio.lowlevel.add_instrument(Steps())
        answers = await _call_in_chunks(bookie, frames, ())
        assert set(answers.values()) == {Status.OK}

    run_server(scenario, queued_bytes_max=8 << 20)
    assert 100 < longest <= 700


def test_an_occasional_new_ledger_does_not_double_the_work_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0

    def counted(*arguments: Any) -> Iterator[tuple[int, int, bytes, int]]:
        nonlocal looked_at
        for frame in frames_ahead(*arguments):
            looked_at += 1
            yield frame

    monkeypatch.setattr("bookie.server.add_intake.frames_ahead", counted)
    frames = [_frame(7, n) if n % 100 else _frame(1000 + n, n) for n in range(1, 3001)]

    async def scenario(bookie: SimulatedServer) -> None:
        await _call_in_chunks(bookie, [_frame(7, 0)], ())
        answers = await _call_in_chunks(bookie, frames, ())
        assert set(answers.values()) == {Status.OK}

    run_server(scenario, queued_bytes_max=8 << 20)
    assert 30 <= looked_at <= 30 * 20
