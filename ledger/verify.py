"""Verifies a ledger: reads every copy of every entry and reports the result. Core: `core.copies`.

It reads confirmed entries only; it fences no writer and changes nothing. Memory is bounded by one
span of entries per bookie; the bookies of a span are read at the same time. A bad copy is read
again by fresh metadata before it is reported: copies may have moved meanwhile, and the last entries
may still be in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from ledger.client import LedgerClient
from ledger.copy_reader import CopyReader, SilentBookies
from ledger.core.copies import BadCopy, Copy, CopyState, CopyTally, LedgerReport
from ledger.core.entry import HEADER, Digest, DigestType, Entry
from ledger.core.metadata import LedgerMetadata, digest_of
from ledger.core.quorum import holds
from ledger.errors import InvalidArgument, NotEnoughBookies
from ledger.reading.opener import password_of

SPAN_ENTRIES_MAX = 4096
_SPAN_ENTRIES_FIRST = 256
_LOOKS_MAX = 3
_LOOK_AGAIN_S = 0.3
_IN_FLIGHT_MAX = 10_000
"""Entries that a writer has in flight at most, by default (`window_entries`)."""

OnEntries = Callable[[int, int], None]
"""Called with the entries and payload bytes that were verified since the last call."""


@dataclass(frozen=True, slots=True)
class ExpectedEntry:
    """An entry as its receipt describes it: its stored digest (None: not known), and the bookies
    that acknowledged it."""

    entry_id: int
    digest: bytes | None
    acknowledged: tuple[str, ...]


async def verify_ledger(
    client: LedgerClient,
    ledger_id: int,
    *,
    first: int = 0,
    last: int | None = None,
    password: bytes = b"",
    digest_type: DigestType | None = None,
    on_entries: OnEntries | None = None,
    silent: SilentBookies | None = None,
) -> LedgerReport:
    """Reads all copies of entries `first` to `last`, by default to the end of the ledger, or to the
    last add confirmed of an open one.

    Bad copies are reported, not raised. `digest_type` is used for a ledger whose metadata is too
    old to name one. Verifications that share `silent` wait for a silent bookie only once. Raises
    NoSuchLedger (also if it is deleted meanwhile), Unauthorized (another password),
    InvalidArgument for an invalid range, MetadataUnavailable.
    """
    if first < 0 or (last is not None and last < first):
        raise InvalidArgument(f"entries {first}..{last} of ledger {ledger_id}: no range")
    metadata = await client.ledger_metadata(ledger_id)
    password = password_of(metadata, password)
    end, doubts = await _confirmed(client, metadata, password, digest_type)
    metadata = await client.ledger_metadata(ledger_id)  # as it is after that
    digest = digest_of(metadata, password, digest_type)
    verifying = _Verifying(client, metadata, digest, silent or SilentBookies())
    return await verifying.run(first, end if last is None else min(last, end), on_entries, doubts)


async def verify_entry(
    client: LedgerClient,
    ledger_id: int,
    expected: ExpectedEntry,
    *,
    password: bytes = b"",
    silent: SilentBookies | None = None,
) -> LedgerReport:
    """Reads all copies of one confirmed entry, and compares them with its receipt.

    A copy with another digest differs; a copy that was acknowledged and is missing is damage.
    Raises NoSuchLedger, Unauthorized, MetadataUnavailable.
    """
    metadata = await client.ledger_metadata(ledger_id)
    password = password_of(metadata, password)
    digest = digest_of(metadata, password)
    verifying = _Verifying(client, metadata, digest, silent or SilentBookies(), expected)
    return await verifying.run(expected.entry_id, expected.entry_id, None, [])


async def _confirmed(
    client: LedgerClient,
    metadata: LedgerMetadata,
    password: bytes,
    digest_type: DigestType | None,
) -> tuple[int, list[str]]:
    """Returns the last entry known to be confirmed, and why there may be more."""
    if metadata.is_closed:
        return metadata.last_entry_id, []
    try:
        async with client.open_ledger(
            metadata.ledger_id, password=password, recover=False, digest_type=digest_type
        ) as reader:
            return reader.last_add_confirmed, []
    except NotEnoughBookies as error:
        return metadata.last_fragment.first_entry_id - 1, [str(error)]


class _Verifying:
    """Verifies one ledger, span by span."""

    def __init__(
        self,
        client: LedgerClient,
        metadata: LedgerMetadata,
        digest: Digest,
        silent: SilentBookies,
        expected: ExpectedEntry | None = None,
    ) -> None:
        self._client = client
        self._metadata = metadata
        self._digest = digest
        self._expected = expected
        self._reader = CopyReader(metadata.ledger_id, digest, client.pool, client.options, silent)
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        self._tally = CopyTally(
            metadata.ack_quorum,
            gap_max=size - quorum + 1,
            acknowledged=expected.acknowledged if expected is not None else (),
        )
        self._span_entries = _SPAN_ENTRIES_FIRST
        self._may_be_in_flight = range(0)

    async def run(
        self, first: int, last: int, on_entries: OnEntries | None, doubts: list[str]
    ) -> LedgerReport:
        at, tally = first, self._tally
        self._may_be_in_flight = range(last - _IN_FLIGHT_MAX, last + 1)
        while at <= last:
            entries, nbytes = tally.entries, tally.payload_bytes
            end = self._span_end(at, last)
            await self._verify_span(at, end)
            self._size_spans(tally.entries - entries, tally.payload_bytes - nbytes)
            if on_entries is not None:
                on_entries(tally.entries - entries, tally.payload_bytes - nbytes)
            at = end + 1
        return tally.report(
            self._metadata.ledger_id,
            is_closed=self._metadata.is_closed,
            first_entry=first,
            last_entry=max(last, first - 1),
            doubts=doubts,
        )

    def _span_end(self, first: int, last: int) -> int:
        end = min(last, first + self._span_entries - 1)
        fragments = self._metadata.fragments
        after = self._metadata.fragment_index_of(first) + 1
        if after < len(fragments):
            end = min(end, fragments[after].first_entry_id - 1)
        return end

    def _size_spans(self, entries: int, nbytes: int) -> None:
        """Sets the size of the next span to as many entries as make up one batch read."""
        wanted = self._client.options.batch_read_bytes * entries // (nbytes + 64 * entries)
        self._span_entries = max(1, min(wanted, SPAN_ENTRIES_MAX))

    async def _verify_span(self, first: int, last: int) -> None:
        """Verifies entries first..last, which are all of one fragment."""
        replicas = self._replicas(first, last)
        copies = await self._read(replicas)
        for look in range(1, _LOOKS_MAX):
            again = self._to_read_again(copies)
            is_moved = await self._is_moved(first, replicas) if self._has_bad(copies) else False
            if is_moved:
                # Later fragments may have changed too; the next span reads them again.
                replicas = self._replicas(first, last)
                copies = await self._read(replicas)
            elif again:
                await trio.sleep(_LOOK_AGAIN_S * look)
                for bookie, found in (await self._read(again)).items():
                    copies[bookie] |= found
            else:
                break
        self._add(first, last, copies)

    def _replicas(self, first: int, last: int) -> dict[str, Sequence[int]]:
        """Returns the entries each bookie should have. A bookie named twice is asked once."""
        metadata = self._metadata
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        replicas: dict[str, Sequence[int]] = {}
        for entry_range, bookies in self._ensembles(first, last):
            for bookie in dict.fromkeys(bookies):
                indices = [i for i, name in enumerate(bookies) if name == bookie]
                own: Sequence[int] = entry_range
                if size != quorum:
                    own = [
                        e for e in entry_range if any(holds(i, e, size, quorum) for i in indices)
                    ]
                if own:
                    replicas[bookie] = [*replicas.get(bookie, ()), *own]
        return replicas

    def _ensembles(self, first: int, last: int) -> list[tuple[range, tuple[str, ...]]]:
        """Returns the fragments of first..last: one, unless they changed since the span was cut."""
        found = []
        while first <= last:
            index = self._metadata.fragment_index_of(first)
            end = last
            if index + 1 < len(self._metadata.fragments):
                end = min(last, self._metadata.fragments[index + 1].first_entry_id - 1)
            found.append((range(first, end + 1), self._metadata.fragments[index].bookies))
            first = end + 1
        return found

    async def _read(self, replicas: dict[str, Sequence[int]]) -> dict[str, dict[int, Copy]]:
        copies: dict[str, dict[int, Copy]] = {}

        async def read(bookie: str, entry_ids: Sequence[int]) -> None:
            copies[bookie] = await self._reader.read(bookie, entry_ids)
            self._check_expected(copies[bookie])

        async with trio.open_nursery() as nursery:
            for bookie, entry_ids in replicas.items():
                nursery.start_soon(read, bookie, entry_ids)
        return {bookie: copies[bookie] for bookie in replicas}

    def _check_expected(self, found: dict[int, Copy]) -> None:
        expected = self._expected
        if expected is None or expected.digest is None:
            return
        copy = found.get(expected.entry_id)
        if isinstance(copy, Entry):
            header = HEADER.pack(copy.ledger_id, copy.entry_id, copy.lac, copy.length)
            digest = self._digest.compute(header, copy.payload)
            if digest != expected.digest:
                found[expected.entry_id] = BadCopy(
                    CopyState.DIFFERS,
                    f"a valid copy with digest {digest.hex()}; the receipt says "
                    f"{expected.digest.hex()}",
                )

    def _has_bad(self, copies: dict[str, dict[int, Copy]]) -> bool:
        return any(isinstance(c, BadCopy) for found in copies.values() for c in found.values())

    def _to_read_again(self, copies: dict[str, dict[int, Copy]]) -> dict[str, Sequence[int]]:
        """Returns the copies that may be better soon: I/O errors pass, and the last entries may be
        in flight to a bookie that was not needed for their ack quorum."""
        again = {
            bookie: [
                entry_id
                for entry_id, copy in found.items()
                if isinstance(copy, BadCopy)
                and (
                    copy.state is CopyState.UNREADABLE
                    or (copy.state is CopyState.MISSING and entry_id in self._may_be_in_flight)
                )
            ]
            for bookie, found in copies.items()
        }
        return {bookie: entry_ids for bookie, entry_ids in again.items() if entry_ids}

    async def _is_moved(self, first: int, replicas: dict[str, Sequence[int]]) -> bool:
        """Whether fresh metadata names other bookies. Raises NoSuchLedger."""
        last = max(entry_ids[-1] for entry_ids in replicas.values())
        self._metadata = await self._client.ledger_metadata(self._metadata.ledger_id)
        return self._replicas(first, last) != replicas

    def _add(self, first: int, last: int, copies: dict[str, dict[int, Copy]]) -> None:
        metadata = self._metadata
        all_copies = list(copies.values())
        if metadata.ensemble_size == metadata.write_quorum and not self._has_bad(copies):
            entries = list(all_copies[0].values())
            if all(found == all_copies[0] for found in all_copies[1:]) and len(entries) == (
                last - first + 1
            ):
                # As checked above, all of them are entries.
                self._tally.add_equal([e for e in entries if isinstance(e, Entry)], len(all_copies))
                return
        for entry_id in range(first, last + 1):
            self._tally.add(
                entry_id, {b: found[entry_id] for b, found in copies.items() if entry_id in found}
            )
