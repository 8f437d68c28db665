"""Attacks over one connection: what is sent, and how it is counted what the bookie made of it."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import trio

from ledger.core.authentication.bearer import bearer_message
from ledger.core.authentication.names import PLUGINS, TOKEN
from ledger.errors import LedgerError
from ledger.wire import v2, v3
from ledger.wire.messages import AuthRequest, StartTlsRequest
from tests.hostile.frames import (
    Pool,
    changed,
    frame_of,
    length_bomb,
    malformed_auth,
    mutated,
    random_bytes,
    valid_frames,
)
from tests.hostile.http_requests import hostile_request
from tests.hostile.tally import Tally
from tests.hostile.tls_session import TlsSession, random_record, taken_frames

FRAMES, TLS, HTTP = KINDS = ("frames", "TLS records", "HTTP requests")
BATCH: Final = 1000
"""Frames, or records, in one piece."""
POOL: Final = 1000
HELD: Final = 20
_STUCK_S: Final = 60.0
"""An attack is stuck if no byte of an answer comes for this long: on a busy machine all answers to
a flood may take longer, because lists of entries and sizes of disks are made a few at a time."""
_IMPATIENT_S: Final = 1.0
"""After this time an attacker goes whom the bookie lets wait on purpose."""
_DECODED_SHARE: Final = 16
"""The status of one of this many answers is counted."""
_patience: ContextVar[trio.CancelScope] = ContextVar("_patience")
"""Of the attack in progress; each answer prolongs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bookie, and what attackers know of it."""

    name: str
    port: int
    http_port: int
    tls_port: int = 0
    """0: it has no TLS, no users and no permissions."""
    token: str = ""
    """Of a user who may use the ledgers of a namespace of his own."""
    ledgers: tuple[int, ...] = ()
    """His, others', and some that do not exist."""


