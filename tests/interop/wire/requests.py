"""Random requests as frames, and the known differences between the two bookies' responses.

`Requests` makes what a correct peer may send, so that nearly every request gets a response.
STRICTER names the intended differences, each with a test. They are documented in docs/wire.md,
"Where we are stricter"; a test compares the two lists.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from ledger.core.availability import decode_entries_held
from ledger.core.entry import Digest, DigestType, master_key
from ledger.errors import Status
from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2, v3
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)

KEY = master_key(b"right")
WRONG_KEY = master_key(b"wrong")
DIGEST = Digest(DigestType.CRC32C)
LEDGERS = 8
ENTRIES = 12
_IDS = struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; `stricter` is the name of the difference that it shows."""

    wire: int
    frame: bytes
    stricter: str | None = None


def entry_of(ledger_id: int, entry_id: int, size: int = 20, lac: int | None = None) -> bytes:
    known = max(-1, entry_id - 1) if lac is None else lac
    payload = bytes((ledger_id + entry_id + i) & 0xFF for i in range(size))
    header, body = DIGEST.encode_entry(
        ledger_id, entry_id, known, min(size * (entry_id + 1), 1 << 40), payload
    )
    return header + bytes(body)


@dataclass
class Requests:
    """An endless conversation from one seed.

    Ledgers are replaced from time to time, because a fenced ledger gives little variety.
    """

    rng: random.Random
    has_batch_reads: bool
    is_sorted: bool = False
    """Whether the bookie has Apache's SortedLedgerStorage: it lists entries, keeps the first of two
    entries with one id (DbLedgerStorage and ledgerstream keep the last), and does not respond to
    entry ids below -1."""
    _ledgers: list[int] = field(default_factory=lambda: list(range(1, LEDGERS + 1)))
    _held: dict[int, int] = field(default_factory=dict)
    """Ledgers with entries, and their highest explicit LAC."""
    _due: list[Asked] = field(default_factory=list)
    _next_ledger: int = LEDGERS + 1
    _txn: int = 0

    def next(self) -> Asked:
        rng = self.rng
        if self._due:
            return self._due.pop()
        self._txn += 1
        if rng.random() < 0.02:
            self._ledgers[rng.randrange(LEDGERS)] = self._next_ledger
            self._next_ledger += 1
        if rng.random() < 0.04 and not self.is_sorted:
            return self._stricter()
        kinds: list[Callable[[], Asked]] = [
            self._add,
            self._add,
            self._add,
            self._read,
            self._read,
            self._read,
            self._batch_read if self.has_batch_reads else self._read,
            self._poll,
            self._lac,
            self._lac,
            self._other,
            self._odd_version,
        ]
        return rng.choice(kinds)()

    # ---- kinds

    def _ledger(self) -> int:
        return self.rng.choice(self._ledgers)

    def _key(self) -> bytes:
        return KEY if self.rng.random() < 0.95 else WRONG_KEY

    def _asked(self, body: RequestBody, wire: int | None = None, version: int = 2) -> Asked:
        wire = wire or self.rng.choice((2, 3))
        if wire == 2:
            return Asked(2, v2.encode_request(Request(version, self._txn, body))[4:])
        frame = v3.encode_request(Request(3, self._txn, body))[4:]
        if self.rng.random() < 0.1:  # what a peer says beside it changes nothing
            message = pb.Request()
            message.ParseFromString(frame)
            message.requestContext.add(key="trace", value="1")
            frame = message.SerializeToString() + b"\xf8\x3f\x01"
        return Asked(3, frame)

    def _add(self) -> Asked:
        rng = self.rng
        ledger_id, entry_id = self._ledger(), rng.randrange(ENTRIES)
        key = KEY if ledger_id not in self._held else self._key()
        if ledger_id not in self._held:
            self._held[ledger_id] = -1
            # Apache's storage records the LAC of a ledger only after a request for it.
            self._due.append(self._asked(ReadRequest(ledger_id, -1), 3))
        wire = rng.choice((2, 3))
        version = rng.choice((0, 1, 2, 2, 2)) if wire == 2 else 3
        body = AddRequest(
            ledger_id,
            entry_id,
            key,
            entry_of(ledger_id, entry_id, self._size(entry_id)),
            is_recovery=version > 0 and rng.random() < 0.3,
            is_high_priority=version > 0 and rng.random() < 0.1,
            is_deferred_sync=wire == 3 and rng.random() < 0.1,
        )
        return self._asked(body, wire, version)

    def _size(self, entry_id: int) -> int:
        # One size for each entry: ours refuses another payload.
        return (0, 1, 20, 700)[entry_id % 4]

    def _read(self) -> Asked:
        rng = self.rng
        wire = rng.choice((2, 3))
        ledger_id = self._ledger() if rng.random() < 0.9 else 1_000_000
        entry_id = rng.choice((-1, -1, -1 if self.is_sorted else -2, *range(ENTRIES + 2)))
        if ledger_id in self._held and rng.random() < 0.1:
            return self._asked(ReadRequest(ledger_id, entry_id, self._key(), is_fencing=True), wire)
        if wire == 2 and rng.random() < 0.05:  # version 1 has fences without a key
            frame = struct.pack(">Iqq", 0x01020001, ledger_id, entry_id)
            return Asked(2, frame)
        body = ReadRequest(ledger_id, entry_id, is_high_priority=rng.random() < 0.1)
        return self._asked(body, wire)

    def _batch_read(self) -> Asked:
        rng = self.rng
        body = BatchReadRequest(
            self._ledger() if rng.random() < 0.95 else 1_000_000,
            rng.randrange(ENTRIES),
            rng.choice((-1, 0, 1, 2, 3, 100)),
            rng.choice((0, 1, 100, 500, 1000, 1 << 20, 1 << 40, -1)),
            master_key=KEY,
        )
        if body.ledger_id in self._held and rng.random() < 0.1:
            body = BatchReadRequest(
                body.ledger_id, body.entry_id, 3, 1000, self._key(), is_fencing=True
            )
        return self._asked(body, 2)

    def _poll(self) -> Asked:
        rng = self.rng
        is_piggyback = rng.random() < 0.8
        body = ReadRequest(
            self._ledger() if rng.random() < 0.95 else 1_000_000,
            -1 if is_piggyback or rng.random() < 0.5 else rng.randrange(ENTRIES),
            is_piggyback=is_piggyback,
            previous_lac=rng.randrange(-1, ENTRIES),
            timeout_ms=rng.choice((None, 1, 2)),
        )
        return self._asked(body, 3)

    def _lac(self) -> Asked:
        ledger_id = self._ledger()
        if ledger_id in self._held and self.rng.random() < 0.5:
            key = self._key()
            lac = self._held[ledger_id] + self.rng.randrange(3)
            if key == KEY:
                self._held[ledger_id] = lac = max(lac, 0)
            lac = max(lac, 0)
            return self._asked(
                WriteLacRequest(ledger_id, lac, key, DIGEST.encode_lac(ledger_id, lac)), 3
            )
        return self._asked(ReadLacRequest(ledger_id), 3)

    def _other(self) -> Asked:
        rng = self.rng
        wire = 3
        body: RequestBody
        kind = rng.randrange(7)
        if kind == 6 and self.is_sorted:
            return self._asked(ListEntriesRequest(rng.choice((self._ledger(), 1_000_000))), wire)
        if kind == 6:
            ledger_id = -self.fresh_ledger()
            return self.v3_add(ledger_id, 0, KEY, entry_of(ledger_id, 0))
        if kind == 0:
            body = ForceLedgerRequest(rng.choice((self._ledger(), 1_000_000, -1)))
        elif kind == 1:
            body = GetBookieInfoRequest(rng.randrange(5))
        elif kind == 2:
            body = StartTlsRequest()
        elif kind == 3:
            wire = rng.choice((2, 3))
            body = AuthRequest("some.Plugin", rng.randbytes(rng.randrange(5)))
            return self._asked(body, wire, rng.randrange(3))
        else:
            operation = rng.choice((pb.RANGE_READ_ENTRY, pb.RANGE_ADD_ENTRY, pb.BATCH_READ_ENTRY))
            if not self.has_batch_reads:
                operation = pb.RANGE_READ_ENTRY
            return self.v3(operation, pb.Request())
        return self._asked(body, wire)

    def _odd_version(self) -> Asked:
        rng = self.rng
        ledger_id = self._ledger()
        if rng.random() < 0.5:
            frame = bytearray(self._asked(ReadRequest(ledger_id, 1), 2).frame)
            if self.has_batch_reads and rng.random() < 0.3:
                frame = bytearray(self._asked(BatchReadRequest(ledger_id, 1, 1, 1), 2).frame)
            frame[0] = rng.choice((3, 4, 127, 128, 255))
            return Asked(2, bytes(frame))
        bodies: list[RequestBody] = [
            ReadRequest(ledger_id, 1),
            AddRequest(ledger_id, 1, KEY, entry_of(ledger_id, 1)),
            WriteLacRequest(ledger_id, 1, KEY, DIGEST.encode_lac(ledger_id, 1)),
            ReadLacRequest(ledger_id),
            ForceLedgerRequest(ledger_id),
            GetBookieInfoRequest(3),
        ]
        message = pb.Request()
        message.ParseFromString(self._asked(rng.choice(bodies), 3).frame)
        message.header.version = rng.choice((pb.VERSION_ONE, pb.VERSION_TWO))
        return Asked(3, message.SerializePartialToString())

    # ---- where we are stricter

    def _stricter(self) -> Asked:
        names = [n for n in STRICTER if self.has_batch_reads or n != BATCH_FROM_THE_LAST]
        name = self.rng.choice(names)
        *before, asked = STRICTER[name](self)
        self._due = [Asked(asked.wire, asked.frame, name), *reversed(before)]
        return self._due.pop()

    def fresh_ledger(self) -> int:
        """Returns a ledger id that no other request uses."""
        self._next_ledger += 1
        return self._next_ledger - 1

    def v3(self, operation: pb.OperationType.ValueType, message: pb.Request) -> Asked:
        """Returns a frame that ledgerstream's codec would not encode, with a header."""
        message.header.version = pb.VERSION_THREE
        message.header.operation = operation
        message.header.txnId = self._txn
        return Asked(3, message.SerializePartialToString())

    def v3_add(self, ledger_id: int, entry_id: int, key: bytes, body: bytes) -> Asked:
        add = pb.AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=key, body=body)
        return self.v3(pb.ADD_ENTRY, pb.Request(addRequest=add))

    def v3_write_lac(self, ledger_id: int, lac: int, body: bytes) -> Asked:
        write = pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=KEY, body=body)
        return self.v3(pb.WRITE_LAC, pb.Request(writeLacRequest=write))

    def v3_read_lac(self, ledger_id: int) -> Asked:
        read = pb.ReadLacRequest(ledgerId=ledger_id)
        return self.v3(pb.READ_LAC, pb.Request(readLacRequest=read))


