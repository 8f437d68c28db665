"""A relay between a client and a server that can lose responses, fall silent, and disconnect.

It can pass a request to the server and drop its response: the one case that killing servers does
not produce reliably.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import trio


class Proxy:
    """A relay from `open_proxy`; clients connect to its `address`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._streams: list[trio.SocketStream] = []
        self.address = ""
        self.answers_pass = True
        self.answers_held = trio.Event()
        """The server has answered a request that was made since `hold_answers`."""
        self._asked: set[int] = set()
        self.is_refusing = False
        self.silences = 0
        """The number of next connections that are accepted but never sent anything."""
        self.connections = 0

    def hold_answers(self) -> None:
        """Passes requests and drops responses from now on, until `break_all` is called."""
        self.answers_pass = False
        self.answers_held = trio.Event()
        self._asked.clear()

    async def break_all(self) -> None:
        """Closes all connections; new ones are served unless `is_refusing`."""
        self.answers_pass = True
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.aclose()

    async def serve(self, client: trio.SocketStream) -> None:
        if self.is_refusing:
            await client.aclose()
            return
        self.connections += 1
        if self.silences:
            self.silences -= 1
            async with client:
                await trio.sleep_forever()
        try:
            server = await trio.open_tcp_stream(*self._target)
        except OSError:
            await client.aclose()
            return
        self._streams += [client, server]
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._relay, client, server, False, nursery.cancel_scope)
            await self._relay(server, client, True, nursery.cancel_scope)

    async def _relay(
        self,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        are_answers: bool,
        scope: trio.CancelScope,
    ) -> None:
        try:
            async for chunk in source:
                if not self.answers_pass:
                    xids = set(_xids(chunk))
                    if not are_answers:
                        self._asked |= xids
                    elif xids & self._asked:
                        self.answers_held.set()
                if are_answers and not self.answers_pass:
                    continue
                await sink.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


def _xids(chunk: bytes | bytearray) -> Iterator[int]:
    """Yields the numbers of the requests, or responses, that begin in a chunk, which begins with
    one; neither pings nor watch events, whose numbers are negative."""
    while len(chunk) >= 8:
        length, xid = struct.unpack_from(">ii", chunk)
        if xid > 0:
            yield xid
        chunk = chunk[4 + max(4, length) :]


@asynccontextmanager
async def open_proxy(address: str) -> AsyncIterator[Proxy]:
    """Opens a relay to `address` ("host:port")."""
    host, _, port = address.rpartition(":")
    proxy = Proxy(host, int(port))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, proxy.serve, 0)
        for listener in listeners:
            if listener.socket.family == trio.socket.AF_INET:
                proxy.address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        yield proxy
        nursery.cancel_scope.cancel()
