"""The bytes of an entry: header, digest, payload; and the keys derived from a password.

It guarantees that the bytes read are those that were written: it encodes entries and LAC packets
with their digest, and refuses to decode what does not match. It must never return a payload
whose digest was not checked. Layout and digests are Apache BookKeeper's (docs/formats.md).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ledger.errors import INVALID_ENTRY_ID, DigestMismatch

Buffer = bytes | bytearray | memoryview

HEADER_BYTES: Final = 32
"""Ledger id, entry id, LAC, length: int64 each."""
LAC_HEADER_BYTES: Final = 16
"""Ledger id, LAC: int64 each."""
MASTER_KEY_BYTES: Final = 20

KEEP_INTERPRETER: Final = 0
"""For crc32c, which by default releases the GIL for 32 KiB and more. That much takes it a
microsecond, and other threads may then hold the GIL for a hundred."""

HEADER: Final = struct.Struct(">qqqq")
LAC_HEADER: Final = struct.Struct(">qq")

_pack_header = HEADER.pack
_unpack_header = HEADER.unpack_from
_unpack_header_crc32c = struct.Struct(">qqqqI").unpack_from


class DigestType(enum.IntEnum):
    """How entries of a ledger are protected. The values are stored: they may never change."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


DIGEST_BYTES: Final = {
    DigestType.CRC32: 8,
    DigestType.HMAC: 20,
    DigestType.CRC32C: 4,
    DigestType.DUMMY: 0,
}
"""Length of the digest of each type."""

FRAME_ROOM_BYTES: Final = 28 + HEADER_BYTES + max(DIGEST_BYTES.values())
"""Free space that `LedgerWriter.append_frame_nowait` needs before a payload, for any digest: frame
length, packet header and key of protocol v2, and the header of the entry."""


class Entry(NamedTuple):
    """One entry as read. A tuple: readers make one per entry, and a dataclass costs three times
    as much.

    `lac` is the last add confirmed when the writer sent the entry (-1: none). `length` is the
    sum of the payload bytes of the ledger up to and including this entry.
    """

    ledger_id: int
    entry_id: int
    lac: int
    length: int
    payload: bytes


def master_key(password: bytes) -> bytes:
    """Returns the key (20 bytes) that authorizes writing to and fencing a ledger."""
    return hashlib.sha1(b"ledger" + password).digest()


def _mac_key(password: bytes) -> bytes:
    return hashlib.sha1(b"mac" + password).digest()


def _computation(digest_type: DigestType, password: bytes) -> Callable[[Buffer, Buffer], bytes]:
    """Returns the function (header, payload) -> digest."""
    if digest_type is DigestType.CRC32C:
        return lambda header, payload: crc32c(payload, crc32c(header), KEEP_INTERPRETER).to_bytes(
            4, "big"
        )
    if digest_type is DigestType.CRC32:
        # Apache stores the unsigned 32-bit sum as an int64.
        return lambda header, payload: zlib.crc32(payload, zlib.crc32(header)).to_bytes(8, "big")
    if digest_type is DigestType.DUMMY:
        return lambda header, payload: b""
    assert digest_type is DigestType.HMAC
    keyed = hmac.new(_mac_key(password), digestmod="sha1")

    def mac(header: Buffer, payload: Buffer) -> bytes:
        state = keyed.copy()
        state.update(header)
        state.update(payload)
        return state.digest()

    return mac


