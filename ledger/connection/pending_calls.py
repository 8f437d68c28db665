"""Requests that wait for their responses on one connection, and the matching of the two.

v3 has transaction ids. v2 has none except in batch reads: its responses are matched by operation,
ledger and entry, in the order of the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outcome import Error, Value

from ledger.errors import LedgerError, LocalProtocolError, RemoteProtocolError
from ledger.runtime.parking import ParkingSlot
from ledger.wire import v2, v3, v3_forms
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    ErrorResponse,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    ResponseBody,
)

WRITER_TXN_ID = 1 << 62
"""Transaction id of all adds of writers in v3: their responses name ledger and entry."""

OnAnswer = Callable[[ResponseBody | None], None]

_ANSWER_TYPES: dict[type[RequestBody], type[ResponseBody]] = {
    BatchReadRequest: BatchReadResponse,
    **{
        asked: v3_forms.RESPONSE_OF_OPERATION[int(form.operation)].body_type
        for asked, form in v3_forms.REQUEST_OF_TYPE.items()
    },
}


class PendingCall:
    """One request. The task that wants its answer waits in `waiter`; where no task waits,
    `on_answer` is called with the answer, or with None if there will be none.

    `keeps_views`: the answer is used after `on_answer`, so it must not be in the receive buffer.
    """

    __slots__ = ("answer_type", "keeps_views", "key", "on_answer", "waiter")

    def __init__(self, key: object, answer_type: type[ResponseBody]) -> None:
        self.key = key
        self.answer_type = answer_type
        self.waiter: ParkingSlot | None = None
        self.on_answer: OnAnswer | None = None
        self.keeps_views = True


class PendingCalls:
    """The pending calls of one connection of wire `version`."""

    def __init__(self, version: int) -> None:
        self.waiting = 0
        """Requests without a response yet, including those for which no task waits any more."""
        self._version = version
        self._codec = v3 if version == 3 else v2
        self._calls: dict[object, deque[PendingCall]] = {}
        self._txn_id = 0

    def begin(self, body: RequestBody) -> tuple[PendingCall, bytes]:
        """Returns a new call and the frame to send."""
        self._txn_id += 1
        request = Request(self._version, self._txn_id, body)
        data = self._codec.encode_request(request)
        call = PendingCall(self._key_of(request), _ANSWER_TYPES[type(body)])
        self._calls.setdefault(call.key, deque()).append(call)
        self.waiting += 1
        return call, data

    def is_add(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the response to this add belongs to a call (and not to a writer)."""
        return self.waiting > 0 and (AddRequest, ledger_id, entry_id) in self._calls

    def keeps_views(self, frame: memoryview) -> bool:
        """Whether the response in a frame of v2 is used after `deliver`."""
        request_id = v2.batch_request_id(frame)
        calls = None if request_id is None else self._calls.get(request_id)
        return calls is None or calls[0].keeps_views

    async def wait(self, call: PendingCall) -> ResponseBody:
        """Returns the response; raises the error that `fail_all` was given. May be cancelled."""
        # After a cancellation the call stays: its late answer must be matched to it, in order.
        call.waiter = ParkingSlot()
        answer: ResponseBody = await call.waiter.park()
        return answer

    def deliver(self, frame: memoryview) -> ResponseBody | None:
        """Hands a response to its call; the response to a writer's add (v3) is returned instead.

        Raises RemoteProtocolError for a response without a request.
        """
        response = self._codec.decode_response(frame)
        body: ResponseBody = response.body
        if response.txn_id == WRITER_TXN_ID and self._version == 3:
            return body
        key: object
        if self._version == 3 or isinstance(body, BatchReadResponse):
            key = response.txn_id
        elif isinstance(body, ReadResponse):
            key = (ReadRequest, body.ledger_id, body.entry_id)
        elif isinstance(body, AddResponse):
            key = (AddRequest, body.ledger_id, body.entry_id)
        else:
            raise RemoteProtocolError(f"unexpected {type(body).__name__} over protocol v2")
        calls = self._calls.get(key)
        if calls is None:
            raise RemoteProtocolError(f"answer {type(body).__name__} to nothing we asked")
        call = calls[0]
        # The OK to another kind of request must not be taken for the response to this one.
        if not isinstance(body, (call.answer_type, ErrorResponse)):
            raise RemoteProtocolError(
                f"answer {type(body).__name__} where a {call.answer_type.__name__} was due"
            )
        calls.popleft()
        if not calls:
            del self._calls[key]
        self.waiting -= 1
        if call.waiter is not None:
            call.waiter.unpark(Value(body))
        elif call.on_answer is not None:
            call.on_answer(body)
        return None

    def fail_all(self, error: Callable[[], LedgerError]) -> None:
        """Fails each call with an error of its own."""
        calls, self._calls = self._calls, {}
        self.waiting = 0
        for waiting in calls.values():
            for call in waiting:
                if call.waiter is not None:
                    call.waiter.unpark(Error(error()))
                elif call.on_answer is not None:
                    call.on_answer(None)

    def _key_of(self, request: Request) -> object:
        if self._version == 3:
            return request.txn_id
        body = request.body
        if isinstance(body, BatchReadRequest):
            return request.txn_id
        if isinstance(body, ReadRequest | AddRequest):
            return type(body), body.ledger_id, body.entry_id
        raise LocalProtocolError(f"{type(body).__name__} cannot be sent over protocol v2")
