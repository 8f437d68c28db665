"""The ZooKeeper driver without a server, with a silent one, or with one that sends garbage."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
import trio
import trio.testing

from ledger.errors import MetadataUnavailable
from ledger.metastore import open_store
from ledger.metastore.zookeeper.store import open_zookeeper
from tests.zookeeper import RunningZooKeeper

from .steps import LONG_MS, PATIENCE_S

pytestmark = pytest.mark.zookeeper


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def test_no_server_at_the_start_is_an_error_within_the_session_timeout() -> None:
    address = unused_address()
    started_at = trio.current_time()
    with pytest.raises(MetadataUnavailable) as refusal:
        async with open_store(f"zk://{address}/ledgers", session_timeout_ms=500, may_create=True):
            raise AssertionError("must not be entered")
    assert trio.current_time() - started_at < 10
    for part in (address, "0.5 s", "Connection refused", "check that it runs", "firewall"):
        assert part in str(refusal.value)


async def test_a_server_that_accepts_but_sends_nothing_does_not_delay_the_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers"
        with trio.fail_after(20), pytest.raises(MetadataUnavailable, match="no answer"):
            async with open_store(uri, session_timeout_ms=500, may_create=True):
                raise AssertionError("must not be entered")
    assert not [t for t in threading.enumerate() if t.name.startswith("zookeeper 127")]


async def test_a_host_name_without_an_address_is_named_in_the_error() -> None:
    with pytest.raises(MetadataUnavailable, match="do the names have addresses"):
        async with open_store(
            "zk://nowhere.invalid/ledgers", session_timeout_ms=300, may_create=True
        ):
            raise AssertionError("must not be entered")


async def test_the_live_one_of_several_servers_is_found(
    shared_zookeeper: RunningZooKeeper,
) -> None:
    dead = ",".join(unused_address() for _ in range(3))
    uri = f"zk://{dead};{shared_zookeeper.address}/found/ledgers"
    async with open_store(uri, session_timeout_ms=LONG_MS, may_create=True) as store:
        await store.create("/a", b"")


async def test_cancelling_the_start_leaves_no_thread() -> None:
    with trio.move_on_after(0.05):
        async with open_store(
            f"zk://{unused_address()}/ledgers", session_timeout_ms=30_000, may_create=True
        ):
            raise AssertionError("must not be entered")
    assert not [t for t in threading.enumerate() if t.name.startswith("zookeeper 127")]


async def test_invalid_responses_restart_kazoo() -> None:
    """A negative length ends kazoo's thread: calls that relied on it would wait forever."""
    greeted = 0
    enough = trio.Event()

    async def greet_and_send_garbage(stream: trio.SocketStream) -> None:
        nonlocal greeted
        try:
            await stream.receive_some(4096)
            greeted += 1
            if greeted == 3:
                enough.set()
            greeting = struct.pack(">iiqi16s?", 0, 4000, 7, 16, bytes(16), False)
            await stream.send_all(struct.pack(">i", len(greeting)) + greeting)
            await stream.send_all(struct.pack(">i", -5))
            await stream.receive_some(4096)
        except (OSError, trio.BrokenResourceError):
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, greet_and_send_garbage, 0)
        port = next(
            one.socket.getsockname()[1] for one in listeners if one.socket.family == socket.AF_INET
        )
        async with open_zookeeper(f"zk://127.0.0.1:{port}/l", session_timeout_ms=LONG_MS):
            with trio.fail_after(PATIENCE_S):
                await enough.wait()
        nursery.cancel_scope.cancel()
