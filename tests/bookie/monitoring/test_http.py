"""A bookie's HTTP server over real sockets: its replies, and the limits of bad clients."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families as parse

import bookie.monitoring.http
from bookie.monitoring.http import CONNECTIONS_MAX, http_address, open_http, serve_http
from bookie.monitoring.http_bodies import BODY_BYTES_MAX
from bookie.monitoring.snapshot import Observer
from ledger.errors import InvalidArgument
from ledger.metastore.decommissions import Decommission, Decommissions
from ledger.metastore.memory import MemoryStore
from tests.real_cluster import RealCluster, now_ms, real_cluster


class Answer:
    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {name.lower(): text for name, _, text in (x.partition(": ") for x in lines)}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends one request per connection, written by hand, so that it may be invalid."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address

    async def send(self, data: bytes) -> bytes:
        """Returns the reply, up to the end of the connection."""
        stream = await trio.open_tcp_stream(*self.address)
        async with stream:
            await stream.send_all(data)
            return b"".join([chunk async for chunk in stream])

    async def ask(
        self, path: str, method: str = "GET", body: bytes = b"", host: str = "localhost"
    ) -> Answer:
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        return Answer(await self.send(head.encode() + body))


@asynccontextmanager
async def served(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[RealCluster, Client]]:
    async with (
        real_cluster(tmp_path, 1, garbage_interval_ms=3_600_000, **settings) as cluster,
        trio.open_nursery() as nursery,
    ):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        observer = Observer(cluster.bookies[0], cluster.disks[0])
        nursery.start_soon(serve_http, listeners, observer)
        address = http_address(listeners, "elsewhere")
        assert address is not None
        with trio.fail_after(30):
            yield cluster, Client(address)
        nursery.cancel_scope.cancel()


async def test_metrics_are_exposed(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        answer = await client.ask("/metrics")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        names = {family.name for family in parse(answer.body.decode())}
        assert "ledgerstream_bookie_journal_sync_seconds" in names


async def test_an_operator_makes_the_bookie_read_only_and_writable_again(tmp_path: Path) -> None:
    path = "/api/v1/bookie/state/readonly"
    async with served(tmp_path) as (cluster, client):
        registry = cluster.bookies[0].registry
        answer = await client.ask(path, "PUT", b'{"readOnly": true}')
        assert answer.json == {"readOnly": True}
        async with aclosing(registry.watch_available()) as changes:
            async for writable in changes:
                if not writable:
                    break
        assert list(await registry.read_only()) == [cluster.bookies[0].bookie_id]
        report = (await client.ask("/api/v1/bookie/report")).json
        assert report["forced_read_only"] is True
        assert report["disks"] in ("ok", "warned")
        assert (await client.ask("/api/v1/bookie/state")).json["availableForHighPriorityWrites"]
        answer = await client.ask(path, "PUT", b'{"readOnly": false}')
        assert answer.json == {"readOnly": False}
        async with aclosing(registry.watch_available()) as changes:
            async for writable in changes:
                if writable:
                    break


async def test_a_bookie_that_is_emptied_reports_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client), MemoryStore(cluster.tree, now_ms) as store:
        bookie = cluster.bookies[0]
        assert (await client.ask("/api/v1/bookie/report")).json["emptying"] is False
        await Decommissions(store).begin(Decommission(bookie=bookie.bookie_id, begun_ms=1))
        async with aclosing(bookie.registry.watch_available()) as changes:
            async for writable in changes:
                if not writable:
                    break
        assert (await client.ask("/api/v1/bookie/state")).json["emptying"] is True
        report = (await client.ask("/api/v1/bookie/report")).json
        assert report["emptying"] is True
        assert report["forced_read_only"] is False
        metrics = (await client.ask("/metrics")).body.decode()
        assert "\nledgerstream_bookie_emptying 1" in metrics


async def test_a_bookie_reports_its_state(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client):
        assert (await client.ask("/heartbeat")).body == b"OK\n"
        assert (await client.ask("/healthz")).json == {"status": "writable"}
        assert (await client.ask("/api/v1/bookie/is_ready")).status == 200
        assert (await client.ask("/api/v1/bookie/state")).json == {
            "running": True,
            "readOnly": False,
            "emptying": False,
            "shuttingDown": False,
            "availableForHighPriorityWrites": True,
        }
        assert (await client.ask("/api/v1/bookie/state/readonly")).json == {"readOnly": False}
        info = (await client.ask("/api/v1/bookie/info")).json
        assert 0 < info["freeSpace"] < info["totalSpace"]
        report = (await client.ask("/api/v1/bookie/report")).json
        assert report["bookie"] == cluster.bookies[0].bookie_id
        assert [one["journal"] for one in report["journals"]] == [0]


async def test_a_bookie_that_does_not_serve_yet_reports_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client):
        cluster.bookies[0].server = None
        cluster.bookies[0].registration = None
        assert (await client.ask("/heartbeat")).status == 200
        assert (await client.ask("/metrics")).status == 200
        assert (await client.ask("/api/v1/bookie/state")).json["running"] is False
        for path in ("/healthz", "/api/v1/bookie/is_ready", "/api/v1/bookie/report"):
            assert (await client.ask(path)).status == 503, path


async def test_marks_and_files_are_listed(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client), cluster.client() as ledgers:
        async with ledgers.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(b"x")
        storage = cluster.bookies[0].storage
        assert storage is not None
        await storage.checkpoint()
        mark = (await client.ask("/api/v1/bookie/last_log_mark")).json
        assert list(mark) == ["LastLogMark: Journal Id - 1(1.journal)"]
        files = (await client.ask("/api/v1/bookie/list_disk_file")).json
        assert set(files) == {"journal files", "entrylog files", "index files"}
        assert files["journal files"].split("\t")[0] == f"{1:016x}.journal"
        only = (await client.ask("/api/v1/bookie/list_disk_file?file_type=entrylog")).json
        assert only == {"entrylog files": f"{1:016x}.log\t"}
        wrong = await client.ask("/api/v1/bookie/list_disk_file?file_type=secret")
        assert wrong.status == 400
        expand = await client.ask("/api/v1/bookie/expand_storage", method="PUT")
        assert (expand.status, "bookie expand-storage CONFIG" in str(expand.json)) == (409, True)


async def test_marks_and_files_of_several_journals_are_distinguished(tmp_path: Path) -> None:
    """In each journal the first file has the id 1."""
    journals = tuple(f"{tmp_path}/j{number}" for number in range(2))
    directories = tuple(f"{tmp_path}/l{number}" for number in range(2))
    async with (
        served(tmp_path, journal_directories=journals, ledger_directories=directories) as (
            cluster,
            client,
        ),
        cluster.client() as ledgers,
    ):
        for _ in range(2):
            async with ledgers.create_ledger(
                ensemble_size=1, write_quorum=1, ack_quorum=1
            ) as writer:
                await writer.append(bytes(100 + 5000 * (writer.ledger_id % 2)))
        storage = cluster.bookies[0].storage
        assert storage is not None
        await storage.checkpoint()
        marks = (await client.ask("/api/v1/bookie/last_log_mark")).json
        assert list(marks) == [
            f"LastLogMark: Journal Id - 1(1.journal) in {directory}" for directory in journals
        ]
        assert len(set(marks.values())) == 2  # a long entry is in one of them
        files = (await client.ask("/api/v1/bookie/list_disk_file")).json
        listed = {kind: names.split("\t")[:-1] for kind, names in files.items()}
        assert {f"{one}/{1:016x}.journal" for one in journals} <= set(listed["journal files"])
        assert {f"{one}/{1:016x}.log" for one in directories} == set(listed["entrylog files"])
        assert {f"{one}/index/CURRENT" for one in directories} <= set(listed["index files"])


async def test_garbage_is_collected_on_request(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client), cluster.client() as ledgers:
        async with ledgers.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append(b"x")
        storage = cluster.bookies[0].storage
        assert storage is not None
        await storage.checkpoint()
        await ledgers.delete_ledger(writer.ledger_id)
        asked = await client.ask("/api/v1/bookie/gc", "PUT", b'{"forceMajor": true}')
        assert asked.json == f"Triggered GC on BookieServer: {cluster.bookies[0].bookie_id}"
        while (await client.ask("/api/v1/bookie/gc")).json == {"is_in_force_gc": "true"}:
            pass
        state = storage.state(writer.ledger_id)
        assert state is not None
        assert state.is_deleted
        assert storage.directories[0].details().garbage.ledgers_deleted == 1


async def test_compaction_is_suspended_and_resumed(tmp_path: Path) -> None:
    path = "/api/v1/bookie/gc"
    async with served(tmp_path) as (_, client):
        free = {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
        assert (await client.ask(f"{path}/suspend_compaction")).json == free
        held = await client.ask(f"{path}/suspend_compaction", "PUT", b'{"suspendMajor": true}')
        assert held.status == 200
        assert (await client.ask(f"{path}/resume_compaction")).json == free | {
            "isMajorGcSuspended": "true"
        }
        both = b'{"resumeMajor": true, "resumeMinor": true}'
        assert (await client.ask(f"{path}/resume_compaction", "PUT", both)).status == 200
        assert (await client.ask(f"{path}/suspend_compaction")).json == free
        (details,) = (await client.ask(f"{path}_details")).json
        assert details["is_compacting"] is False


async def test_settings_are_shown_without_passwords(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client):
        shown = (await client.ask("/api/v1/config/server_config")).json
        assert shown["journal_group_wait_ms"] == 2.0
        object.__setattr__(
            cluster.bookies[0].config, "metadata_uri", "zk://me:p4ssw0rd@h:1/ledgers"
        )
        for path in ("/api/v1/config/server_config", "/api/v1/bookie/report"):
            answer = await client.ask(path)
            assert b"zk://h:1/ledgers" in answer.body, path
            assert b"p4ssw0rd" not in answer.body, path


@pytest.mark.parametrize(
    ("path", "method", "body", "status"),
    [
        ("/nothing", "GET", b"", 404),
        ("/metrics", "DELETE", b"", 405),
        ("/api/v1/bookie/gc/suspend_compaction", "PUT", b"", 400),
        ("/api/v1/bookie/gc/suspend_compaction", "PUT", b'{"suspendMajor": false}', 400),
        ("/api/v1/bookie/gc/resume_compaction", "PUT", b'{"suspendMajor": true}', 400),
        ("/api/v1/bookie/state/readonly", "PUT", b'{"readOnly": 1}', 400),
        ("/api/v1/bookie/state/readonly", "PUT", b'{"readOnly": true, "x": true}', 400),
        ("/api/v1/bookie/state/readonly", "PUT", b"", 400),
        ("/api/v1/bookie/state/readonly", "POST", b'{"readOnly": true}', 405),
        ("/api/v1/bookie/gc", "POST", b"", 405),
        ("/api/v1/bookie/gc", "PUT", b"{", 400),
        ("/api/v1/bookie/gc", "PUT", b"[]", 400),
        ("/api/v1/bookie/gc", "PUT", b'{"forceMajor": "yes"}', 400),
        ("/api/v1/bookie/gc", "PUT", b'{"other": true}', 400),
        ("/api/v1/bookie/gc", "PUT", b"[" * BODY_BYTES_MAX, 400),
        ("/api/v1/bookie/gc", "PUT", b" " * (BODY_BYTES_MAX + 1), 413),
    ],
)
async def test_bad_requests_get_a_cause(
    tmp_path: Path, path: str, method: str, body: bytes, status: int
) -> None:
    async with served(tmp_path) as (cluster, client):
        answer = await client.ask(path, method, body)
        assert answer.status == status
        assert answer.json["error"]
        assert not cluster.bookies[0].is_collection_forced


async def test_an_error_in_a_handler_affects_only_its_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as (cluster, client):
        good, cluster.bookies[0].storage = cluster.bookies[0].storage, None
        answer = await client.ask("/api/v1/bookie/report")
        assert (answer.status, answer.json) == (
            500,
            {"error": "AssertionError: see the bookie's log"},
        )
        cluster.bookies[0].storage = good
        assert (await client.ask("/api/v1/bookie/report")).status == 200
    assert "http request failed path=/api/v1/bookie/report" in caplog.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
async def test_a_page_whose_host_name_was_rebound_is_refused(tmp_path: Path, host: str) -> None:
    async with served(tmp_path) as (_, client):
        answer = await client.ask("/metrics", host=host)
        assert answer.status in (400, 403)
        assert b"ledgerstream_bookie" not in answer.body


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "localhost:1"])
async def test_addresses_are_accepted_as_host_names(tmp_path: Path, host: str) -> None:
    async with served(tmp_path) as (_, client):
        assert (await client.ask("/heartbeat", host=host)).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x02\x01\x00\x00" * 100,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000,
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        b"",
    ],
)
async def test_broken_requests_end_only_their_own_connection(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie.monitoring.http, "SILENCE_S_MAX", 1)
    async with served(tmp_path) as (_, client):
        with trio.move_on_after(10):
            try:
                stream = await trio.open_tcp_stream(*client.address)
                async with stream:
                    await stream.send_all(data)
                    await stream.send_eof()
                    said = b"".join([chunk async for chunk in stream])
                    assert b" 200 " not in said
            except trio.BrokenResourceError:
                pass  # closed before it had read all of it
        assert (await client.ask("/heartbeat")).body == b"OK\n"


async def test_connections_are_few_and_silent_ones_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie.monitoring.http, "SILENCE_S_MAX", 1)
    async with served(tmp_path) as (_, client):
        held = [await trio.open_tcp_stream(*client.address) for _ in range(CONNECTIONS_MAX)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        # It takes the place of one that is silent.
        assert (await client.ask("/heartbeat")).body == b"OK\n"
        async with held.pop(0) as replaced:
            assert await replaced.receive_some() == b""
        reset = held.pop()
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(reset)
        for stream in held:
            async with stream:
                assert await stream.receive_some() == b""
        while not await client.send(b"GET /heartbeat HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            pass


async def test_a_connection_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie.monitoring.http, "REQUEST_S_MAX", 0.2)
    async with (
        served(tmp_path) as (_, client),
        await trio.open_tcp_stream(*client.address) as stream,
    ):
        await stream.send_all(b"GET /metrics HTT")
        assert await stream.receive_some() == b""


async def test_a_client_that_never_reads_does_not_delay_a_stop(tmp_path: Path) -> None:
    """Hypercorn shields its sends from cancellation."""
    stuck: list[trio.SocketStream] = []
    with trio.fail_after(20):
        async with served(tmp_path) as (_, client):
            for _ in range(3):
                stream = await trio.open_tcp_stream(*client.address)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50
                await stream.send_all(request)
                stuck.append(stream)
            await trio.testing.wait_all_tasks_blocked(0.1)
    for stream in stuck:
        await trio.aclose_forcefully(stream)


async def test_off_is_off_and_a_port_in_use_is_reported() -> None:
    assert await open_http("127.0.0.1", 0) == []
    assert http_address([], "h") is None
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(InvalidArgument, match=r"cannot listen for HTTP on 127\.0\.0\.1"):
            await open_http("127.0.0.1", port)
