"""A TCP proxy in front of a bookie that records every frame of both directions.

It is registered under its own address, so that neither the client nor the bookie needs a setting.
Frames are recorded before they are forwarded, so that the reaction to a frame always comes after it
in the record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from ledger.wire.messages import FRAME_BYTES_MAX
from tests.golden.conversation import Event


class RecordingProxy:
    """The proxy. `events` is the record so far; `call` is the name of the client's current call."""

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
        """Waits until an event from number `since` on matches."""
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
                    pass  # one side has reset its connection: the other one is closed, too
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
    """Runs a proxy on a free port of this machine during the block."""
    proxy = RecordingProxy(upstream)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
