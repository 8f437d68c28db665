"""Our bookie gives the same replies as Apache's bookie to the requests of Apache's client.

The golden conversations were recorded between Apache's Java client and Apache's bookie
(tests/interop/wire/test_conversation.py); here the client's frames are sent to our bookie.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2
from tests.golden.conversation import (
    described,
    exchanges,
    golden_files,
    key_of,
    load,
    normalised,
    path_of,
)
from tests.interop.wire.requests import STRICTER
from tests.real_cluster import real_cluster
from tests.tidy.checkout import ROOT

# The ledgers of these tests are not in the metadata, so a collector would remove them.
SETTINGS = {"garbage_interval_ms": 3_600_000}
Key = tuple[int, ...]


class Player:
    """A connection that sends the client's frames and returns the replies by request."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._data = bytearray()
        self._came: dict[Key, list[bytes]] = defaultdict(list)

    async def ask(self, frame: bytes) -> None:
        await self._stream.send_all(len(frame).to_bytes(4, "big") + frame)

    async def answer(self, key: Key) -> bytes:
        while not self._came[key]:
            received = await self._stream.receive_some(1 << 16)
            assert received, f"our bookie left before it answered {key}"
            self._data += received
            while len(self._data) >= 4:
                end = 4 + int.from_bytes(self._data[:4], "big")
                if len(self._data) < end:
                    break
                frame = bytes(self._data[4:end])
                self._came[key_of(frame, is_request=False)].append(frame)
                del self._data[:end]
        return self._came[key].pop(0)

    @property
    def left_over(self) -> list[bytes]:
        return [frame for frames in self._came.values() for frame in frames] + (
            [bytes(self._data)] if self._data else []
        )


@pytest.mark.parametrize("golden", golden_files(), ids=lambda path: path.stem)
async def test_our_bookie_replies_as_apaches_did(golden: Path, tmp_path: Path) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, AsyncExitStack() as streams:
        players: dict[int, Player] = {}
        for event in load(golden).events:
            if event.connection not in players:
                stream = await trio.open_tcp_stream(*cluster.bookies[0].address)
                players[event.connection] = Player(await streams.enter_async_context(stream))
            player = players[event.connection]
            if event.is_request:
                await player.ask(event.frame)
                continue
            with trio.fail_after(30):
                ours = await player.answer(key_of(event.frame, is_request=False))
            assert plain(ours) == plain(event.frame), event.call
        assert not any(player.left_over for player in players.values())


def plain(reply: bytes) -> tuple[bytes, str]:
    """Returns a frame as text; only the bytes are compared."""
    same = normalised(reply, is_request=False, keeps_ids=True)
    return same, described(same, is_request=False)


def test_there_is_a_conversation_for_each_version_and_wire() -> None:
    found = {path.stem for path in golden_files()}
    for version in ("4.16.6", "4.17.3", "4.18.0"):
        for wire in ("v2", "v3"):
            assert f"conversation_{version}_{wire}" in found


@pytest.mark.parametrize("golden", golden_files(), ids=lambda path: path.stem)
def test_a_golden_conversation_covers_every_operation(golden: Path) -> None:
    keys = {key_of(e.frame, is_request=True)[:2] for e in load(golden).events if e.is_request}
    on_v3 = {pb.READ_LAC, pb.WRITE_LAC, pb.GET_BOOKIE_INFO, pb.START_TLS}
    if golden.stem.endswith("v3"):
        on_v3 |= {pb.ADD_ENTRY, pb.READ_ENTRY, pb.AUTH, pb.FORCE_LEDGER}
        on_v3 |= {pb.GET_LIST_OF_ENTRIES_OF_LEDGER}
        on_v2 = set[int]()
    else:
        on_v2 = {v2.ADD, v2.READ, v2.AUTH}
        if "4.16." not in golden.stem:  # the first release with batch reads is 4.17
            on_v2 |= {v2.BATCH_READ}
    assert keys == {(3, operation) for operation in on_v3} | {(2, code) for code in on_v2}


@pytest.mark.parametrize("golden", golden_files(), ids=lambda path: path.stem)
def test_every_request_of_a_golden_conversation_has_its_reply(golden: Path) -> None:
    """Apache's bookie answered every request, so ours must, too."""
    lines = exchanges(load(golden).events)
    assert len(lines) > 50
    assert not [line for line in lines if line.endswith("-> no reply")]


@pytest.mark.parametrize(
    ("call", "field", "value", "is_same"),
    [
        ("bookie info", "getBookieInfoResponse.freeDiskSpace", 5, True),
        ("bookie info", "getBookieInfoResponse.freeDiskSpace", None, False),
        ("long poll woken by an add", "readResponse.lacUpdateTimestamp", 5, True),
        ("long poll woken by an add", "readResponse.lacUpdateTimestamp", None, False),
        ("long poll woken by an add", "readResponse.maxLAC", 5, False),
        ("long poll woken by an add", "readResponse.entryId", 5, False),
        ("read a missing entry", "readResponse.maxLAC", 5, False),
        ("read a missing entry", "header.txnId", 1 << 40, False),
        ("start TLS", "startTLSResponse", b"", False),
    ],
)
def test_only_named_values_may_differ(
    call: str, field: str, value: int | bytes | None, is_same: bool
) -> None:
    events = load(path_of("4.17.3", "v3")).events
    reply = next(
        event.frame
        for event in events
        if event.call == call and not event.is_request and has_part(event.frame, field)
    )
    message = pb.Response()
    message.ParseFromString(reply)
    part_name, _, name = field.partition(".")
    part = getattr(message, part_name)
    if value is None:
        part.ClearField(name)
    elif isinstance(value, bytes):
        part.SetInParent()
    else:
        setattr(part, name, value)
    assert message.SerializeToString() != reply
    assert (plain(message.SerializeToString()) == plain(reply)) is is_same


def has_part(frame: bytes, field: str) -> bool:
    """Returns whether a reply contains the field's message, which reading would create
    otherwise."""
    message = pb.Response()
    message.ParseFromString(frame)
    name = field.partition(".")[0]
    return name == "startTLSResponse" or name in {f.name for f, _ in message.ListFields()}


def test_every_known_difference_is_documented() -> None:
    text = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    section = text.partition("## Where we are stricter")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert set(STRICTER) < set(rows)
