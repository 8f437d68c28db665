"""ZooKeeper killed, paused, and its sessions expired, under load and with a bookie dying in it.

No acknowledged entry is lost, no two writers are acknowledged in one place, and appends continue by
themselves within ten seconds after it is back. Three bookies, each a process; clients here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import pytest
import trio

from ledger.client import LedgerClient
from ledger.errors import MetadataUnavailable, SessionLost
from tests.effort import scaled
from tests.system.cluster import StandaloneCluster
from tests.system.conftest import StartCluster
from tests.system.zookeeper_load import (
    LedgerWriting,
    Load,
    StreamWriting,
    Writing,
    make_namespace,
)
from tests.zookeeper import RunningZooKeeper

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

GO_ON_S = 10.0
PAUSE_S = scaled(ci=12, night=30)
PATIENCE_S = 120.0


class Cut:
    """A cut of the connections to ZooKeeper."""

    def __init__(self) -> None:
        self.is_open = trio.Event()
        self.is_open.set()
        self.connections: list[trio.CancelScope] = []

    def set(self) -> None:
        self.is_open = trio.Event()
        for scope in self.connections:
            scope.cancel()

    def clear(self) -> None:
        self.is_open.set()


@pytest.fixture
def cluster(
    start_cluster: StartCluster, zookeeper_server: RunningZooKeeper
) -> Iterator[StandaloneCluster]:
    started = start_cluster("--metadata", zookeeper_server.uri, "--janitor-interval-s", "0")
    yield started
    ends = [line for line in started.said.read_text().splitlines() if "ended with" in line]
    assert all("ended with signal 9" in line for line in ends), "bookies ended by themselves"


@asynccontextmanager
async def under_load(cluster: StandaloneCluster) -> AsyncIterator[Load]:
    """Runs writers of three streams and of ledgers during the block; then everything is read
    back."""
    with trio.fail_after(PATIENCE_S):
        await make_namespace(cluster.uri)
        async with trio.open_nursery() as nursery:
            load = Load(cluster.uri, nursery)
            for n in range(3):
                load.begin(StreamWriting(f"writer-{n}", stream=f"stream-{n}"))
            for n in range(2):
                load.begin(LedgerWriting(f"ledger-{n}"))
            await load.wait_all(lambda writing: writing.acknowledged > 100)
            yield load
            load.stop()
        await load.check_everything()


def kill_two_bookies(cluster: StandaloneCluster) -> None:
    """Kills two bookies. The supervisor restarts them at once, but without an ack quorum a writer
    must change its ensemble before it continues, and for that it needs ZooKeeper."""
    for number in (1, 2):
        os.kill(cluster.pid_of(number), signal.SIGKILL)


async def check_writers_continue(
    load: Load, request: pytest.FixtureRequest, *, without: StreamWriting | None = None
) -> None:
    """Checks that soon every writer has an acknowledged append that began after now, and streams
    roll."""
    back_s = trio.current_time()
    writings = [writing for writing in load.writings if writing is not without]
    took_s: dict[str, float] = {}

    async def measure(writing: Writing) -> None:
        took_s[writing.name] = await writing.wait_burst_begun_after(back_s) - back_s

    with trio.move_on_after(3 * GO_ON_S):
        async with trio.open_nursery() as nursery:
            for writing in writings:
                nursery.start_soon(measure, writing)
    request.node.user_properties += took_s.items()
    assert len(took_s) == len(writings), took_s
    assert max(took_s.values()) < GO_ON_S, took_s
    for writing in writings:
        if isinstance(writing, StreamWriting):
            await writing.wait_rolled()


async def wait_registered(cluster: StandaloneCluster) -> None:
    async with LedgerClient.connect(cluster.uri) as client:
        with trio.fail_after(GO_ON_S):
            async with aclosing(client.bookies.watch_available()) as changes:
                async for bookies in changes:
                    if len(bookies) == 3:
                        return


async def test_killed_and_restarted(
    cluster: StandaloneCluster,
    zookeeper_server: RunningZooKeeper,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with under_load(cluster) as load:
        zookeeper_server.kill()
        await trio.sleep(1)
        kill_two_bookies(cluster)
        await trio.sleep(3)
        await trio.to_thread.run_sync(zookeeper_server.start)
        await check_writers_continue(load, request)
        await wait_registered(cluster)
    # Where sessions survived, no ledger had to be abandoned. A client has five seconds to reach the
    # server again: on a machine too busy for that its session ends, which is reported.
    errors = [error for writing in load.ledgers for error in writing.errors]
    sessions_lost = [r for r in caplog.records if "ZooKeeper session lost" in r.getMessage()]
    assert all(isinstance(error, SessionLost) for error in errors), errors
    assert not errors or sessions_lost, errors


def is_without_metadata(writing: Writing) -> bool:
    return any(isinstance(error, MetadataUnavailable) for error in writing.errors)


async def test_paused_for_long_with_a_takeover_meanwhile(
    cluster: StandaloneCluster, zookeeper_server: RunningZooKeeper, request: pytest.FixtureRequest
) -> None:
    async with under_load(cluster) as load:
        first = load.streams[0]
        zookeeper_server.pause()
        await trio.sleep(PAUSE_S / 6)
        kill_two_bookies(cluster)
        await trio.sleep(PAUSE_S * 5 / 6)
        second = StreamWriting("second-writer", stream=first.stream)
        load.begin(second)
        await second.wait_until(is_without_metadata)
        zookeeper_server.resume()
        await check_writers_continue(load, request, without=first)
        await wait_registered(cluster)
        assert first.is_taken_over


async def test_sessions_expired_by_force(
    cluster: StandaloneCluster, zookeeper_server: RunningZooKeeper, request: pytest.FixtureRequest
) -> None:
    async with under_load(cluster) as load:
        expired = await trio.to_thread.run_sync(zookeeper_server.expire_sessions)
        assert expired >= 8  # of three bookies and five clients
        await check_writers_continue(load, request)
        await wait_registered(cluster)
        assert [writing.errors for writing in load.ledgers] == [[], []]
        # The registrations of the clients are gone: their ledgers may not change an ensemble any
        # more.
        kill_two_bookies(cluster)
        await check_writers_continue(load, request)
        for writing in load.ledgers:
            assert isinstance(writing.errors[0], SessionLost)
            assert "the metadata session of its writer ended" in str(writing.errors[0])


async def test_a_writer_cut_off_alone_is_fenced(
    cluster: StandaloneCluster, zookeeper_server: RunningZooKeeper
) -> None:
    """It still reaches the bookies and counts as the owner for itself when another one takes
    over."""
    async with under_load(cluster) as load, cuttable(zookeeper_server.server.port) as (port, cut):
        alone = StreamWriting("alone", stream="contested")
        uri = f"zk://127.0.0.1:{port}/ledgers"
        load.begin(alone, uri)
        await alone.wait_until(lambda writing: writing.acknowledged > 100)
        cut.set()
        cut_s = trio.current_time()
        await alone.wait_burst_begun_after(cut_s + 1)
        load.begin(second := StreamWriting("second-writer", stream="contested"))
        await second.wait_until(lambda writing: writing.acknowledged > 100)
        cut.clear()
        with trio.fail_after(GO_ON_S):
            await alone.wait_until(lambda writing: bool(writing.errors))
        assert alone.is_taken_over


async def test_a_client_started_meanwhile_reports_the_cause(
    zookeeper_server: RunningZooKeeper,
) -> None:
    zookeeper_server.kill()
    began_s = trio.current_time()
    with pytest.raises(MetadataUnavailable, match=f"ZooKeeper at {zookeeper_server.address} was"):
        async with LedgerClient.connect(zookeeper_server.uri):
            raise AssertionError("there is no ZooKeeper")
    assert trio.current_time() - began_s < 2 * GO_ON_S


def test_a_bookie_started_meanwhile_waits(
    start_cluster: StartCluster, zookeeper_server: RunningZooKeeper
) -> None:
    cluster = start_cluster("--metadata", zookeeper_server.uri, bookies=1)
    cluster.end()
    config = str(cluster.directory / "bookie-1" / "bookie.toml")
    zookeeper_server.kill()
    with cluster.begin("bookie", "run", "--config", config) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stderr:
            if b"bookie waits for its metadata store cause=" in line:
                break
        zookeeper_server.start()
        assert process.stdout.readline() == f"ready 127.0.0.1:{cluster.ports()[0]}\n".encode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


@asynccontextmanager
async def cuttable(port: int) -> AsyncIterator[tuple[int, Cut]]:
    """Forwards a port to `port` until it is cut: then connections break, and new ones get no
    reply."""
    cut = Cut()

    async def carry(source: trio.SocketStream, target: trio.SocketStream) -> None:
        async for data in source:
            await target.send_all(data)

    async def serve(client: trio.SocketStream) -> None:
        await cut.is_open.wait()
        try:
            server = await trio.open_tcp_stream("127.0.0.1", port)
            async with server, trio.open_nursery() as both:
                cut.connections.append(both.cancel_scope)
                both.start_soon(carry, client, server)
                await carry(server, client)
                both.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield listeners[0].socket.getsockname()[1], cut
        nursery.cancel_scope.cancel()
