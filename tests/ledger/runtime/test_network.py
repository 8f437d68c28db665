"""TCP transports: what they promise when a connection ends under whoever uses it."""

from __future__ import annotations

import socket

import pytest
import trio

from ledger.runtime.network import TcpTransport


async def test_who_waits_for_a_closed_transport_is_told_so() -> None:
    left, right = socket.socketpair()
    with right:
        transport = TcpTransport(left)
        transport.close()
        for _ in range(2):
            with pytest.raises(trio.ClosedResourceError):
                await transport.wait_readable()
            with pytest.raises(trio.ClosedResourceError):
                await transport.wait_writable()
        transport.close()  # a second time harms nobody
