"""Requests over HTTP end in time, cause no errors by the way they end, and leave nothing behind."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import bookie.monitoring.http
from tests.bookie.monitoring.test_http import Answer, Client, served


async def test_what_waits_for_something_else_than_the_client_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hypercorn waits, after an error, for an answer that will never be sent."""
    ended = trio.Event()

    async def serve(_: object, __: object) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    monkeypatch.setattr(bookie.monitoring.http, "REQUEST_S_MAX", 0.2)
    monkeypatch.setattr(bookie.monitoring.http, "load", lambda *_: serve)
    async with served(tmp_path) as (_, client):
        assert await client.send(b"") == b""
        await ended.wait()


async def test_clients_that_end_their_side_early_cause_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hypercorn ends a stream while its answer is being sent, if the stream can be ended."""

    async def ask(client: Client) -> None:
        stream = await trio.open_tcp_stream(*client.address)
        async with stream:
            try:
                head = b"PUT /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
                await stream.send_all(head + b"x")
                await stream.send_eof()
                await stream.receive_some()
            except trio.BrokenResourceError:
                pass

    async with served(tmp_path) as (_, client):
        for _ in range(4):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(ask, client)
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


async def test_what_requests_leave_behind_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie's collector finds old objects so seldom that requests could fill the memory."""
    monkeypatch.setattr(bookie.monitoring.http, "COLLECTED_EVERY", 20)
    async with served(tmp_path) as (_, client):
        await client.ask("/heartbeat")
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            for _ in range(60):
                await client.ask("/nothing")
            after = len(gc.get_objects())
        finally:
            gc.enable()
        assert after - before < 20 * 100, "a hundred objects of each of the last 20"


async def test_http_2_is_not_spoken(tmp_path: Path) -> None:
    """Its connections had thousands of requests each, whose answers nobody had to take."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAAA\r\n"
    async with served(tmp_path) as (_, client):
        head = f"GET /heartbeat HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n"
        answer = Answer(await client.send(head.encode()))
        assert (answer.status, answer.body) == (200, b"OK\n")
        begun = b""
        with suppress(trio.BrokenResourceError):  # it may be ended before its answer is read
            begun = await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0]))
        assert not begun or begun.startswith(b"HTTP/1.1 4"), begun[:100]
