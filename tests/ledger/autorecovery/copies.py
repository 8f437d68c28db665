"""Ledgers to be copied, and their raw copies at a bookie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import trio

from ledger.client import LedgerClient
from ledger.core.availability import Range, expected_ranges
from ledger.core.entry import DigestType
from ledger.core.metadata import LedgerMetadata
from ledger.errors import BookieUnavailable, Status
from ledger.wire.messages import ReadRequest, ReadResponse, ResponseBody

_TRIES_MAX = 5


async def written(
    client: LedgerClient,
    payloads: Iterable[bytes],
    sizes: tuple[int, int, int] = (2, 2, 2),
    digest_type: DigestType = DigestType.CRC32C,
) -> LedgerMetadata:
    """Writes and closes a ledger; returns its metadata."""
    ensemble, write, ack = sizes
    async with client.create_ledger(
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=ack,
        digest_type=digest_type,
        password=b"secret",
    ) as writer:
        await writer.append_many(payloads)
    return await client.ledger_metadata(writer.ledger_id)


async def other_bookie(client: LedgerClient, metadata: LedgerMetadata) -> str:
    """Returns a bookie without any copy."""
    used = {name for fragment in metadata.fragments for name in fragment.bookies}
    return next(name for name in await client.bookies.available() if name not in used)


def lacking(metadata: LedgerMetadata, lost: str | None = None) -> list[Range]:
    """Returns what a bookie lacks that takes the place of `lost`."""
    return list(expected_ranges(metadata, lost or metadata.fragments[0].bookies[0]))


def entries_of(ranges: Sequence[Range]) -> list[int]:
    return [n for first, last in ranges for n in range(first, last + 1)]


async def raw_copies(
    client: LedgerClient, bookie: str, ledger_id: int, entries: Iterable[int]
) -> dict[int, bytes]:
    """Returns the bytes of those entries that the bookie has."""
    found: dict[int, bytes] = {}
    for entry_id in entries:
        answer = await _read(client, bookie, ReadRequest(ledger_id, entry_id))
        if answer.status is Status.OK:
            assert isinstance(answer, ReadResponse)
            assert answer.body is not None
            found[entry_id] = bytes(answer.body)
    return found


async def _read(client: LedgerClient, bookie: str, request: ReadRequest) -> ResponseBody:
    """Reads again if the connection was one to a bookie before its death."""
    for _ in range(_TRIES_MAX):
        try:
            return await client.pool.call(bookie, request, timeout_s=5)
        except BookieUnavailable:
            await trio.sleep(1)
    raise AssertionError(f"{bookie} is down")
