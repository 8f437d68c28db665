"""Malformed frames: how Apache's bookie reacts to each, and how ledgerstream's does."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio

from ledger.proto import bookkeeper_protocol_pb2 as pb
from ledger.wire import v2, v3
from ledger.wire.messages import (
    FRAME_BYTES_MAX,
    AddRequest,
    BatchReadRequest,
    ListEntriesRequest,
    ReadRequest,
    Request,
    RequestBody,
)
from tests.golden.conversation import described
from tests.interop.conftest import GetApacheBookies
from tests.interop.timeouts import PATIENCE_S
from tests.interop.wire.requests import KEY, entry_of
from tests.real_cluster import real_cluster

SILENCE_S = 1.5
READ_V2 = v2.encode_request(Request(2, 0, ReadRequest(77, 0)))[4:]
READ_V3 = v3.encode_request(Request(3, 5, ReadRequest(77, 0)))[4:]
LIST_V3 = v3.encode_request(Request(3, 5, ListEntriesRequest(77)))[4:]


def header(operation: int, version: int = 3, txn: int = 5) -> bytes:
    head = bytes((8, version, 16, operation, 24, txn))
    return b"\x0a" + bytes([len(head)]) + head


ODD = {
    "first frame of version 3 in v2's form": [b"\3" + READ_V2[1:]],
    "first frame of version 255": [b"\xff" + READ_V2[1:]],
    "v3, then v2, then v3": [READ_V3, READ_V2, READ_V3],
    "list of entries on a v2 connection": [READ_V2, LIST_V3],
    "empty frame": [b""],
    "three bytes": [b"\2\1\0"],
    "v2 without its fields": [READ_V2[:10]],
    "v2 operation 0": [b"\2\0\0\0" + READ_V2[4:]],
    "v2 operation 4": [b"\2\4\0\0" + READ_V2[4:]],
    "v2 operation 6": [b"\2\6\0\0" + READ_V2[4:]],
    "v2 add of 15 bytes": [b"\2\1\0\0" + KEY + entry_of(78, 0)[:15]],
    "v2 add of 16 bytes": [b"\2\1\0\0" + KEY + entry_of(78, 0)[:16]],
    "v2 add of 23 bytes": [b"\2\1\0\0" + KEY + entry_of(78, 0)[:23]],
    "v2 auth of garbage": [b"\2\3\0\0" + b"\xff" * 9],
    "v2 auth of nothing": [b"\2\3\0\0"],
    "v3 operation 99": [header(99)],
    "v3 version 9": [header(1, version=9) + READ_V3[8:]],
    "v3 add without its message": [header(pb.ADD_ENTRY)],
    "v3 read without its message": [header(pb.READ_ENTRY)],
    "v3 read LAC without its message": [header(pb.READ_LAC)],
    "v3 auth without its message": [header(pb.AUTH)],
    "v3 TLS without its message": [header(pb.START_TLS)],
    "v3 info without its message": [header(pb.GET_BOOKIE_INFO)],
    "v3 header without a transaction": [b"\x0a\x04\x08\x03\x10\x01"],
    "v3 with another's message": [header(pb.READ_LAC) + READ_V3[8:]],
}


async def reaction(
    address: tuple[str, int], frames: list[bytes], patience_s: float = PATIENCE_S
) -> str:
    said: list[str] = []
    try:
        await _talk(address, frames, said, patience_s)
    except trio.BrokenResourceError:
        said.append("closed")
    return " ".join(said)


async def _talk(
    address: tuple[str, int], frames: list[bytes], said: list[str], patience_s: float
) -> None:
    async with await trio.open_tcp_stream(*address) as stream:
        data = b""
        for frame in frames:
            await stream.send_all(struct.pack(">i", len(frame)) + frame)
            with trio.move_on_after(patience_s) as patience:
                while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                    received = await stream.receive_some(1 << 16)
                    if not received:
                        said.append("closed")
                        return
                    data += received
                end = 4 + int.from_bytes(data[:4], "big")
                said.append(described(data[4:end], is_request=False))
                data = data[end:]
            if patience.cancelled_caught:
                said.append("silence")


ANSWERED_BY_US = {name for name in ODD if "without its message" in name} - {
    "v3 TLS without its message"
} | {"v3 version 9", "v3 with another's message"}
"""Apache's releases read missing fields as zero, or disconnect; ledgerstream reports errors."""


@pytest.mark.interop
@pytest.mark.interop_result(area="wire", feature="malformed frames", wire="v2, v3")
async def test_malformed_frames_are_treated_alike(
    version: str, apache_bookies: GetApacheBookies, tmp_path: Path
) -> None:
    apache = apache_bookies(version, count=1).bookies[0]
    async with real_cluster(tmp_path, 1) as cluster:
        for name, frames in ODD.items():
            # Apache's bookie does not respond to some frames to which ledgerstream's does.
            patience_s = SILENCE_S if name in ANSWERED_BY_US else PATIENCE_S
            theirs = await reaction(("127.0.0.1", apache.port), frames, patience_s)
            ours = await reaction(cluster.bookies[0].address, frames)
            assert "silence" not in ours, name
            if name in ANSWERED_BY_US:
                assert theirs != ours, f"{name} is no difference any more"
                assert "status: EBADREQ" in ours or "status: EBADVERSION" in ours, name
            else:
                assert theirs == ours, name


@pytest.mark.interop
@pytest.mark.interop_result(area="wire", feature="entries of 5 MiB less 500 bytes", wire="v2, v3")
async def test_both_accept_the_largest_entry(
    version: str, apache_bookies: GetApacheBookies, tmp_path: Path
) -> None:
    largest = entry_of(79, 0, FRAME_BYTES_MAX - 500 - 36)
    asked: dict[int, list[RequestBody]] = {
        2: [AddRequest(79, 0, KEY, largest), ReadRequest(79, 0)],
        3: [AddRequest(79, 0, KEY, largest), ReadRequest(79, 0)],
    }
    if not version.startswith("4.16."):
        asked[2].append(BatchReadRequest(79, 0, 10, 1 << 40))
    apache = apache_bookies(version, count=1).bookies[0]
    async with real_cluster(tmp_path, 1) as cluster:
        for wire, bodies in asked.items():
            encode = v2.encode_request if wire == 2 else v3.encode_request
            frames = [encode(Request(wire, 5, body))[4:] for body in bodies]
            theirs = await reaction(("127.0.0.1", apache.port), frames)
            ours = await reaction(cluster.bookies[0].address, frames)
            assert theirs == ours
            assert len(ours) > 2 * len(largest)
        too_long = bytes((2, 1, 0, 0)) + KEY + bytes(FRAME_BYTES_MAX)
        for address in (("127.0.0.1", apache.port), cluster.bookies[0].address):
            assert await reaction(address, [too_long]) == "closed"
