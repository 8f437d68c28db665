"""What every client in Python does at the orders of a benchmark, which come as lines.

A client that appends says "ready" and then obeys `STREAM RATE COUNT SIZE`; one that follows a
stream obeys `COUNT` by reading as many records. Each says "done" with the number of records, and
the latencies in milliseconds, as JSON, when the order is `report`: the benchmark has stopped the
clock by then, and a client that writes to a full pipe would do nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, Protocol

import trio

from benchmarks.fixed_rate import STAMP, Append, at_fixed_rate

REPORT: Final = ["report"]


class Client(Protocol):
    """A client of a system."""

    def writer(self, stream: str) -> AbstractAsyncContextManager[Append]:
        """Makes a stream; what it yields returns when a record is durable."""

    def follow(self, stream: str) -> AsyncIterator[Sequence[bytes]]:
        """Yields the records of a stream from its beginning, as they come."""


class Outbox:
    """Gathers what tasks send to one connection in a turn of the loop."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._has_data = trio.Event()

    def add(self, data: bytes) -> None:
        self._data += data
        self._has_data.set()

    async def send(self, connection: trio.SocketStream) -> None:
        """Sends until it is cancelled."""
        while True:
            await self._has_data.wait()
            self._has_data = trio.Event()
            data, self._data = self._data, bytearray()
            await connection.send_all(data)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_latencies(latencies_ms: array[float]) -> None:
    say(json.dumps([round(ms, 3) for ms in latencies_ms]))


async def _orders() -> AsyncIterator[list[str]]:
    # Waiting for an order in a thread would wake it up; a pipe does not.
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        buffer = b""
        async for data in stream:
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                yield line.decode().split()


async def _append(client: Client, streams: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        writers = {name: await stack.enter_async_context(client.writer(name)) for name in streams}
        say("ready")
        latencies_ms = array("d")
        async for order in _orders():
            if order == REPORT:
                say_latencies(latencies_ms)
                continue
            stream, rate, count, size = order
            padding = os.urandom(max(0, int(size) - STAMP.size))

            async def append(padding: bytes, to: Append = writers[stream]) -> None:
                await to(STAMP.pack(time.monotonic()) + padding)

            latencies_ms = await at_fixed_rate(append, padding, int(count), int(rate))
            say(f"done {len(latencies_ms)}")


async def _follow(client: Client, stream: str) -> None:
    records = client.follow(stream)
    left: Sequence[bytes] = ()
    latencies_ms = array("d")
    say("ready")
    async for order in _orders():
        if order == REPORT:
            say_latencies(latencies_ms)
            continue
        count, latencies_ms = int(order[0]), array("d")
        while len(latencies_ms) < count:
            values = left or await anext(records)
            now_s = time.monotonic()
            taken = min(len(values), count - len(latencies_ms))
            for value in values[:taken]:
                latencies_ms.append((now_s - STAMP.unpack_from(value)[0]) * 1e3)
            left = values[taken:]
        say(f"done {count}")


def main(connect: Callable[[str], AbstractAsyncContextManager[Client]]) -> None:
    """Runs the client: `append ADDRESS STREAM ...`, or `follow ADDRESS STREAM`."""
    role, address, *streams = sys.argv[1:]

    async def run() -> None:
        async with connect(address) as client:
            await (_append(client, streams) if role == "append" else _follow(client, streams[0]))

    trio.run(run)


def module_client(module: str, address: str) -> Callable[[str, Sequence[str]], list[str]]:
    """Returns what runs a module of this package as a client."""

    def command(role: str, streams: Sequence[str]) -> list[str]:
        program = [sys.executable, "-P", "-m", f"benchmarks.systems.{module}"]
        return [*program, role, address, *streams]

    return command
