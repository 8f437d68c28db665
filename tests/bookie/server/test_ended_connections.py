"""A connection that has ended leaves nothing behind, with TLS and without."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import trio

from bookie.core.peers import Peer
from bookie.server.connection import Connection
from bookie.server.send_queue import SendQueue
from ledger.wire.connection import ReceiveBuffer
from tests.bookie.server.test_tls import encrypted_cluster, options, write_and_read
from tests.certificates import Authority


@pytest.mark.parametrize("mode", ["off", "start_tls"])
async def test_a_connection_that_has_ended_is_freed_without_the_collector(
    tmp_path: Path, mode: str
) -> None:
    """The collector finds old cycles very seldom, and a peer may connect as often as it likes."""
    authority = Authority(tmp_path)
    given = {} if mode == "off" else options(authority, mode)
    async with encrypted_cluster(authority) as cluster:
        await write_and_read(cluster, **given)
        server = cluster.bookies[0].server
        assert server is not None
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                await write_and_read(cluster, **given)
            async with await trio.open_tcp_stream(*cluster.bookies[0].address) as stream:
                await stream.send_all(b"\xff" * 100)  # refused
                assert await stream.receive_some() == b""
            with trio.fail_after(30):
                while server.statistics().connections:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            of_connections = (Connection, ReceiveBuffer, SendQueue, Peer)
            kinds = [type(one) for one in gc.get_objects() if isinstance(one, of_connections)]
        finally:
            gc.enable()
        assert kinds.count(Connection) <= 1, "the last one that was accepted"
        assert len(kinds) < 10
