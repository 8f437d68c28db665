"""Hostile frames of the bookie's protocol: valid ones for ledgers of others, mutated ones, random
bytes, and messages of authentication that are none."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from ledger.core.authentication.bearer import bearer_message
from ledger.core.authentication.names import PLUGINS
from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import LedgerError
from ledger.wire import v2, v3
from ledger.wire.connection import is_version_3
from ledger.wire.messages import (
    FRAME_BYTES_MAX,
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    RequestBody,
    RequestRefused,
    StartTlsRequest,
    WriteLacRequest,
)

KEY = master_key(b"secret")
DIGEST = Digest(DigestType.CRC32C, b"secret")
LEDGERS = range(50)
_LONG_POLL_MS_MAX = 10
_REUSED = 20
"""How often a mutated frame is sent on the average, as a part of other batches."""


def frame_of(version: int, body: RequestBody, txn_id: int = 0) -> bytes:
    request = Request(version, txn_id, body)
    return v2.encode_request(request) if version < 3 else v3.encode_request(request)


def entry_of(ledger_id: int, entry_id: int) -> bytes:
    payload = b"payload %d" % entry_id
    header, body = DIGEST.encode_entry(ledger_id, entry_id, entry_id - 1, 10, payload)
    return header + bytes(body)


def valid_frame(
    rng: random.Random, version: int, ledgers: Sequence[int] = LEDGERS, *, plain: bool = False
) -> bytes:
    """Returns a frame of any kind; with `plain`, of those that are answered before authentication,
    too."""
    ledger_id, entry_id = rng.choice(ledgers), rng.randrange(20)
    entry = entry_of(ledger_id, entry_id)
    lac = DIGEST.encode_lac(ledger_id, entry_id)
    only_v2: list[RequestBody] = [
        BatchReadRequest(ledger_id, entry_id, 10, 1 << 16),
        AddRequest(ledger_id, entry_id, KEY, entry, takes_range_acks=True),
    ]
    only_v3: list[RequestBody] = [
        ReadRequest(ledger_id, -1, previous_lac=5, timeout_ms=1, is_piggyback=True),
        WriteLacRequest(ledger_id, entry_id, KEY, lac),
        ReadLacRequest(ledger_id),
        GetBookieInfoRequest(3),
        ForceLedgerRequest(ledger_id),
        ListEntriesRequest(ledger_id),
        StartTlsRequest(),
    ]
    both: list[RequestBody] = [
        AddRequest(ledger_id, entry_id, KEY, entry),
        AddRequest(ledger_id, entry_id, KEY, entry, is_recovery=True),
        ReadRequest(ledger_id, entry_id),
        ReadRequest(ledger_id, entry_id, KEY, is_fencing=True),
        AuthRequest("some.Plugin", b"token"),
    ]
    choices = both + (only_v2 if version == 2 else only_v3)
    if version == 2 and plain:
        choices = both[:4]
    return frame_of(version, rng.choice(choices), txn_id=rng.randrange(1000))


def valid_frames(rng: random.Random, ledgers: Sequence[int] = LEDGERS) -> bytes:
    """Returns one to three frames of one version, of any kind."""
    version = rng.choice((2, 3))
    return b"".join(valid_frame(rng, version, ledgers) for _ in range(rng.randint(1, 3)))


def changed(rng: random.Random, data: bytes) -> bytes:
    """Returns bytes with one to four changes, of those that a fuzzer makes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found)) if found else 0
        change = rng.randrange(5)
        if change == 0 and found:
            found[at] ^= 1 << rng.randrange(8)
        elif change == 1 and found:
            found[at] = rng.randrange(256)
        elif change == 2:
            del found[at:]
        elif change == 3:
            found[at:at] = rng.randbytes(rng.randint(1, 40))
        elif len(found) >= 4:
            size = rng.choice((0, -1, 1, 3, 1 << 20, 1 << 23, 2**31 - 1))
            struct.pack_into(">i", found, 0, size)
    return bytes(found)


def mutated(rng: random.Random, ledgers: Sequence[int] = LEDGERS) -> bytes:
    return changed(rng, valid_frames(rng, ledgers))


