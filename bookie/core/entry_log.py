"""The layout of entry logs, and the order in which a write-cache half is written to them.

The pure core of `bookie.storage.entry_log.entry_logs`; the bytes are described in docs/formats.md.
An entry log is a file header and then run records; a run is consecutive entries of one ledger, so
one index key serves up to a thousand entries. A record suffices to rebuild the index.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import accumulate, islice
from typing import NamedTuple

from crc32c import crc32c

from bookie.core.caches import OFFSET_MASK, Buffer, Half
from bookie.core.integrity import digest_that_fits
from bookie.core.journal import KEEP_INTERPRETER
from ledger.wire.v2 import ADD_ENTRY_AT

FILE_MAGIC = b"LSELOG\x00\x01"
FILE_HEADER_BYTES = 32
_FILE_HEADER = struct.Struct(">8sQI12x")

RUN_MAGIC = b"RUN\x01"
SUMMED_RUN_MAGIC = b"RUN\x02"
"""Of a record that ends with a CRC-32C of each entry, for entries that have no CRC of their own."""
_RUN_PREFIX = struct.Struct(">4sI")
_RUN_FIELDS = struct.Struct(">IIqqQ")
RUN_HEADER_BYTES = _RUN_PREFIX.size + _RUN_FIELDS.size

RUN_ENTRIES_MAX = 1000
RUN_BYTES_MAX = 512 * 1024
"""Bytes of bodies after which a run ends (a single body may exceed it). Bounds the copying of one
step."""
RECORD_ENTRIES = 30
"""A record costs about as much as gathering this number of entries."""
STEP_BYTES = 256 * 1024
"""Bytes that may be copied in one step after a full window was gathered."""
SORTED_AT_ONCE = 4000
"""Ledgers sorted in one step."""
UNIFORM_BODY_BYTES_MAX = 4096
"""Above this size, copying a body twice costs more than a view of it."""
VIEWED_BODY_BYTES_MIN = 4096
"""Bodies of this average size are written from where they are; smaller ones are joined."""

_frame_length = struct.Struct(">i").unpack_from


class Run(NamedTuple):
    """Consecutive entries of one ledger, ready to be written: `head` then `pieces`, which are
    valid as long as the half they were made of is being flushed."""

    ledger_id: int
    first: int
    lengths: array[int]
    head: bytes
    pieces: Sequence[Buffer]
    body_bytes: int
    sums: bytes = b""
    """The checksums of the entries, after the bodies; b"" if each entry has a CRC of its own."""

    @property
    def nbytes(self) -> int:
        """The size of the whole record."""
        return len(self.head) + self.body_bytes + len(self.sums)


class RunHeader(NamedTuple):
    """The fields of the fixed part of a run record; the lengths follow it, then the bodies."""

    head_crc: int
    body_crc: int
    entries: int
    ledger_id: int
    first: int
    body_bytes: int
    has_sums: bool

    @property
    def sums_bytes(self) -> int:
        """The bytes of the checksums after the bodies."""
        return 4 * self.entries if self.has_sums else 0


def encode_file_header(log_id: int) -> bytes:
    return _FILE_HEADER.pack(FILE_MAGIC, log_id, crc32c(FILE_MAGIC + log_id.to_bytes(8, "big")))


def check_file_header(data: bytes, log_id: int) -> None:
    """Raises ValueError unless `data` begins with the header of entry log `log_id`."""
    if data[:FILE_HEADER_BYTES] != encode_file_header(log_id):
        raise ValueError(
            f"entry log {log_id:x}: its first {FILE_HEADER_BYTES} bytes are not its header"
        )


def encode_lengths(lengths: array[int]) -> bytes:
    """Returns the lengths as little-endian uint32, on any machine."""
    if sys.byteorder == "big":
        lengths = lengths[:]
        lengths.byteswap()
    return lengths.tobytes()


def decode_lengths(data: bytes | memoryview) -> array[int]:
    """Reverses `encode_lengths`. Raises ValueError if `data` is not a whole number of uint32s."""
    lengths = array("I")
    lengths.frombytes(data)
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths


def make_run(ledger_id: int, first: int, lengths: array[int], pieces: Sequence[Buffer]) -> Run:
    """Returns the record of one run; `pieces` are the entries' bytes one after the other."""
    crc = body_bytes = 0
    for piece in pieces:
        crc = crc32c(piece, crc, KEEP_INTERPRETER)
        body_bytes += len(piece)
    fields = _RUN_FIELDS.pack(crc, len(lengths), ledger_id, first, body_bytes)
    fields += encode_lengths(lengths)
    sums, magic = b"", RUN_MAGIC
    # All entries of a ledger have one type of digest, so the first one stands for all. The checksum
    # of a single entry's record is its own.
    if len(lengths) > 1 and digest_that_fits(memoryview(pieces[0])[: lengths[0]]) is None:
        sums, magic = encode_lengths(_sums_of(lengths, pieces)), SUMMED_RUN_MAGIC
    head = _RUN_PREFIX.pack(magic, _head_crc(fields, bool(sums))) + fields
    return Run(ledger_id, first, lengths, head, pieces, body_bytes, sums)


