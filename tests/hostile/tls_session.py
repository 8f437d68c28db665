"""The client's side of TLS record by record, so that each can be changed, and frames in it."""

from __future__ import annotations

import random
import ssl
from collections.abc import Sequence

import trio


class TlsSession:
    """The client's side of TLS, record by record."""

    def __init__(self, context: ssl.SSLContext, rng: random.Random) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname="x")
        self._rng = rng

    def hello(self) -> bytes:
        """Returns the first message."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    async def handshake(self, stream: trio.SocketStream) -> bool:
        """Returns whether there is a session; the last message may still be to be sent."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                await stream.send_all(self._outgoing.read())
                data = await stream.receive_some(1 << 16)
                if not data:
                    return False
                self._incoming.write(data)
            else:
                await stream.send_all(self._outgoing.read())
                return True

    def record(self, data: bytes | memoryview) -> bytes:
        """Returns a record of these bytes."""
        self._object.write(data)
        return self._outgoing.read()

    async def receive_frames(self, stream: trio.SocketStream, count: int) -> None:
        """Returns when as many answers have come, or the session has ended."""
        pending = bytearray()
        while count:
            data = await stream.receive_some(1 << 16)
            if not data:
                return
            self._incoming.write(data)
            try:
                while True:
                    pending += self._object.read(1 << 16)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return
            count -= len(taken_frames(pending))


def random_record(rng: random.Random) -> bytes:
    kind = rng.choice((20, 21, 22, 23, 24, 25, 0, 255))
    size = rng.choice((0, 1, 2, 50, 16384, 16640, 20000))
    announced = rng.choice((size, size, 65535, 0))
    return bytes([kind, 3, rng.randrange(5)]) + announced.to_bytes(2, "big") + rng.randbytes(size)


def taken_frames(pending: bytearray) -> Sequence[bytes]:
    """Takes the frames that are whole from the front of a buffer."""
    at, found = 0, []
    while len(pending) - at >= 4:
        end = at + 4 + int.from_bytes(pending[at : at + 4], "big")
        if end > len(pending):
            break
        found.append(bytes(pending[at + 4 : end]))
        at = end
    del pending[:at]
    return found