def random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 4, 5, 20, 100, 1000, 70_000)))


def length_bomb(rng: random.Random) -> bytes:
    """Returns the beginning of a frame that is announced to be long, or impossible."""
    sizes = (FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 1 << 30, 2**31 - 1, -1, -(2**31))
    header = struct.pack(">iI", rng.choice(sizes), 0x02010000)
    return header + bytes(rng.choice((0, 1, 100, 5000)))


def malformed_auth(rng: random.Random, token: str) -> list[bytes]:
    """Returns messages of an exchange of one mechanism, in which something is wrong."""
    version = rng.choice((2, 3))
    plugin = rng.choice([*PLUGINS.values(), "some.Plugin", "", "x" * 1000])
    first: list[bytes] = [
        b"n,,n=mallory,r=abc", b"y,,n=mallory,r=abc", b"p=tls-unique,,n=m,r=a", b"n,a=x,n=m,r=",
        b"n,,n=" + b"x" * 5000 + b",r=a", b"n,,m=ext,n=mallory,r=a", b"", b"token",
        bearer_message("e30.e30.e30"), bearer_message(token[:-4] + "AAAA"),
        b"n,,\x01auth=Bearer \x01\x01", b'username="m",realm="bookkeeper",nonce="a"',
    ]  # fmt: skip
    next_ones: list[bytes] = [
        b"c=biws,r=abc,p=AAAA", b"c=biws,r=,p=", b"c=eSws,r=abcdef,p=" + b"A" * 44, b"\x01",
        b'username="mallory",realm="x",nonce="",cnonce="",nc=00000001,qop=auth,response=00',
    ]  # fmt: skip
    payloads = [rng.choice(first), *rng.choices(next_ones, k=rng.randrange(4))]
    if rng.random() < 0.7:
        payloads = [changed(rng, one) for one in payloads]
    frames = [frame_of(version, AuthRequest(plugin, one)) for one in payloads]
    return [changed(rng, one) if rng.random() < 0.1 else one for one in frames]


def is_answered(frame: bytes, version: int, *, plain: bool) -> bool:
    """Returns whether a bookie answers a frame at once, and exactly once, and looks at what comes
    behind it; with `plain`, one that knows no user."""
    payload = memoryview(frame)[4:]
    if len(payload) < 4 or len(frame) != 4 + int.from_bytes(frame[:4], "big"):
        return False
    if is_version_3(payload[0]) != (version == 3):
        return False
    try:
        body = (v3 if version == 3 else v2).decode_request(payload).body
    except RequestRefused:
        return True
    except LedgerError:
        return False
    if isinstance(body, ReadRequest) and body.previous_lac is not None:
        return body.timeout_ms is not None and body.timeout_ms <= _LONG_POLL_MS_MAX
    if isinstance(body, AddRequest):
        return not body.takes_range_acks
    if plain and version == 2 and not isinstance(body, ReadRequest):
        return False
    return not isinstance(body, AuthRequest | StartTlsRequest)


class Pool:
    """Hostile frames that are all answered, so that thousands can be sent at once: half of them
    mutated. They change as long as it is used."""

    def __init__(
        self, rng: random.Random, version: int, ledgers: Sequence[int], *, plain: bool, size: int
    ) -> None:
        self._rng, self._version, self._ledgers, self._plain = rng, version, ledgers, plain
        self._frames = [self._new() for _ in range(size)]

    def _new(self) -> bytes:
        rng = self._rng
        while True:
            frame = valid_frame(rng, self._version, self._ledgers, plain=self._plain)
            if rng.random() < 0.5:
                at = rng.randrange(4, len(frame))
                frame = frame[:at] + bytes([rng.randrange(256)]) + frame[at + 1 :]
            if is_answered(frame, self._version, plain=self._plain):
                return frame

    def batch(self, count: int) -> bytes:
        """Returns frames in one piece."""
        for _ in range(count // _REUSED):
            self._frames[self._rng.randrange(len(self._frames))] = self._new()
        return b"".join(self._rng.choices(self._frames, k=count))