class Attacker:
    """Attacks one bookie from changing addresses of this machine."""

    def __init__(self, target: Target, rng: random.Random, tally: Tally) -> None:
        self.target, self.rng, self.tally = target, rng, tally
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        has_users = bool(target.tls_port)
        self._pools = {
            (version, is_user): Pool(
                rng, version, target.ledgers, plain=has_users and not is_user, size=POOL
            )
            for version in (2, 3)
            for is_user in ((False, True) if has_users else (False,))
        }
        token = bearer_message(target.token) if has_users else b""
        self._login = {
            version: frame_of(version, AuthRequest(PLUGINS[TOKEN], token)) for version in (2, 3)
        }
        self.attacks: dict[str, list[tuple[int, Callable[[], Awaitable[None]]]]] = {
            FRAMES: [
                (12, self.flood), (6, self.mutated_frames), (2, self.noise), (2, self.bombs),
                (1, self.half_frames), (3 if has_users else 0, self.authentication),
            ],
            TLS: [
                (1, self.records), (8, self.changed_records), (8, self.changed_hello),
                (1, self.half_handshakes), (4, self.after_start_tls),
            ],
            HTTP: [(20, self.http), (1, self.half_requests)],
        }  # fmt: skip
        """The attacks of each kind, with their weights."""

    async def attack(self, kind: str) -> None:
        """Attacks once."""
        weights, attacks = zip(*self.attacks[kind], strict=True)
        one = self.rng.choices(attacks, weights)[0]
        self.tally.connections[one.__name__] += 1
        with trio.move_on_after(_STUCK_S) as scope:
            _patience.set(scope)
            try:
                await one()
            except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                pass  # refused, or reset while bytes were in flight
        if scope.cancelled_caught:
            self.tally.stuck[one.__name__] += 1

    @asynccontextmanager
    async def _connected(self, port: int) -> AsyncGenerator[trio.SocketStream]:
        rng = self.rng
        source = f"127.{rng.randrange(2, 250)}.{rng.randrange(4)}.{rng.randrange(1, 255)}"
        async with await trio.open_tcp_stream("127.0.0.1", port, local_address=source) as stream:
            yield stream

    # ---- frames

    async def flood(self) -> None:
        """A thousand hostile frames in one piece, each of which is answered."""
        version = self.rng.choice((2, 2, 2, 3))
        is_user = bool(self.target.tls_port) and self.rng.random() < 0.5
        batch = self._pools[version, is_user].batch(BATCH)
        async with self._connected(self.target.port) as stream:
            if is_user:
                await stream.send_all(self._login[version])
                async with aclosing(_frames(stream)) as answers:
                    async for answer in answers:
                        assert _status(version, answer) == "OK", "mallory may log in"
                        break
            async with trio.open_nursery() as nursery:
                # If the bookie ends the connection, that is no missing answer.
                nursery.start_soon(_without_errors, stream.send_all, batch)
                await self._count(stream, version, BATCH)

    async def _count(self, stream: trio.SocketStream, version: int, count: int) -> None:
        """Counts answers, until there are as many, or the connection ends."""
        tally = self.tally
        try:
            async with aclosing(_frames(stream)) as answers:
                async for answer in answers:
                    tally.looked_at[FRAMES] += 1
                    if tally.looked_at[FRAMES] % _DECODED_SHARE == 0:
                        status = _status(version, answer)
                        tally.answers[f"{FRAMES}, v{version}: {status}"] += _DECODED_SHARE
                    count -= 1
                    if not count:
                        return
        except trio.Cancelled:
            tally.stuck[f"v{version}, {count} answers missing, of"] += 1
            raise

    async def _send(self, data: bytes, port: int = 0, kind: str = FRAMES) -> int:
        """Sends bytes and reads until the bookie ends the connection; returns the number of
        answers."""
        answers = 0
        async with self._connected(port or self.target.port) as stream:
            await stream.send_all(data)
            await stream.send_eof()
            async with aclosing(_frames(stream)) as frames:
                async for _ in frames:
                    answers += 1
        self.tally.looked_at[kind] += answers + 1
        return answers

    async def mutated_frames(self) -> None:
        rng = self.rng
        await self._send(b"".join(mutated(rng, self.target.ledgers) for _ in range(10)))

    async def noise(self) -> None:
        data = random_bytes(self.rng)
        await self._send(data if self.rng.random() < 0.5 else self._pools[2, False].batch(5) + data)

    async def bombs(self) -> None:
        await self._send(length_bomb(self.rng))

    async def half_frames(self) -> None:
        """Connections that begin a frame, and stay for a moment."""
        await self._hold(self.target.port, lambda: length_bomb(self.rng), FRAMES)

    async def _hold(self, port: int, make: Callable[[], bytes], kind: str) -> None:
        async def held(started: trio.Event) -> None:
            async with self._connected(port) as stream:
                try:
                    await stream.send_all(make())
                finally:
                    await started.wait()

        everything = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(HELD):
                nursery.start_soon(_without_errors, held, everything)
            await trio.sleep(_IMPATIENT_S)
            everything.set()
        self.tally.looked_at[kind] += HELD

    async def authentication(self) -> None:
        """An exchange in which something is wrong; then frames, as if it had been accepted."""
        messages = malformed_auth(self.rng, self.target.token)
        self.tally.looked_at[FRAMES] += len(messages)
        behind = valid_frames(self.rng, self.target.ledgers)
        with trio.move_on_after(_IMPATIENT_S):
            async with self._connected(self.target.port) as stream:
                await stream.send_all(b"".join(messages) + behind)
                await stream.send_eof()
                while await stream.receive_some(1 << 16):
                    pass

    # ---- TLS

    def _session(self) -> TlsSession:
        return TlsSession(self._context, self.rng)

    async def records(self) -> None:
        """A session with a thousand records of a few bytes each, which are hostile frames."""
        rng, session = self.rng, self._session()
        version = rng.choice((2, 3))
        data = self._pools[version, False].batch(BATCH // 4)
        async with self._connected(self.target.tls_port) as stream:
            if not await session.handshake(stream):
                return
            view, records = memoryview(data), []
            while view:
                size = rng.randint(1, 64)
                records.append(session.record(view[:size]))
                view = view[size:]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, b"".join(records))
                await session.receive_frames(stream, BATCH // 4)
            self.tally.looked_at[TLS] += len(records)

    async def changed_records(self) -> None:
        """A session in which records are changed, cut off, repeated or exchanged."""
        rng, session = self.rng, self._session()
        async with self._connected(self.target.tls_port) as stream:
            if not await session.handshake(stream):
                return
            records = [session.record(valid_frames(rng, self.target.ledgers)) for _ in range(5)]
            at, change = rng.randrange(5), rng.randrange(5)
            if change == 0:
                records[at] = changed(rng, records[at])
            elif change == 1:
                records.insert(at, records[at])
            elif change == 2:
                rng.shuffle(records)
            elif change == 3:
                records.insert(at, random_record(rng))
            else:
                records[at] = records[at][: rng.randrange(len(records[at]))]
            await stream.send_all(b"".join(records))
            await stream.send_eof()
            while await stream.receive_some(1 << 16):
                pass
        self.tally.looked_at[TLS] += len(records)

    async def changed_hello(self) -> None:
        """A handshake whose first or second message is changed, or that is none."""
        rng = self.rng
        hello = data = self._session().hello()
        self.tally.looked_at[TLS] += 1
        if rng.random() < 0.2:
            data = rng.choice((random_record(rng), b"GET / HTTP/1.1\r\n\r\n", valid_frames(rng)))
        elif rng.random() < 0.6:
            data = changed(rng, data)
        async with self._connected(self.target.tls_port) as stream:
            if rng.random() < 0.5:  # a whole hello, and then something else
                await stream.send_all(hello)
                await stream.receive_some(1 << 16)
            await stream.send_all(data)
            await stream.send_eof()
            while await stream.receive_some(1 << 16):
                pass

    async def half_handshakes(self) -> None:
        """Connections whose handshake stops, for a moment."""
        hello = self._session().hello()
        cut = lambda: hello[: self.rng.randrange(len(hello) + 1)]  # noqa: E731
        await self._hold(self.target.tls_port, cut, TLS)

    async def after_start_tls(self) -> None:
        """START_TLS, and behind it no handshake, or bytes in clear."""
        rng = self.rng
        begin = frame_of(3, StartTlsRequest())
        behind = rng.choice(
            (changed(rng, self._session().hello()), random_record(rng), begin, valid_frames(rng))
        )
        async with self._connected(self.target.port) as stream:
            await stream.send_all(begin)
            if rng.random() < 0.7:
                await stream.receive_some(1 << 10)
            await stream.send_all(behind)
            await stream.send_eof()
            while await stream.receive_some(1 << 16):
                pass
        self.tally.looked_at[TLS] += 2

    # ---- HTTP

    async def http(self) -> None:
        """One request, which may be none, over a connection of its own."""
        rng, tally = self.rng, self.tally
        has_tls = bool(self.target.tls_port)
        request = hostile_request(rng, self.target.token, may_change=has_tls)
        async with self._connected(self.target.http_port) as stream:
            other: Any = stream
            if has_tls and rng.random() < 0.95:
                other = trio.SSLStream(stream, self._context, https_compatible=True)
            answer = b""
            with trio.move_on_after(_IMPATIENT_S):
                try:
                    await other.send_all(request)
                    if other is stream:
                        await stream.send_eof()
                    while data := await other.receive_some(1 << 16):
                        answer = answer + data if len(answer) < 20 else answer
                except trio.BrokenResourceError:
                    pass
        tally.looked_at[HTTP] += 1
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "none"
        tally.answers[f"{HTTP}: {status}"] += 1

    async def half_requests(self) -> None:
        """Connections whose requests stop, for a moment."""

        def half() -> bytes:
            request = hostile_request(self.rng, self.target.token, may_change=False)
            return request[: self.rng.randrange(len(request) + 1)]

        await self._hold(self.target.http_port, half, HTTP)


def _status(version: int, answer: bytes) -> str:
    """Returns the name of the status of an answer. One to a frame of another version is in that."""
    try:
        response = (v3 if version == 3 else v2).decode_response(answer)
        return str(response.body.status.name)
    except LedgerError:
        return "of another version"


async def _frames(stream: trio.SocketStream) -> AsyncGenerator[bytes]:
    """Yields frames until the other end closes the connection."""
    pending = bytearray()
    while data := await stream.receive_some(1 << 18):
        _patience.get().deadline = trio.current_time() + _STUCK_S
        pending += data
        for frame in taken_frames(pending):
            yield frame


async def _without_errors(function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    try:
        await function(*arguments)
    except (LedgerError, trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        pass