class Digest:
    """Encodes and checks the entries of ledgers that share a digest type and a password.

    A hot path: one object serves a ledger for its whole life, without state between calls.

    Args:
        digest_type: as stored in the ledger's metadata.
        password: matters only for HMAC.
    """

    __slots__ = ("_body_start", "_is_crc32c", "compute", "digest_type", "size")

    compute: Callable[[Buffer, Buffer], bytes]
    """(header, payload) -> digest of `size` bytes over both."""

    def __init__(self, digest_type: DigestType, password: bytes = b"") -> None:
        self.digest_type = DigestType(digest_type)
        self.size = DIGEST_BYTES[self.digest_type]
        """Bytes of the digest field."""
        self.compute = _computation(self.digest_type, password)
        self._body_start = HEADER_BYTES + self.size
        self._is_crc32c = self.digest_type is DigestType.CRC32C

    def encode_entry(
        self, ledger_id: int, entry_id: int, lac: int, length: int, payload: Buffer
    ) -> tuple[bytes, Buffer]:
        """Returns header with digest, and the payload as given: the caller joins them to a frame.

        `length` is the sum of payload bytes of the ledger including this payload.
        """
        header = _pack_header(ledger_id, entry_id, lac, length)
        if self._is_crc32c:  # nearly every ledger: saves a call per entry
            crc = crc32c(payload, crc32c(header), KEEP_INTERPRETER)
            return header + crc.to_bytes(4, "big"), payload
        return header + self.compute(header, payload), payload

    def decode_entry(self, ledger_id: int, entry_id: int, data: Buffer) -> Entry:
        """Returns the entry in `data` after checking ids and digest; the payload is a copy.

        `entry_id` -1 accepts any entry of the ledger: the response to a read of the last one.
        Raises DigestMismatch, which says what differs.
        """
        view = memoryview(data)
        body_start = self._body_start
        if len(view) < body_start:
            raise DigestMismatch(
                f"entry {entry_id} of ledger {ledger_id}: {len(view)} bytes were returned, header "
                f"and {self.digest_type.name} digest alone take {body_start}"
            )
        found_ledger_id, found_entry_id, lac, length = _unpack_header(view)
        if found_ledger_id != ledger_id or found_entry_id != entry_id:
            self._check_ids(ledger_id, entry_id, found_ledger_id, found_entry_id)
        payload = bytes(view[body_start:])
        found = view[HEADER_BYTES:body_start]
        if self._is_crc32c:
            crc = crc32c(payload, crc32c(view[:HEADER_BYTES]), KEEP_INTERPRETER)
            expected = crc.to_bytes(4, "big")
        else:
            expected = self.compute(view[:HEADER_BYTES], payload)
        if found != expected:
            raise DigestMismatch(
                f"entry {found_entry_id} of ledger {ledger_id}: {self.digest_type.name} digest is "
                f"{found.hex()}, the {len(payload)} payload bytes give {expected.hex()}"
            )
        return Entry(found_ledger_id, found_entry_id, lac, length, payload)

    def decode_many(
        self, ledger_id: int, first_entry_id: int, bodies: Sequence[Buffer]
    ) -> list[Entry]:
        """Decodes consecutive entries from `first_entry_id` on, like `decode_entry`.

        Raises DigestMismatch for the first one that does not match; nothing is returned then.
        """
        if not self._is_crc32c:
            decode = self.decode_entry
            return [
                decode(ledger_id, entry_id, body)
                for entry_id, body in enumerate(bodies, first_entry_id)
            ]
        entries: list[Entry] = []
        keep = entries.append
        new = tuple.__new__  # half the cost of calling the class
        body_start = self._body_start
        for entry_id, body in enumerate(bodies, first_entry_id):
            view = body if type(body) is memoryview else memoryview(body)
            if len(view) >= body_start:
                found_ledger_id, found_entry_id, lac, length, found = _unpack_header_crc32c(view)
                payload = view[body_start:].tobytes()
                if (
                    found_entry_id == entry_id
                    and found_ledger_id == ledger_id
                    and crc32c(payload, crc32c(view[:HEADER_BYTES]), KEEP_INTERPRETER) == found
                ):
                    keep(new(Entry, (ledger_id, entry_id, lac, length, payload)))
                    continue
            self.decode_entry(ledger_id, entry_id, body)
            raise AssertionError(f"decode_many and decode_entry differ over entry {entry_id}")
        return entries

    def count_valid(self, ledger_id: int, first_entry_id: int, bodies: Sequence[Buffer]) -> int:
        """Returns how many of the bodies, from the first one on, are consecutive entries from
        `first_entry_id` on with the right digests. No payload is copied."""
        body_start, is_crc32c, compute = self._body_start, self._is_crc32c, self.compute
        for count, body in enumerate(bodies):
            if len(body) < body_start:
                return count
            if is_crc32c:
                found_ledger_id, found_entry_id, _, _, found = _unpack_header_crc32c(body)
                crc = crc32c(body[:HEADER_BYTES], 0, KEEP_INTERPRETER)
                is_valid = crc32c(body[body_start:], crc, KEEP_INTERPRETER) == found
            else:
                found_ledger_id, found_entry_id, _, _ = _unpack_header(body)
                expected = compute(body[:HEADER_BYTES], body[body_start:])
                is_valid = body[HEADER_BYTES:body_start] == expected
            if not (
                is_valid
                and found_entry_id == first_entry_id + count
                and found_ledger_id == ledger_id
            ):
                return count
        return len(bodies)

    def encode_lac(self, ledger_id: int, lac: int) -> bytes:
        """Returns the LAC packet: ledger id, LAC, digest over both."""
        header = LAC_HEADER.pack(ledger_id, lac)
        return header + self.compute(header, b"")

    def decode_lac(self, ledger_id: int, data: Buffer) -> int:
        """Returns the LAC in a packet. Raises DigestMismatch, which says what differs."""
        view = memoryview(data)
        if len(view) != LAC_HEADER_BYTES + self.size:
            raise DigestMismatch(
                f"LAC packet of ledger {ledger_id} has {len(view)} bytes, with a "
                f"{self.digest_type.name} digest it has {LAC_HEADER_BYTES + self.size}"
            )
        found_ledger_id, lac = LAC_HEADER.unpack_from(view)
        if found_ledger_id != ledger_id:
            raise DigestMismatch(f"LAC packet is of ledger {found_ledger_id}, not {ledger_id}")
        found = view[LAC_HEADER_BYTES:]
        expected = self.compute(view[:LAC_HEADER_BYTES], b"")
        if found != expected:
            raise DigestMismatch(
                f"LAC packet of ledger {ledger_id}: {self.digest_type.name} digest is "
                f"{found.hex()}, LAC {lac} gives {expected.hex()}"
            )
        return int(lac)

    def _check_ids(self, ledger_id: int, entry_id: int, found_ledger: int, found: int) -> None:
        if found_ledger != ledger_id:
            raise DigestMismatch(
                f"entry {found} of ledger {found_ledger} was returned for entry {entry_id} of "
                f"ledger {ledger_id}"
            )
        if entry_id != INVALID_ENTRY_ID:
            raise DigestMismatch(
                f"entry {found} of ledger {ledger_id} was returned for entry {entry_id}"
            )
        if found < 0:
            raise DigestMismatch(f"entry of ledger {ledger_id} has the negative id {found}")
