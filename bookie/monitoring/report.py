"""The report of `bookie show` about one bookie, as plain values for JSON.

docs/operations.md describes its keys. Numbers for graphs are metrics instead.
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from bookie.config import BookieConfig
from bookie.core.metrics import Distribution
from bookie.monitoring.snapshot import JournalDirectory, LedgerDirectory, ServerStatus, Snapshot
from ledger.shown_text import shown_address

_STATES = {
    ServerStatus.WRITABLE: "writable",
    ServerStatus.READ_ONLY: "read-only",
    ServerStatus.UNREGISTERED: "not registered",
}


def software_version() -> str:
    """Returns the version of this distribution, or "unknown" if it is not installed."""
    try:
        return version("ledgerstream")
    except PackageNotFoundError:
        return "unknown"


def report(snapshot: Snapshot, config: BookieConfig) -> dict[str, object]:
    """Returns state and versions of a bookie, then its journals and ledger directories."""
    server, requests = snapshot.server, snapshot.server.requests
    return {
        "bookie": snapshot.bookie_id,
        "state": _STATES[snapshot.status],
        "disks": snapshot.disk_state.name.lower(),
        "reserved_bytes": snapshot.reserved_bytes,
        "forced_read_only": snapshot.is_forced_read_only,
        "emptying": snapshot.is_emptying,
        "copies_unneeded": snapshot.copies_unneeded,
        "copies_removed": snapshot.over_replication.copies_removed,
        "autorecovery": None if snapshot.healing is None else asdict(snapshot.healing),
        "version": software_version(),
        "python": platform.python_version(),
        "up_s": round(snapshot.started_s_ago, 1),
        "metadata": without_credentials(config.metadata_uri),
        "acknowledges": "synced adds" if config.journal_sync_data else "adds before their sync",
        "connections": server.connections,
        "adds": requests.adds,
        "add_bytes": requests.add_bytes,
        "reads": requests.reads,
        "read_bytes": requests.read_bytes,
        "journals": [_journal(number, one) for number, one in enumerate(snapshot.journals)],
        "ledger_directories": [
            _directory(number, one) for number, one in enumerate(snapshot.directories)
        ],
    }


def _journal(number: int, journal: JournalDirectory) -> dict[str, object]:
    found = journal.statistics
    return {
        "journal": number,
        "directory": journal.space.path,
        "total_bytes": journal.space.total_bytes,
        "free_bytes": journal.space.free_bytes,
        "disk": journal.space.state.name.lower(),
        "queue_bytes": found.queued_bytes,
        "queue_entries": found.queued_entries,
        "unsynced_bytes": found.unsynced_bytes,
        "syncs": found.syncs,
        "sync_ms_p50": _milliseconds(found.sync_seconds, 0.5),
        "sync_ms_p99": _milliseconds(found.sync_seconds, 0.99),
        "sync_ms_max": round(found.sync_seconds_max * 1000, 3),
        "entries_per_group": round(found.group_entries.mean, 1),
        "mark": f"{found.mark.file_id:x}:{found.mark.offset}",
    }


def _directory(number: int, directory: LedgerDirectory) -> dict[str, object]:
    found = directory.statistics
    ended_s_ago = found.flushes.ended_s_ago
    return {
        "number": number,
        "directory": directory.space.path,
        "total_bytes": directory.space.total_bytes,
        "free_bytes": directory.space.free_bytes,
        "disk": directory.space.state.name.lower(),
        "ledgers": directory.ledgers,
        "entry_logs": found.storage.entry_logs,
        "entry_logs_missing": found.storage.entry_logs_missing,
        "entry_logs_stray": found.storage.entry_logs_stray,
        "write_cache_bytes": found.storage.write_cache_bytes + found.flushes.flushing_bytes,
        "write_cache_limit_bytes": found.write_cache_limit_bytes,
        "read_cache_bytes": found.storage.read_cache_bytes,
        "checkpoints": found.storage.checkpoints,
        "last_checkpoint_s_ago": None if ended_s_ago is None else round(ended_s_ago, 1),
        "last_checkpoint_s": round(found.storage.checkpoint_seconds_last, 3),
        "garbage_rounds": found.garbage.seconds.count,
        "ledgers_deleted": found.garbage.ledgers_deleted,
        "entry_logs_removed": found.garbage.logs_removed + found.compaction.logs_compacted,
        "entry_log_bytes": found.compaction.log_bytes,
        "live_bytes": found.compaction.live_bytes,
        "is_compacting": found.compaction.is_compacting,
        "logs_set_aside": found.compaction.logs_set_aside,
        "entries_damaged": found.reads.entries_damaged,
        "ledgers_in_limbo": found.limbo.ledgers,
    }


def _milliseconds(found: Distribution, share: float) -> float | None:
    seconds = found.quantile(share)
    return None if seconds is None else round(seconds * 1000, 3)


def without_credentials(value: object) -> object:
    """Returns a setting as it may be shown: an address without user name and password."""
    return shown_address(value) if isinstance(value, str) and "://" in value else value
