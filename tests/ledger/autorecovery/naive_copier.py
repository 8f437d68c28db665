"""A copier without batches: one read and one add at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ledger.client import LedgerClient
from ledger.core.availability import Range
from ledger.core.entry import master_key
from ledger.core.metadata import LedgerMetadata
from ledger.core.quorum import write_set
from ledger.errors import DigestMismatch, LedgerError, Status, error_of_status
from ledger.recovery import digest_of
from ledger.wire.messages import AddRequest, ReadRequest, ReadResponse


@dataclass(slots=True)
class NaiveReport:
    entries: int = 0
    payload_bytes: int = 0
    unreadable: list[tuple[Range, str]] = field(default_factory=list)
    is_stopped: bool = False


class NaiveCopier:
    def __init__(self, client: LedgerClient) -> None:
        self._client = client

    async def copy(
        self,
        metadata: LedgerMetadata,
        target: str,
        ranges: Sequence[Range],
        *,
        is_wanted: Callable[[], bool],
    ) -> NaiveReport:
        report = NaiveReport()
        for first, last in ranges:
            for entry_id in range(first, last + 1):
                if not is_wanted():
                    report.is_stopped = True
                    return report
                body = await self._read(metadata, entry_id, target)
                if body is None:
                    report.unreadable.append(((entry_id, entry_id), "no copy"))
                    continue
                add = AddRequest(
                    metadata.ledger_id,
                    entry_id,
                    master_key(metadata.password),
                    body,
                    is_recovery=True,
                )
                answer = await self._client.pool.call(target, add, timeout_s=5)
                if answer.status is not Status.OK:
                    raise error_of_status(answer.status, f"copy to {target}")
                report.entries += 1
                report.payload_bytes += len(body)
        return report

    async def _read(self, metadata: LedgerMetadata, entry_id: int, target: str) -> bytes | None:
        bookies = metadata.fragment_of(entry_id).bookies
        sizes = metadata.ensemble_size, metadata.write_quorum
        for index in write_set(entry_id, *sizes):
            if bookies[index] == target:
                continue
            try:
                answer = await self._client.pool.call(
                    bookies[index], ReadRequest(metadata.ledger_id, entry_id), timeout_s=5
                )
                if isinstance(answer, ReadResponse) and answer.body is not None:
                    body = bytes(answer.body)
                    digest = digest_of(metadata, metadata.password)
                    digest.decode_entry(metadata.ledger_id, entry_id, body)
                    return body
            except (LedgerError, DigestMismatch):
                continue
        return None
