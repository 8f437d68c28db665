"""What auto-recovery publishes about itself: the newest audit, and a report of each worker.

Nodes of JSON, for people and tools; nothing is decided by them, except that an audit continues
where the one before it ended. Damaged ones count as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, TypeVar

from ledger.core.bounded_json import parse_json
from ledger.errors import NodeExists, NoSuchNode
from ledger.metastore.base import MetadataStore

AUDIT_PATH: Final = "/ledgerstream/autorecovery/audit"
WORKERS_PATH: Final = "/ledgerstream/autorecovery/workers"
HELD_MAX: Final = 1000
REASON_CHARS_MAX: Final = 500

ReportT = TypeVar("ReportT")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """An audit: a pass over the metadata of all ledgers. Times are milliseconds since 1970."""

    auditor: str
    begun_ms: int
    ended_ms: int = 0
    """0 while it is running."""
    after_ledger: int = -1
    """The ledger up to which it has come."""
    checks_entries: bool = False
    """Whether bookies are asked which entries they hold."""
    ledgers: int = 0
    bytes: int = 0
    ledgers_below_write_quorum: int = 0
    bytes_below_write_quorum: int = 0
    ledgers_below_ack_quorum: int = 0
    bytes_below_ack_quorum: int = 0
    ledgers_without_copy: int = 0
    bytes_without_copy: int = 0
    ledgers_marked: int = 0
    """Ledgers that it marked, or found marked."""
    bookies_lost: tuple[str, ...] = ()
    """The bookies that were down for longer than the delay when it was published."""
    placement_strict: int | None = None
    """Ledgers that keep their placement in full; None if it was not graded, as by earlier
    releases."""
    placement_soft: int | None = None
    """Ledgers that keep what is required, and less than what is wanted."""
    placement_fail: int | None = None
    """Ledgers that keep less than what is required."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker has done since it was started, and what it cannot do."""

    worker: str
    updated_ms: int
    ledgers_healed: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    bytes_per_s: float = 0.0
    """Over the time since the report before."""
    backlog: int = 0
    in_progress: tuple[int, ...] = ()
    held_total: int = 0
    held: tuple[tuple[int, str, int, bool], ...] = ()
    """Up to HELD_MAX ledgers that cannot be healed now: id, reason, since when, and whether entries
    have no copy, as far as is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealingNow:
    """What auto-recovery does in this process at this moment; it is read, not published. Counts are
    since it began, also again after an error."""

    is_auditor: bool
    audits: int
    """Passes over all ledgers that were completed."""
    audit: AuditReport | None
    """The newest audit of this process; None before its first and while it is not the auditor."""
    ledgers_healed: int
    entries_copied: int
    bytes_copied: int
    in_progress: int
    backlog: int
    held: int
    """Ledgers that cannot be healed now."""
    held_with_loss: int
    """Those of them of which entries have no copy, as far as is known."""


def _encode(report: Any) -> bytes:
    return json.dumps({"version": 1, **asdict(report)}).encode()


def _decode(data: bytes, kind: type[ReportT]) -> ReportT | None:
    try:
        document = parse_json(data)
        if not isinstance(document, Mapping) or document.get("version") != 1:
            return None
        known = {one.name: document[one.name] for one in fields(kind) if one.name in document}  # type: ignore[arg-type]
        if "held" in known:
            known["held"] = tuple(
                (int(i), str(why), int(ms), bool(is_loss)) for i, why, ms, is_loss in known["held"]
            )
            known["in_progress"] = tuple(int(one) for one in known.get("in_progress", ()))
        if "bookies_lost" in known:
            known["bookies_lost"] = tuple(str(one) for one in known["bookies_lost"])
        return kind(**known)
    except (TypeError, ValueError):
        return None


async def read_audit(store: MetadataStore) -> AuditReport | None:
    """Returns the newest audit; None if there was none. Raises MetadataUnavailable."""
    try:
        return _decode((await store.get(AUDIT_PATH)).data, AuditReport)
    except NoSuchNode:
        return None


async def publish_audit(store: MetadataStore, report: AuditReport) -> None:
    """Replaces the report of the newest audit."""
    await _publish(store, AUDIT_PATH, _encode(report), is_ephemeral=False)


async def read_workers(store: MetadataStore) -> list[WorkerReport]:
    """Returns the reports of the workers that live and have published one."""
    found = []
    for name in await store.children(WORKERS_PATH):
        try:
            report = _decode((await store.get(f"{WORKERS_PATH}/{name}")).data, WorkerReport)
        except NoSuchNode:
            continue
        if report is not None:
            found.append(report)
    return found


async def publish_worker(store: MetadataStore, report: WorkerReport) -> None:
    """Replaces the report of a worker; it ends with the session."""
    await _publish(store, f"{WORKERS_PATH}/{report.worker}", _encode(report), is_ephemeral=True)


async def _publish(store: MetadataStore, path: str, data: bytes, *, is_ephemeral: bool) -> None:
    try:
        await store.put(path, data)
    except NoSuchNode:
        try:
            await store.create(path, data, is_ephemeral=is_ephemeral)
        except NodeExists:
            await store.put(path, data)
