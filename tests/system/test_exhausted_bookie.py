"""Peers that take connections, memory and descriptors of a bookie: what others need is left.

Every number is a count or a size; a neighbour that is served proves that nothing is waited for.
"""

from __future__ import annotations

import re
import resource
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import Status
from ledger.wire import v2
from ledger.wire.messages import (
    AddRequest,
    AddResponse,
    BatchReadRequest,
    BatchReadResponse,
    Request,
    RequestBody,
    ResponseBody,
)
from tests.system.cluster import memory_bytes

pytestmark = pytest.mark.system

KEY = master_key(b"secret")
DIGEST = Digest(DigestType.CRC32C, b"secret")
MIB = 1 << 20
_PROCESS = """
import resource, sys
from pathlib import Path
from bookie.process import run_bookie_process
soft, hard = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
sys.exit(run_bookie_process(Path(sys.argv[1]), is_child=False))
"""
_CONFIG = """
metadata_uri = "sqlite://{0}/cluster.db"
port = 0
bookie_id = "the-bookie"
journal_directories = ["{0}/journal"]
ledger_directories = ["{0}/ledgers"]
journal_file_bytes_max = 16777216
checkpoint_interval_ms = 100
garbage_interval_ms = 3600000
"""


@dataclass
class RunningBookie:
    """A bookie process, and what it writes to stderr."""

    process: trio.Process
    port: int
    said: Path

    def log(self) -> str:
        return self.said.read_text()


@asynccontextmanager
async def running(
    directory: Path, settings: str = "", *, soft: int = 4096, hard: int = 4096
) -> AsyncIterator[RunningBookie]:
    config, said = directory / "bookie.toml", directory / "stderr"
    config.write_text(_CONFIG.format(directory) + settings)
    command = [sys.executable, "-c", _PROCESS, str(config), str(soft), str(hard)]
    with said.open("wb") as stderr:
        process = await trio.lowlevel.open_process(command, stdout=-1, stderr=stderr)
    assert process.stdout is not None
    try:
        with trio.fail_after(120):
            ready = await process.stdout.receive_some()
            assert ready.startswith(b"ready the-bookie"), said.read_text()
            found = re.search(r"address=127\.0\.0\.1:(\d+)", said.read_text())
            assert found is not None
            yield RunningBookie(process, int(found.group(1)), said)
            assert process.poll() is None, f"the bookie died: {said.read_text()[-2000:]}"
    finally:
        process.kill()
        await process.wait()


class Neighbour:
    """A correct client, on a connection of its own for each call."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.added = 0

    async def call(self, body: RequestBody) -> ResponseBody:
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with stream:
            await stream.send_all(v2.encode_request(Request(2, 0, body)))
            data = b""
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                chunk = await stream.receive_some(1 << 20)
                assert chunk, "the neighbour's connection was closed"
                data += chunk
            return v2.decode_response(data[4:]).body

    async def add(self, payload: bytes = b"payload") -> None:
        header, body = DIGEST.encode_entry(7, self.added, self.added - 1, 10, payload)
        answer = await self.call(AddRequest(7, self.added, KEY, header + bytes(body)))
        assert answer == AddResponse(Status.OK, 7, self.added, self.added)
        self.added += 1


def connect(port: int, count: int, data: bytes = b"") -> list[socket.socket]:
    """Opens connections that stay; sends `data` on each, as far as the sockets take it."""
    held = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=30)
        one.setblocking(False)
        if data:
            try:
                one.send(data)
            except OSError:
                pass  # it was replaced already
        held.append(one)
    return held


async def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    async with running(tmp_path, "connections_max = 100\n") as bookie:
        neighbour = Neighbour(bookie.port)
        held = connect(bookie.port, 300)
        for _ in range(5):
            await neighbour.add()
        for one in held:
            one.close()


async def test_announced_frames_take_no_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        neighbour = Neighbour(bookie.port)
        await neighbour.add()
        before = memory_bytes(bookie.process.pid)
        held = connect(bookie.port, 900, struct.pack(">iI", 5 * MIB, v2.ADD_HEADER)[:5])
        await neighbour.add(bytes(4 * MIB))
        grown = memory_bytes(bookie.process.pid, "VmHWM") - before
        for one in held:
            one.close()
        assert grown < 150 * MIB, f"900 begun frames cost {grown >> 20} MiB"


@pytest.mark.parametrize("hard", [256, 4096])
async def test_descriptors_are_left_for_files(tmp_path: Path, hard: int) -> None:
    """More connections than descriptors, while journals, entry logs and index make files."""
    async with running(tmp_path, soft=200, hard=hard) as bookie:
        soft, _ = resource.prlimit(bookie.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard
        neighbour = Neighbour(bookie.port)
        held = connect(bookie.port, 300)
        for _ in range(12):
            await neighbour.add(bytes(3 * MIB))  # a journal file for every five of them
        for one in held:
            one.close()
        warned = "connections_max is 2000, but the process may open" in bookie.log()
        assert warned == (hard == 256)


async def test_too_few_descriptors_end_the_start_with_the_number_needed(tmp_path: Path) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text(_CONFIG.format(tmp_path))
    command = [sys.executable, "-c", _PROCESS, str(config), "100", "100"]
    ended = await trio.run_process(command, capture_stderr=True, check=False)
    assert ended.returncode != 0
    assert b"the process may open 100 files" in ended.stderr
    assert not (tmp_path / "journal").exists()


async def test_replies_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, 'replies_bytes_max = "32MB"\n') as bookie:
        neighbour = Neighbour(bookie.port)
        for _ in range(8):
            await neighbour.add(bytes(MIB))
        before = memory_bytes(bookie.process.pid)
        request = v2.encode_request(Request(2, 0, BatchReadRequest(7, 0, 0, 5 * MIB)))
        held = connect(bookie.port, 60, request * 50)
        for _ in range(5):
            batch = await neighbour.call(BatchReadRequest(7, 0, 2, 5 * MIB))
            assert isinstance(batch, BatchReadResponse)
            assert batch.status is Status.OK
            await neighbour.add()
        grown = memory_bytes(bookie.process.pid, "VmHWM") - before
        for one in held:
            one.close()
        assert grown < 200 * MIB, f"60 peers that read nothing cost {grown >> 20} MiB"
