"""Janitor: applies retention, gives back ledgers, finishes deletions, finds orphans.

Any number may run; each step compares versions, can be stopped anywhere and repeated. Deletes a
ledger only when metadata says that no stream needs it, and never on a guess.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError, MetadataConflict, NoSuchLedger
from stream.core.policy import NamespaceMetadata, what_to_truncate
from stream.errors import NoSuchStream
from stream.reclaim import delete_ledgers, purge_stream, reclaim_stream
from stream.store import StreamStore
from stream.succession import STREAM_TAG

_log = logging.getLogger(__name__)

ORPHAN_AGE_MS = 3_600_000
"""A ledger nobody names is left alone for so long: its writer may be about to publish it."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did."""

    streams: int = 0
    streams_truncated: int = 0
    streams_purged: int = 0
    ledgers_deleted: int = 0
    orphans_deleted: int = 0
    failures: int = 0


class Janitor:
    """Cleans one namespace.

    Args:
        orphan_age_ms: how old a ledger that no stream names must be before it is deleted.
    """

    def __init__(
        self, client: LedgerClient, namespace: str, *, orphan_age_ms: int = ORPHAN_AGE_MS
    ) -> None:
        self._client = client
        self._store = StreamStore(client.store)
        self._namespace = namespace
        self._orphan_age_ms = orphan_age_ms
        self._foreign: set[int] = set()
        """Ledgers that are not of this namespace: looked at once, not in every sweep."""

    async def run(self, interval_s: float) -> None:
        """Sweeps for ever, `interval_s` apart; failures are logged and tried again."""
        while True:
            try:
                report = await self.sweep()
                _log.info("namespace=%s: %s", self._namespace, report)
            except LedgerError as error:
                _log.warning("namespace=%s: sweep failed: %s", self._namespace, error)
            await trio.sleep(interval_s)

    async def sweep(self) -> SweepReport:
        """Looks at every stream and at every orphan once. A stream that fails is counted, and
        does not keep the others from being cleaned. Raises NoSuchNamespace, MetadataUnavailable.
        """
        policy, _ = await self._store.read_namespace(self._namespace)
        names = await self._store.list_streams(self._namespace)
        truncated = purged = deleted = failures = 0
        named: set[int] = set()
        for name in names:
            try:
                stream, version = await self._store.read_stream(self._namespace, name)
                if stream.is_deleted:
                    await purge_stream(self._client, self._store, self._namespace, stream, version)
                    purged += 1
                    continue
                truncated += await self._apply_retention(name, policy)
                deleted += await reclaim_stream(self._client, self._store, self._namespace, name)
                named.update(stream.ledgers())
            except NoSuchStream:
                continue
            except LedgerError as error:
                failures += 1
                _log.warning("stream=%s: not cleaned: %s", name, error)
        orphans = await self._delete_orphans(named)
        return SweepReport(len(names), truncated, purged, deleted, orphans, failures)

    async def _apply_retention(self, name: str, policy: NamespaceMetadata) -> bool:
        """Moves the truncation point as the policy says; True if it moved."""
        now_ms = self._client.now_ms()
        before, _ = await self._store.read_stream(self._namespace, name)
        after = await self._store.update_stream(
            self._namespace,
            name,
            lambda stream: stream.truncated(what_to_truncate(stream, policy, now_ms)),
        )
        return after.truncated_to > before.truncated_to

    async def _delete_orphans(self, named: set[int]) -> int:
        """Ledgers made for a stream of this namespace that it never took, or no longer names:
        of writers that died between making and publishing. Those in `named` are not looked at.
        """
        now_ms = self._client.now_ms()
        prefix = f"{self._namespace}/".encode()
        count = 0
        ledger_ids = await self._client.list_ledgers()
        self._foreign.intersection_update(ledger_ids)
        for ledger_id in ledger_ids:
            if ledger_id in named or ledger_id in self._foreign:
                continue
            try:
                metadata = await self._client.ledger_metadata(ledger_id)
            except NoSuchLedger:
                continue
            tag = metadata.custom.get(STREAM_TAG, b"")
            if not tag.startswith(prefix):
                self._foreign.add(ledger_id)
                continue
            if now_ms - metadata.created_ms < self._orphan_age_ms:
                continue
            name = tag[len(prefix) :].decode(errors="replace")
            try:
                count += await self._delete_orphan(ledger_id, name)
            except MetadataConflict:
                continue  # the stream changed just now: the next sweep looks again
            except LedgerError as error:
                _log.warning("ledger=%d: orphan of stream=%s stays: %s", ledger_id, name, error)
        return count

    async def _delete_orphan(self, ledger_id: int, name: str) -> int:
        try:
            stream, version = await self._store.read_stream(self._namespace, name)
        except NoSuchStream:
            return await delete_ledgers(self._client, [ledger_id])
        if ledger_id in stream.ledgers():
            return 0
        path = await self._client.ledgers.path(ledger_id)
        await self._store.delete_orphan(self._namespace, name, version, path)
        return 1
