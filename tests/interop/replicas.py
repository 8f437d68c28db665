"""Compares the replicas of a ledger on all its bookies, byte by byte.

Entries are read raw from each bookie of their write set, of either kind, in both wire versions. Two
replicas of an entry may differ only in the LAC field of one that a recovery has added again (and
therefore in the digest); any other difference is a fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import trio

from ledger.connection.pool import BookiePool
from ledger.core.entry import HEADER_BYTES, Digest, DigestType
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import write_set
from ledger.errors import DigestMismatch, Status
from ledger.wire.messages import ReadRequest, ReadResponse
from tests.interop.timeouts import PATIENCE_S, REQUEST_TIMEOUT_S

_LAC_FIELD = slice(16, 24)
_AT_ONCE = 16
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Replicas:
    """The raw bytes of one entry by bookie; None: the bookie does not hold it."""

    entry_id: int
    by_bookie: Mapping[str, bytes | None]


async def read_replicas(
    pool: BookiePool, metadata: LedgerMetadata, *, without: Collection[str] = ()
) -> list[Replicas]:
    """Reads all entries of a closed ledger from all bookies of their write sets, `without` some.

    Raises AssertionError if a bookie answers v2 and v3 differently, or with an error.
    """
    entries = [
        Replicas(entry_id, dict.fromkeys(b for b in _holders(metadata, entry_id)))
        for entry_id in range(metadata.last_entry_id + 1)
    ]
    tickets = trio.CapacityLimiter(_AT_ONCE)

    async def read(entry_id: int, bookie: str, into: dict[str, bytes | None]) -> None:
        async with tickets:
            into[bookie] = await read_raw(pool, metadata.ledger_id, entry_id, bookie)

    found: list[Replicas] = []
    async with trio.open_nursery() as nursery:
        for replicas in entries:
            by_bookie: dict[str, bytes | None] = {}
            found.append(Replicas(replicas.entry_id, by_bookie))
            for bookie in replicas.by_bookie:
                if bookie not in without:
                    nursery.start_soon(partial(read, replicas.entry_id, bookie, by_bookie))
    return found


def _holders(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    bookies = metadata.fragment_of(entry_id).bookies
    places = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
    return [bookies[place] for place in places]


async def read_raw(pool: BookiePool, ledger_id: int, entry_id: int, bookie: str) -> bytes | None:
    """Reads one entry from a bookie, over v2 and v3; None if the bookie does not hold it."""
    deadline_s = trio.current_time() + PATIENCE_S
    while True:
        in_v2, in_v3 = [
            await _read_raw(pool, ledger_id, entry_id, bookie, version) for version in (2, 3)
        ]
        if in_v2 == in_v3:
            return in_v2
        if trio.current_time() > deadline_s:
            break
        # A bookie may not have received yet the entries that a recovery adds again.
        await trio.sleep(_PAUSE_S)
    raise AssertionError(f"{bookie} entry {entry_id}: v2 gives {in_v2!r}, v3 {in_v3!r}")


async def _read_raw(
    pool: BookiePool, ledger_id: int, entry_id: int, bookie: str, version: int
) -> bytes | None:
    connection = pool.connection(bookie, version)
    await connection.wait_connected()
    response = await connection.call(ReadRequest(ledger_id, entry_id), REQUEST_TIMEOUT_S)
    assert isinstance(response, ReadResponse), response
    if response.status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):
        return None
    assert response.status is Status.OK, f"{bookie} entry {entry_id}: {response.status.name}"
    assert response.body is not None
    return bytes(response.body)


def replica_faults(
    metadata: LedgerMetadata,
    replicas: list[Replicas],
    *,
    recovered_from: int | None,
    is_on_all: bool = False,
    is_length_doubtful: bool = False,
    may_be_torn: Collection[str] = (),
) -> list[str]:
    """Returns the faults of the replicas of a closed ledger.

    Args:
        recovered_from: first entry that a recovery may have added again; None: there was none.
        is_on_all: whether each entry must be on its whole write set, or on an ack quorum. Bookies
            that were not read count as holding it.
        is_length_doubtful: the metadata's length is not compared with the entries'.
        may_be_torn: Apache bookies that were killed. Their journal has no checksums: half a
            record, never acknowledged, is replayed with zeros after it. Such a replica is ignored.
    """
    found: list[str] = []
    digest = Digest(metadata.digest_type or DigestType.CRC32, metadata.password)
    required = metadata.write_quorum if is_on_all else metadata.ack_quorum
    length = 0
    for entry in replicas:
        bodies = {
            bookie: body
            for bookie, body in entry.by_bookie.items()
            if body is not None
            and not (bookie in may_be_torn and _is_torn(digest, metadata, entry.entry_id, body))
        }
        least = required - (metadata.write_quorum - len(entry.by_bookie))
        if len(bodies) < least:
            found.append(
                f"entry {entry.entry_id} is on {sorted(bodies)} only, of "
                f"{sorted(entry.by_bookie)}; it must be on {least}"
            )
        if not bodies:
            continue
        first = next(iter(bodies.values()))
        length += len(first) - HEADER_BYTES - digest.size
        for bookie, body in bodies.items():
            what = f"entry {entry.entry_id} on {bookie}"
            try:
                decoded = digest.decode_entry(metadata.ledger_id, entry.entry_id, body)
            except DigestMismatch as error:
                found.append(f"{what}: {error}")
                continue
            if decoded.length != length:
                found.append(f"{what}: length field {decoded.length}, must be {length}")
            if not -1 <= decoded.lac < entry.entry_id:
                found.append(f"{what}: LAC field {decoded.lac}")
            found += _differences(what, body, first, digest.size, entry.entry_id, recovered_from)
    if length != metadata.length and not is_length_doubtful:
        found.append(f"the entries have {length} bytes, the metadata says {metadata.length}")
    return found


def _is_torn(digest: Digest, metadata: LedgerMetadata, entry_id: int, body: bytes) -> bool:
    """Returns whether a replica ends in zeros that are not part of the entry."""
    try:
        digest.decode_entry(metadata.ledger_id, entry_id, body)
    except DigestMismatch:
        return body.endswith(b"\0")
    return False


def _differences(
    what: str, body: bytes, first: bytes, digest_bytes: int, entry_id: int, recovered: int | None
) -> list[str]:
    if body == first:
        return []
    if recovered is None or entry_id < recovered:
        return [f"{what}: differs from its other replicas: {body[:64].hex()}, {first[:64].hex()}"]
    if body[_LAC_FIELD] == first[_LAC_FIELD] or _without_lac(body, digest_bytes) != _without_lac(
        first, digest_bytes
    ):
        return [f"{what}: differs by more than LAC: {body[:64].hex()}, {first[:64].hex()}"]
    return []


def _without_lac(body: bytes, digest_bytes: int) -> bytes:
    return body[:16] + body[24:HEADER_BYTES] + body[HEADER_BYTES + digest_bytes :]
