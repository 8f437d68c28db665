"""Redis: one server whose append-only file is synced before each reply, and its streams.

The client sends commands one after the other on one connection and reads the replies in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.fixed_rate import Append
from benchmarks.systems import drivers, programs
from benchmarks.systems.system import Running, free_ports, is_listening, servers

ABOUT = "Redis {version}: 1 copy, synced"
_RECEIVE_BYTES = 1 << 18


def missing() -> str:
    return programs.missing("redis-server")


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    (port,) = free_ports(1)
    options = {
        "port": port, "bind": "127.0.0.1", "dir": directory, "save": "", "appendonly": "yes",
        "appendfsync": "always",
    }  # fmt: skip
    command = [programs.path("redis-server")]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    with servers(directory) as started:
        started.start("redis", command, programs.libraries())
        started.wait_ready("redis-server", lambda: is_listening(port))
        yield Running(str(port), drivers.module_client("redis", str(port)), started.pids)


class _Replies:
    """Reads replies, whatever is in them."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = b""
        self._at = 0

    async def _more(self) -> None:
        data = await self._stream.receive_some(_RECEIVE_BYTES)
        if not data:
            raise EOFError("Redis closed the connection")
        self._buffer, self._at = self._buffer[self._at :] + data, 0

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._at)) < 0:
            await self._more()
        line, self._at = self._buffer[self._at : end], end + 2
        return line

    async def next(self) -> Any:
        line = await self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            size = int(rest)
            while len(self._buffer) - self._at < size + 2:
                await self._more()
            value = self._buffer[self._at : self._at + size]
            self._at += size + 2
            return value
        if kind == b"*":
            return [await self.next() for _ in range(int(rest))]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        return rest


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (
        len(words),
        b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words),
    )


class _Client:
    def __init__(self, port: int, outbox: drivers.Outbox) -> None:
        self._port = port
        self._outbox = outbox
        self._waiting: deque[trio.Event] = deque()

    @asynccontextmanager
    async def writer(self, stream: str) -> AsyncIterator[Append]:
        name = stream.encode()

        async def append(value: bytes) -> None:
            done = trio.Event()
            self._waiting.append(done)
            self._outbox.add(_command(b"XADD", name, b"*", b"v", value))
            await done.wait()

        yield append

    async def receive(self, replies: _Replies) -> None:
        while True:
            await replies.next()
            self._waiting.popleft().set()

    async def follow(self, stream: str) -> AsyncIterator[Sequence[bytes]]:
        words = [b"XREAD", b"COUNT", b"1000", b"BLOCK", b"0", b"STREAMS", stream.encode()]
        last = b"0"
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as connection:
            replies = _Replies(connection)
            while True:
                await connection.send_all(_command(*words, last))
                ((_, records),) = await replies.next()
                last = records[-1][0]
                yield [fields[1] for _, fields in records]


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[_Client]:
    connection = await trio.open_tcp_stream("127.0.0.1", int(address))
    async with connection, trio.open_nursery() as nursery:
        outbox = drivers.Outbox()
        client = _Client(int(address), outbox)
        nursery.start_soon(outbox.send, connection)
        nursery.start_soon(client.receive, _Replies(connection))
        yield client
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    drivers.main(connect)