def _negative_entry(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    return [r.v3_add(ledger_id, -7, KEY, entry_of(ledger_id, -7))]


def _high_entry(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    return [r.v3_add(ledger_id, 2**63 - 1, KEY, entry_of(ledger_id, 2**63 - 1))]


def _key_of_another_length(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    return [r.v3_add(ledger_id, 0, b"short", entry_of(ledger_id, 0))]


def _entry_of_another_id(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    return [r.v3_add(ledger_id, 0, KEY, entry_of(ledger_id, 1))]


def _half_a_header(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    return [r.v3_add(ledger_id, 0, KEY, entry_of(ledger_id, 0)[:24])]


def _packet_of_another_ledger(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    return [r.v3_write_lac(ledger_id, 3, DIGEST.encode_lac(r.fresh_ledger(), 3))]


def _long_packet(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    return [r.v3_write_lac(ledger_id, 3, DIGEST.encode_lac(ledger_id, 3) + bytes(100))]


def _lac_goes_back(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    sent = [
        r.v3_add(ledger_id, 0, KEY, entry_of(ledger_id, 0)),
        r.v3_write_lac(ledger_id, 7, DIGEST.encode_lac(ledger_id, 7)),
        r.v3_write_lac(ledger_id, 3, DIGEST.encode_lac(ledger_id, 3)),
    ]
    return [*sent, r.v3_read_lac(ledger_id)]


def _lac_without_entry(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    sent = r.v3_write_lac(ledger_id, 3, DIGEST.encode_lac(ledger_id, 3))
    return [sent, r.v3_read_lac(ledger_id)]


def _batch_from_the_last(r: Requests) -> list[Asked]:
    ledger_id = r.fresh_ledger()
    body = BatchReadRequest(ledger_id, -1, 2, 1000)
    frame = v2.encode_request(Request(2, r.fresh_ledger(), body))[4:]
    return [r.v3_add(ledger_id, 0, KEY, entry_of(ledger_id, 0)), Asked(2, frame)]


BATCH_FROM_THE_LAST = "a batch read from entry -1"


def is_longer_batch(theirs: bytes, ours: bytes) -> bool:
    """Returns whether both are correct responses to one batch read, ours being the longer one.

    Apache 4.18 estimates from the first entry how many more will fit; 4.17 and ledgerstream count
    the bytes, and return more entries.
    """
    if theirs[:2] != bytes((2, v2.BATCH_READ)) or theirs[:2] != ours[:2]:
        return False
    first, second = v2.decode_response(theirs).body, v2.decode_response(ours).body
    assert isinstance(first, BatchReadResponse)
    assert isinstance(second, BatchReadResponse)
    return (
        first.status is second.status is Status.OK
        and 0 < len(first.bodies) < len(second.bodies)
        and first.bodies == second.bodies[: len(first.bodies)]
    )


def is_same_list(theirs: bytes, ours: bytes) -> bool:
    """Returns whether both list the same entries; Apache's bookie groups each sequence."""
    messages = pb.Response(), pb.Response()
    lists = []
    for message, frame in zip(messages, (theirs, ours), strict=True):
        if frame[:1] != b"\x0a":
            return False
        message.ParseFromString(frame)
        answer = message.getListOfEntriesOfLedgerResponse
        if not answer.HasField("availabilityOfEntriesOfLedger"):
            return False
        lists.append(sorted(decode_entries_held(answer.availabilityOfEntriesOfLedger)))
        answer.ClearField("availabilityOfEntriesOfLedger")
    return lists[0] == lists[1] and messages[0] == messages[1]


STRICTER: dict[str, Callable[[Requests], list[Asked]]] = {
    "an entry id below zero": _negative_entry,
    "an entry id near the highest": _high_entry,
    "a new ledger with a key that has not 20 bytes": _key_of_another_length,
    "an add whose entry names other ids": _entry_of_another_id,
    "an entry without its whole header": _half_a_header,
    "a LAC packet that names another ledger or LAC": _packet_of_another_ledger,
    "a LAC packet that is longer than any digest makes it": _long_packet,
    "an explicit LAC that goes back": _lac_goes_back,
    "an explicit LAC without an entry": _lac_without_entry,
    BATCH_FROM_THE_LAST: _batch_from_the_last,
}
"""Names, as in docs/wire.md, with requests of which the last gets a different response."""
