"""Responses in one chunk, as bookies send them: each ack counts, whatever else is in the chunk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.connection.pending_calls import WRITER_TXN_ID, PendingCalls
from ledger.connection.responses import ResponseReader
from ledger.errors import LedgerError, Status
from ledger.wire import v2, v3
from ledger.wire.connection import ReceiveBuffer
from ledger.wire.messages import (
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    Response,
    ResponseBody,
)


class Sink:
    bytes_pending = 0

    def __init__(self) -> None:
        self.acks: list[int] = []
        self.refusals: list[tuple[int, Status]] = []
        self.settled = 0

    def acked(self, bookie: str, first: int, last: int, *, is_unpolled: bool = False) -> None:
        assert 0 <= first <= last
        self.acks += range(first, last + 1)

    def refused(self, bookie: str, entry_id: int, status: Status) -> None:
        self.refusals.append((entry_id, status))

    def lost(self, bookie: str, error: LedgerError) -> None:
        raise AssertionError(error)

    def fail(self, error: LedgerError) -> None:
        raise AssertionError(error)

    def settle(self) -> None:
        self.settled += 1


@pytest.mark.parametrize("version", [2, 3])
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(0, 6),
            st.sampled_from([Status.OK, Status.OK, Status.TOO_MANY_REQUESTS]),
        ),
        max_size=20,
    )
)
def test_no_ack_is_lost_beside_a_refusal(
    version: int, answers: list[tuple[int, int, Status]]
) -> None:
    calls = PendingCalls(version)
    taker = ResponseReader("b0", calls)
    sinks = {0: Sink(), 1: Sink()}
    taker.sinks.update(sinks)
    codec = v3 if version == 3 else v2
    buffer = ReceiveBuffer()
    for ledger_id, entry_id, status in answers:
        body = AddResponse(status, ledger_id, entry_id, entry_id)
        frame = codec.encode_response(Response(version, WRITER_TXN_ID if version == 3 else 0, body))
        buffer.space()[: len(frame)] = frame
        buffer.received(len(frame))
    (taker.take_v3 if version == 3 else taker.take_v2)(buffer)
    for ledger_id, sink in sinks.items():
        said = [(e, s) for i, e, s in answers if i == ledger_id]
        assert sink.acks == [e for e, s in said if s is Status.OK]
        assert sink.refusals == [(e, s) for e, s in said if s is not Status.OK]
        assert sink.settled == (1 if said else 0)


@pytest.mark.parametrize("keeps_views", [False, True])
def test_a_batch_stays_in_the_receive_buffer_only_for_a_call_that_keeps_nothing_of_it(
    keeps_views: bool,
) -> None:
    calls, buffer = PendingCalls(2), ReceiveBuffer()
    call, _ = calls.begin(BatchReadRequest(7, 0, 2, 1000))
    found: list[ResponseBody | None] = []
    call.on_answer, call.keeps_views = found.append, keeps_views
    frame = v2.encode_response(Response(2, 1, BatchReadResponse(Status.OK, 7, 0, (b"aa", b"bb"))))
    buffer.space()[: len(frame)] = frame
    buffer.received(len(frame))
    ResponseReader("bookie", calls).take_v2(buffer)
    [answer] = found
    assert isinstance(answer, BatchReadResponse)
    assert [bytes(body) for body in answer.bodies] == [b"aa", b"bb"]
    buffer.space()[: len(frame)] = bytes(len(frame))
    assert (bytes(answer.bodies[0]) == b"aa") == keeps_views
