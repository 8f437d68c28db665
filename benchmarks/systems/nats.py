"""NATS JetStream: three servers, streams of three replicas, files synced before a reply.

The client publishes to a stream's subject and awaits the server's reply to each; it follows a
stream by a consumer to which the server pushes.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.fixed_rate import Append
from benchmarks.systems import drivers, programs
from benchmarks.systems.system import Running, free_ports, is_listening, servers

ABOUT = "NATS {version}: JetStream, 3 copies (R3), each synced, acknowledged by 2"
_SERVERS = 3
_RECEIVE_BYTES = 1 << 18
_RETRY_S, _TIMEOUT_S = 0.2, 30.0
_CONFIG = """\
server_name: n{number}
listen: "127.0.0.1:{port}"
max_payload: 8MB
jetstream {{ store_dir: "{directory}", sync_interval: always }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


def missing() -> str:
    return programs.missing("nats-server")


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    ports = free_ports(2 * _SERVERS)
    clients, routes = ports[:_SERVERS], ports[_SERVERS:]
    listed = ", ".join(f'"nats://127.0.0.1:{route}"' for route in routes)
    with servers(directory) as started:
        for number, (port, route) in enumerate(zip(clients, routes, strict=True)):
            config = directory / f"nats-{number}.conf"
            store = directory / f"nats-{number}"
            text = _CONFIG.format(
                number=number, port=port, route=route, routes=listed, directory=store
            )
            config.write_text(text)
            command = [programs.path("nats-server"), "-c", str(config)]
            started.start(f"nats-{number}", command, {})
        started.wait_ready("nats-server", lambda: all(map(is_listening, clients)))
        address = str(clients[0])
        yield Running(address, drivers.module_client("nats", address), started.pids)


class _Client:
    """One connection. `MSG subject sid [reply] size` is answered by what its subject names."""

    def __init__(self, connection: trio.SocketStream, outbox: drivers.Outbox) -> None:
        self._connection = connection
        self._outbox = outbox
        self._inbox = f"_INBOX.{os.urandom(8).hex()}"
        self._number = 0
        self._waiting: dict[str, tuple[trio.Event, list[bytes]]] = {}
        self._pushed: list[bytes] = []
        self._has_pushed = trio.Event()
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        outbox.add(f"CONNECT {json.dumps(options)}\r\nSUB {self._inbox}.* 1\r\n".encode())

    async def receive(self) -> None:
        buffer = b""
        while data := await self._connection.receive_some(_RECEIVE_BYTES):
            buffer = self._take(buffer + data)
        raise EOFError("NATS closed the connection")

    def _take(self, buffer: bytes) -> bytes:
        """Takes whole messages; returns the rest."""
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            line = buffer[at:end]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split()
                past = end + 2 + int(words[-1])
                if len(buffer) < past + 2:
                    break
                head = int(words[-2]) if words[0] == b"HMSG" else 0
                self._message(words[1].decode(), buffer[end + 2 + head : past])
                at = past + 2
                continue
            if line.startswith(b"PING"):
                self._outbox.add(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise RuntimeError(line.decode())
            at = end + 2
        return buffer[at:]

    def _message(self, subject: str, payload: bytes) -> None:
        if subject.startswith(self._inbox):
            done, answer = self._waiting.pop(subject)
            answer.append(payload)
            done.set()
            return
        self._pushed.append(payload)
        self._has_pushed.set()

    async def _request(self, subject: str, payload: bytes) -> bytes:
        self._number += 1
        inbox = f"{self._inbox}.{self._number}"
        done, answer = trio.Event(), list[bytes]()
        self._waiting[inbox] = done, answer
        self._outbox.add(
            b"PUB %b %d\r\n%b\r\n" % (f"{subject} {inbox}".encode(), len(payload), payload)
        )
        await done.wait()
        return answer[0]

    async def _manage(self, what: str, arguments: dict[str, Any]) -> None:
        """Asks until it is done: servers that have just started elect a leader first."""
        said = b""
        with trio.move_on_after(_TIMEOUT_S):
            while True:
                with trio.move_on_after(5):
                    said = await self._request(f"$JS.API.{what}", json.dumps(arguments).encode())
                    if said and "error" not in json.loads(said):
                        return
                await trio.sleep(_RETRY_S)
        raise RuntimeError(f"NATS does not {what}: {said.decode()}")

    @asynccontextmanager
    async def writer(self, stream: str) -> AsyncIterator[Append]:
        config = {
            "name": stream, "subjects": [stream], "storage": "file", "num_replicas": _SERVERS,
        }  # fmt: skip
        await self._manage(f"STREAM.CREATE.{stream}", config)

        async def append(value: bytes) -> None:
            said = await self._request(stream, value)
            if b'"seq"' not in said:
                raise RuntimeError(f"NATS refused a record: {said.decode()}")

        yield append

    async def follow(self, stream: str) -> AsyncIterator[Sequence[bytes]]:
        subject = f"pushed.{stream}"
        self._outbox.add(f"SUB {subject} 2\r\n".encode())
        config = {"deliver_subject": subject, "ack_policy": "none", "deliver_policy": "all"}
        arguments = {"stream_name": stream, "config": config}
        await self._manage(f"CONSUMER.CREATE.{stream}", arguments)
        while True:
            await self._has_pushed.wait()
            self._has_pushed = trio.Event()
            pushed, self._pushed = self._pushed, []
            yield pushed


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[_Client]:
    connection = await trio.open_tcp_stream("127.0.0.1", int(address))
    async with connection, trio.open_nursery() as nursery:
        outbox = drivers.Outbox()
        client = _Client(connection, outbox)
        nursery.start_soon(outbox.send, connection)
        nursery.start_soon(client.receive)
        yield client
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    drivers.main(connect)
