"""A copier without batches: one read and one add at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ledger.autorecovery.copier import CopyReport
from ledger.client import LedgerClient
from ledger.core.autorecovery.copy_plan import CopyFailure
from ledger.core.availability import Range
from ledger.core.entry import master_key
from ledger.core.metadata import LedgerMetadata, digest_of
from ledger.core.quorum import write_set
from ledger.errors import DigestMismatch, LedgerError, Status
from ledger.wire.messages import AddRequest, ReadRequest, ReadResponse


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
    ) -> CopyReport:
        entries = payload_bytes = 0
        failures: list[CopyFailure] = []

        def report(**more: Any) -> CopyReport:
            return CopyReport(
                ledger_id=metadata.ledger_id,
                target=target,
                entries=entries,
                payload_bytes=payload_bytes,
                failures=tuple(failures),
                entries_failed=len(failures),
                **more,
            )

        for first, last in ranges:
            for entry_id in range(first, last + 1):
                if not is_wanted():
                    return report(is_stopped=True)
                body = await self._read(metadata, entry_id, target)
                if body is None:
                    failures.append(CopyFailure(entry_id, entry_id, 1, False, "no copy"))
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
                    return report(target_error=answer.status.name)
                entries += 1
                payload_bytes += len(body)
        return report()

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
