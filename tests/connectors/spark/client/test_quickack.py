"""Input of a task is acknowledged at once, and sockets are not changed otherwise."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyspark.sql.types import StructType

from connectors.spark.client.quickack import set_quickack
from connectors.spark.options.options import ReadOptions
from connectors.spark.source.batch_reader import LedgerstreamReader
from connectors.spark.source.stream_reader import LedgerstreamStreamReader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="an option of Linux")


@pytest.fixture
def late() -> Iterator[socket.socket]:
    """A connected socket that delays its acknowledgements."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as server,
        closing(socket.create_connection(server.getsockname())) as ours,
        closing(server.accept()[0]),
    ):
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert not _is_prompt(ours)
        yield ours


def _is_prompt(connected: socket.socket) -> bool:
    return bool(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def _options(*, is_streaming: bool) -> ReadOptions:
    options = {"cluster": "sqlite:///nowhere/cluster.db", "stream": "demo/clicks"}
    return ReadOptions.parse(options, {}, is_streaming=is_streaming)


def test_delayed_acknowledgements_are_sent_at_once(late: socket.socket) -> None:
    set_quickack()
    assert _is_prompt(late)


def test_unpickling_a_streaming_reader_sets_quickack(late: socket.socket) -> None:
    reader = LedgerstreamStreamReader(_options(is_streaming=True), StructType())
    sent = pickle.dumps(reader)
    assert not _is_prompt(late)
    pickle.loads(sent)
    assert _is_prompt(late)


def test_unpickling_a_batch_reader_sets_quickack(late: socket.socket) -> None:
    reader = LedgerstreamReader(_options(is_streaming=False), StructType())
    sent = pickle.dumps(reader)
    assert not _is_prompt(late)
    pickle.loads(sent)
    assert _is_prompt(late)


@pytest.mark.parametrize("is_blocking", [True, False])
def test_sockets_stay_as_blocking_as_they_were(late: socket.socket, is_blocking: bool) -> None:
    late.setblocking(is_blocking)
    set_quickack()
    assert os.get_blocking(late.fileno()) == is_blocking


def test_nothing_is_touched_under_a_default_timeout(
    late: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getdefaulttimeout", lambda: 5.0)
    set_quickack()
    assert not _is_prompt(late)


def test_other_sockets_are_unaffected(late: socket.socket) -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        set_quickack()
    assert _is_prompt(late)
