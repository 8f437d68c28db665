"""A TCP proxy in front of a bookie that keeps every frame of both directions.

It stands in the registry under its own address, so a client needs no setting to go through it,
and the bookie behind it need not know. Frames are recorded before they are passed on: whatever
one side does because of a frame comes after it in the record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from ledger.wire.messages import FRAME_BYTES_MAX
from tests.golden.conversation import Event


class RecordingProxy:
    """`events` is the conversation so far; `call` names what the client is doing now."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.events: list[Event] = []
        self.call = ""
        self.port = 0
        self._upstream = upstream
        self._connections = 0
        self._recorded = trio.Event()

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def wait_for(self, matches: Callable[[Event], bool], since: int) -> None:
        """Returns once an event from number `since` on matches."""
        while not any(matches(event) for event in self.events[since:]):
            await self._recorded.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listeners[0].socket.getsockname()[1]
            task_status.started()
            await trio.serve_listeners(self._serve, listeners, handler_nursery=nursery)

    async def _serve(self, client: trio.SocketStream) -> None:
        number = self._connections
        self._connections += 1
        bookie = await trio.open_tcp_stream(*self._upstream)
        async with client, bookie, trio.open_nursery() as nursery:

            async def pass_on(
                source: trio.SocketStream, target: trio.SocketStream, is_request: bool
            ) -> None:
                try:
                    await self._pass_on(source, target, number, is_request)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # one side left without goodbye: then so does the other
                nursery.cancel_scope.cancel()

            nursery.start_soon(pass_on, client, bookie, True)
            nursery.start_soon(pass_on, bookie, client, False)

    async def _pass_on(
        self, source: trio.SocketStream, target: trio.SocketStream, number: int, is_request: bool
    ) -> None:
        data = bytearray()
        while received := await source.receive_some(1 << 16):
            data += received
            while len(data) >= 4:
                length = int.from_bytes(data[:4], "big", signed=True)
                assert 4 <= length <= FRAME_BYTES_MAX, f"a frame of {length} bytes"
                if len(data) < 4 + length:
                    break
                frame = bytes(data[4 : 4 + length])
                self.events.append(Event(self.call, number, is_request, frame))
                recorded, self._recorded = self._recorded, trio.Event()
                recorded.set()
                await target.send_all(data[: 4 + length])
                del data[: 4 + length]


@asynccontextmanager
async def recording_proxy(upstream: tuple[str, int]) -> AsyncIterator[RecordingProxy]:
    """A proxy on a free port of this machine, for as long as the block."""
    proxy = RecordingProxy(upstream)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
