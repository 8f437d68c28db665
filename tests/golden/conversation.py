"""Conversations between a client and a bookie as files, and what two of them may differ in.

Frames are without their length. Nothing but NORMALISED may differ between two conversations of
the same calls; a field that is there in one and not in the other is a difference.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2

NORMALISED = (
    "transaction ids, and request ids of batch reads (the client's own counters)",
    "the time at which the LAC moved",
    "total and free bytes of the disk",
)
_V2_IDS = struct.Struct(">qq")
_REQUEST_ID = slice(20, 28)
_REPLIED_ID = slice(24, 32)
_INSTEAD = 1


@dataclass(frozen=True, slots=True)
class Event:
    """A frame that passed: `call` names what the client was doing, `connection` counts from 0."""

    call: str
    connection: int
    is_request: bool
    frame: bytes


@dataclass(frozen=True, slots=True)
class Conversation:
    """`origin` says who spoke: the client's and the bookie's software."""

    origin: dict[str, str]
    events: list[Event]


def path_of(version: str, wire: str) -> Path:
    return Path(__file__).parent / f"conversation_{version}_{wire}.json"


def golden_files() -> list[Path]:
    return sorted(Path(__file__).parent.glob("conversation_*.json"))


def load(path: Path) -> Conversation:
    stored = json.loads(path.read_text())
    return Conversation(
        stored["origin"],
        [
            Event(call, connection, kind == "request", bytes.fromhex(frame))
            for call, connection, kind, frame in stored["events"]
        ],
    )


def save(conversation: Conversation, path: Path) -> None:
    """One event per line, so that a difference is a line."""
    lines = [
        json.dumps([e.call, e.connection, "request" if e.is_request else "reply", e.frame.hex()])
        for e in conversation.events
    ]
    origin = json.dumps(conversation.origin)
    path.write_text(f'{{"origin": {origin},\n"events": [\n' + ",\n".join(lines) + "\n]}\n")


def is_v3(frame: bytes) -> bool:
    return frame[0] == 0x0A


def key_of(frame: bytes, *, is_request: bool) -> tuple[int, ...]:
    """What a reply and its request have in common."""
    if is_v3(frame):
        message = pb.Request() if is_request else pb.Response()
        message.ParseFromString(frame)
        return (3, message.header.operation, message.header.txnId)
    operation = frame[1] if frame[0] else frame[3]
    if operation == v2.AUTH:
        return (2, operation)
    if not is_request:
        return (2, operation, *_V2_IDS.unpack_from(frame, 8))
    return (2, operation, *_V2_IDS.unpack_from(frame, 24 if operation == v2.ADD else 4))


def normalised(frame: bytes, *, is_request: bool, keeps_ids: bool = False) -> bytes:
    """The frame with the values of NORMALISED replaced. `keeps_ids`: both are answers to the
    same frames, so even ids must not differ."""
    if not is_v3(frame):
        place = _REQUEST_ID if is_request else _REPLIED_ID
        if frame[1] == v2.BATCH_READ and frame[0] and not keeps_ids:
            return frame[: place.start] + bytes(8) + frame[place.stop :]
        return frame
    message = pb.Request() if is_request else pb.Response()
    message.ParseFromString(frame)
    if not is_request:  # as text or bytes, a reply says the same
        assert message.SerializeToString() == frame, f"not a message's plain form: {frame.hex()}"
    if not keeps_ids:
        message.header.txnId = _INSTEAD
    if isinstance(message, pb.Response):
        if message.readResponse.HasField("lacUpdateTimestamp"):
            message.readResponse.lacUpdateTimestamp = _INSTEAD
        if message.getBookieInfoResponse.HasField("totalDiskCapacity"):
            message.getBookieInfoResponse.totalDiskCapacity = _INSTEAD
        if message.getBookieInfoResponse.HasField("freeDiskSpace"):
            message.getBookieInfoResponse.freeDiskSpace = _INSTEAD
    return message.SerializeToString()


def described(frame: bytes, *, is_request: bool) -> str:
    """A frame for people."""
    if not is_v3(frame):
        return frame.hex()
    message = pb.Request() if is_request else pb.Response()
    message.ParseFromString(frame)
    return " ".join(str(message).split())


def exchanges(events: list[Event]) -> list[str]:
    """One line for each request with its reply, normalised, in the order of calls; within a
    call sorted, since a client may send several requests at once."""
    waiting: dict[tuple[int, tuple[int, ...]], deque[int]] = defaultdict(deque)
    requests: list[tuple[str, int, bytes]] = []
    replies: dict[int, bytes] = {}
    for event in events:
        key = (event.connection, key_of(event.frame, is_request=event.is_request))
        if event.is_request:
            waiting[key].append(len(requests))
            requests.append((event.call, event.connection, event.frame))
        else:
            assert waiting[key], f"a reply nobody asked for: {event}"
            replies[waiting[key].popleft()] = event.frame
    calls = list(dict.fromkeys(call for call, _, _ in requests))
    found = []
    for number, (call, connection, frame) in enumerate(requests):
        asked = described(normalised(frame, is_request=True), is_request=True)
        answer = replies.get(number)
        reported = (
            "no reply"
            if answer is None
            else described(normalised(answer, is_request=False), is_request=False)
        )
        found.append((calls.index(call), f"{call} [{connection}] {asked} -> {reported}"))
    return [line for _, line in sorted(found)]
