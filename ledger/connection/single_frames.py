"""Sends and receives frames one by one, before a connection carries requests."""

from __future__ import annotations

from ledger.runtime.network import Transport
from ledger.wire.connection import ReceiveBuffer


async def send_frame(transport: Transport, frame: bytes) -> None:
    """Returns when the transport has accepted all of the frame. Raises OSError."""
    rest = memoryview(frame)
    while rest:
        try:
            rest = rest[transport.send(rest) :]
        except BlockingIOError:
            await transport.wait_writable()


async def receive_frame(transport: Transport, buffer: ReceiveBuffer) -> memoryview | None:
    """Returns the body of the next frame; None at the end of the connection. The view is valid
    until the next call. Raises OSError, RemoteProtocolError."""
    while (frame := buffer.next_frame()) is None:
        await transport.wait_readable()
        try:
            count = transport.recv_into(buffer.space())
        except BlockingIOError:
            continue
        if count == 0:
            return None
        buffer.received(count)
    return frame