def _head_crc(fields: bytes, has_sums: bool) -> int:
    return crc32c(SUMMED_RUN_MAGIC + fields if has_sums else fields)


def _sums_of(lengths: array[int], pieces: Sequence[Buffer]) -> array[int]:
    """Returns the CRC-32C of each entry; a piece is one entry, or the only piece is all of them."""
    if len(pieces) == len(lengths):
        return array("I", [crc32c(piece, 0, KEEP_INTERPRETER) for piece in pieces])
    [body] = pieces
    view, begin, sums = memoryview(body), 0, array("I")
    for length in lengths:
        sums.append(crc32c(view[begin : begin + length], 0, KEEP_INTERPRETER))
        begin += length
    return sums


def decode_run_header(data: bytes) -> RunHeader:
    """Decodes the fixed part of a record. Raises ValueError if it is not one: the log ends here."""
    if len(data) < RUN_HEADER_BYTES or data[:4] not in (RUN_MAGIC, SUMMED_RUN_MAGIC):
        raise ValueError("no run record begins here")
    _, head_crc = _RUN_PREFIX.unpack_from(data)
    body_crc, count, ledger_id, first, body_bytes = _RUN_FIELDS.unpack_from(data, _RUN_PREFIX.size)
    if not 0 < count <= RUN_ENTRIES_MAX or ledger_id < 0 or first < 0:
        raise ValueError(f"run of {count} entries from {first} of ledger {ledger_id}")
    has_sums = data[:4] == SUMMED_RUN_MAGIC
    return RunHeader(head_crc, body_crc, count, ledger_id, first, body_bytes, has_sums)


def check_run_lengths(header: RunHeader, fixed: bytes, lengths: bytes) -> array[int]:
    """Returns the lengths of a run's entries. Raises ValueError if header or lengths are
    damaged."""
    fields = fixed[_RUN_PREFIX.size : RUN_HEADER_BYTES] + lengths
    if _head_crc(fields, header.has_sums) != header.head_crc or len(lengths) != 4 * header.entries:
        raise ValueError(f"run at entry {header.first} of ledger {header.ledger_id}: bad header")
    decoded = decode_lengths(lengths)
    if sum(decoded) != header.body_bytes:
        raise ValueError(f"run at entry {header.first} of ledger {header.ledger_id}: bad lengths")
    return decoded


def check_run_body(header: RunHeader, body: bytes) -> None:
    """Raises ValueError if the bodies are damaged."""
    if len(body) != header.body_bytes or crc32c(body, 0, KEEP_INTERPRETER) != header.body_crc:
        raise ValueError(f"run at entry {header.first} of ledger {header.ledger_id}: bad bodies")


def flush_steps(half: Half, segments: Mapping[int, memoryview]) -> Iterator[list[Run]]:
    """Turns a write-cache half into runs, in short steps (0.5 ms or less).

    Runs are sorted by ledger; within a ledger they are in the order of adding, sorted in windows of
    a thousand. That is the order of entry ids, except for entries that arrived very late, which get
    runs of their own: sorting a whole ledger at once would delay acknowledgements. The half must
    not change meanwhile.
    """
    runs: list[Run] = []
    entries_done = bytes_done = 0
    for ledger_id in _in_order(half):
        if ledger_id is None:
            yield []
            continue
        entries = half[ledger_id]
        if len(entries) == 1:
            run = _run_of_one(ledger_id, entries, segments)
            runs.append(run)
            bytes_done += run.body_bytes
            entries_done += RECORD_ENTRIES
            if bytes_done > STEP_BYTES or entries_done >= RUN_ENTRIES_MAX:
                yield runs
                runs, entries_done, bytes_done = [], 0, 0
            continue
        ids = iter(entries)
        while window := list(islice(ids, RUN_ENTRIES_MAX)):
            window.sort()
            bodies, lengths = _gather(list(map(entries.__getitem__, window)), segments)
            entries_done += len(window)
            if bytes_done + sum(lengths) > STEP_BYTES:
                yield runs
                runs, entries_done, bytes_done = [], 0, 0
            for begin, end in _cuts(window, lengths):
                pieces: Sequence[Buffer] = bodies[begin:end]
                if sum(lengths[begin:end]) < VIEWED_BODY_BYTES_MIN * len(pieces):
                    pieces = (b"".join(pieces),)
                run = make_run(ledger_id, window[begin], lengths[begin:end], pieces)
                runs.append(run)
                bytes_done += run.body_bytes
                entries_done += RECORD_ENTRIES
                if bytes_done > STEP_BYTES or entries_done >= RUN_ENTRIES_MAX:
                    yield runs
                    runs, entries_done, bytes_done = [], 0, 0
    if runs:
        yield runs


