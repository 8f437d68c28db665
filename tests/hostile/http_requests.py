"""Hostile requests of HTTP: odd methods, paths, headers and bodies, two requests that look like
one, chunks that never end."""

from __future__ import annotations

import base64
import random

from bookie.core.operations import HTTP_OPERATIONS
from tests.hostile.frames import changed

_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PRI",
            "G\x00T", "X" * 300)  # fmt: skip
_HOSTS = ("localhost", "127.0.0.1", "evil.example.com", "[::1]", "localhost:1, evil", "", "\x00")
_BODIES = (
    b"", b"{", b"[" * 4000, b'{"readOnly": 1}', b"\xff\xfe", b"null", b"9" * 4000, b"x" * 9000,
    b'{"a":' * 600, b"1e999", b"\x1f\x8b\x08" + bytes(100),
)  # fmt: skip
_CHANGES = (b'{"readOnly": true}', b'{"suspendMajor": true}', b'{"force": true}', b"{}")
"""What a user without rights may try, and what would harm a bookie that has no users."""


def _path(rng: random.Random) -> str:
    path = rng.choice(HTTP_OPERATIONS).path
    return rng.choice((
        path, path, path, f"{path}/", f"//{path}", f"/..{path}", f"/%2e%2e{path}", f"{path}%00",
        f"{path}?{'a=b&' * 500}", "/" + "x" * 20_000, "/../../../../etc/passwd", "*", "",
        f"http://evil.example.com{path}", "/\x1b[2J", path.upper(), path.replace("e", "%65"),
    ))  # fmt: skip


def _authorization(rng: random.Random, token: str) -> str:
    basic = base64.b64encode(
        rng.choice((b"mallory:wrong", b"x" * 3000, b":", b"\xff:\xff"))
    ).decode()
    return rng.choice((
        f"Bearer {token}", f"Bearer {token[:-3]}AAA", "Bearer e30.e30.e30", "Bearer", "Bearer " * 9,
        f"Basic {basic}", "Basic !", "Digest x", "Basic", "\x00",
    ))  # fmt: skip


def _framed(rng: random.Random, body: bytes) -> tuple[list[str], bytes]:
    """Returns headers that say how long a body is, which may be wrong or contradict each other, and
    the body."""
    size, chunk = f"Content-Length: {len(body)}", b"%x\r\n%b\r\n" % (len(body), body)
    kind = rng.randrange(10)
    if kind < 4:
        return [size], body
    smuggled = b"0\r\n\r\nPUT /api/v1/bookie/gc HTTP/1.1\r\nHost: localhost\r\n\r\n"
    chunked = "Transfer-Encoding: chunked"
    return rng.choice((
        ([size, chunked], smuggled),
        ([chunked, "Transfer-Encoding: identity"], smuggled),
        ([size, f"Content-Length: {len(body) + 7}"], body),
        (["Content-Length: -1"], body),
        ([f"Content-Length: {10**30}"], body),
        ([chunked], b"FFFFFFFFFFFFFFFF\r\n" + body),
        ([chunked], b"5;" + b"x" * 20_000 + b"\r\nhello\r\n"),
        ([chunked], chunk * 50 + b"0\r\n\r\n"),
        ([chunked], b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"),
        ([chunked], b"0\r\n" + b"Trailer: x\r\n" * 2000 + b"\r\n"),
        (["Transfer-Encoding: xchunked"], chunk),
        (["Content-Encoding: gzip", size], body),
    ))  # fmt: skip


def hostile_request(rng: random.Random, token: str, *, may_change: bool) -> bytes:
    """Returns the bytes of a request, or of two. Without `may_change` it changes nothing of note at
    a bookie that serves everybody."""
    method = rng.choice(("GET", "PUT", rng.choice(_METHODS)))
    body = rng.choice(_CHANGES) if may_change and rng.random() < 0.3 else rng.choice(_BODIES)
    if method == "PUT" and not may_change and not body:
        body = b"nope"  # some changes need no body
    headers, framed = _framed(rng, body)
    if rng.random() < 0.9:
        headers.append(f"Host: {rng.choice(_HOSTS) if rng.random() < 0.3 else 'localhost'}")
    if token and rng.random() < 0.3:
        headers.append(f"Authorization: {_authorization(rng, token)}")
    odd = rng.randrange(20)
    if odd == 0:
        headers += [f"X-{n}: {'y' * 100}" for n in range(rng.choice((10, 100, 500)))]
    elif odd < 4:
        headers.append(rng.choice((
            "Expect: 100-continue", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAA", "Connection: x",
            " folded", "no colon", "X-Forwarded-For: 127.0.0.1", "A\x00: b", ": empty",
            "Accept: application/openmetrics-text", "Origin: https://evil.example.com",
        )))  # fmt: skip
    rng.shuffle(headers)
    version = rng.choice(("HTTP/1.1",) * 8 + ("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "", "HTTP/9.9"))
    end = "\n" if rng.random() < 0.05 else "\r\n"
    head = end.join([f"{method} {_path(rng)} {version}", *headers, "", ""])
    request = head.encode("latin-1") + framed
    return changed(rng, request) if rng.random() < 0.2 else request * rng.choice((1, 1, 1, 2))