def _run_of_one(
    ledger_id: int, entries: Mapping[int, int], segments: Mapping[int, memoryview]
) -> Run:
    """Returns the run of a ledger's only entry, at a third of the usual cost: a million ledgers are
    often like this."""
    [(entry_id, place)] = entries.items()
    segment, offset = segments[place >> 32], place & OFFSET_MASK
    body: Buffer = segment[offset + ADD_ENTRY_AT : offset + 4 + _frame_length(segment, offset)[0]]
    if len(body) < VIEWED_BODY_BYTES_MIN:
        body = bytes(body)
    return make_run(ledger_id, entry_id, array("I", (len(body),)), (body,))


def _in_order(ledger_ids: Iterable[int]) -> Iterator[int | None]:
    """Yields the ids in order, and None between steps of sorting: half a million at once take 0.2
    s."""
    every = iter(ledger_ids)
    parts: list[list[int]] = []
    while part := sorted(islice(every, SORTED_AT_ONCE)):
        if parts:
            yield None
        parts.append(part)
    yield from merge(*parts)


def _gather(
    places: list[int], segments: Mapping[int, memoryview]
) -> tuple[Sequence[bytes | memoryview], array[int]]:
    """Returns the bodies and their lengths."""
    first = min(places)
    views: list[memoryview]
    if first >> 32 == max(places) >> 32:
        segment = segments[first >> 32]
        uniform = _gather_uniform(places, segment)
        if uniform is not None:
            return uniform
        views = [
            segment[
                (o := place & OFFSET_MASK) + ADD_ENTRY_AT : o + 4 + _frame_length(segment, o)[0]
            ]
            for place in places
        ]
    else:
        views = []
        for place in places:
            segment = segments[place >> 32]
            o = place & OFFSET_MASK
            views.append(segment[o + ADD_ENTRY_AT : o + 4 + _frame_length(segment, o)[0]])
    return views, array("I", map(len, views))


def _gather_uniform(
    places: list[int], segment: memoryview
) -> tuple[Sequence[bytes], array[int]] | None:
    """Extracts adjacent frames of one size by a single call of struct, or returns None if they are
    not.

    This takes a third of the time of a view per entry, and is the usual case under load.
    """
    count = len(places)
    begin = places[0] & OFFSET_MASK
    length = _frame_length(segment, begin)[0]
    size = length + 4
    if (
        count < 4
        or size - ADD_ENTRY_AT > UNIFORM_BODY_BYTES_MAX
        or places[-1] != places[0] + (count - 1) * size
        or begin + count * size > len(segment)  # the last is shorter, and ends the segment
        or places != list(range(places[0], places[0] + count * size, size))
    ):
        return None
    fields = struct.unpack_from(">" + f"i24x{size - ADD_ENTRY_AT}s" * count, segment, begin)
    # Frames of other ledgers may be between shorter ones at the same distances.
    if fields[::2] != (length,) * count:
        return None
    return fields[1::2], array("I", [size - ADD_ENTRY_AT]) * count


def _cuts(window: list[int], lengths: array[int]) -> Iterator[tuple[int, int]]:
    """Yields the index ranges of the runs: a gap in the entry ids or too many bytes end one."""
    ends = list(accumulate(lengths))
    begin = 0
    count = len(window)
    while begin < count:
        before = ends[begin - 1] if begin else 0
        end = max(bisect_right(ends, before + RUN_BYTES_MAX, begin), begin + 1)
        if window[end - 1] - window[begin] != end - 1 - begin:
            # Keys of `window[i] - i` never decrease: bisect for where they first increase.
            end = bisect_right(
                range(end), window[begin] - begin, begin, key=lambda i: window[i] - i
            )
        yield begin, end
        begin = end


def entry_ends(lengths: Sequence[int]) -> list[int]:
    """Returns where each entry ends, counted from the start of the first."""
    return list(accumulate(lengths))
