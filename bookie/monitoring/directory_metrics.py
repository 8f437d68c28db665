"""The metrics of each ledger directory; `bookie_metrics` has those of bookie and journals."""

from __future__ import annotations

from typing import Final

from bookie.core.metrics import Metric, counter, gauge, histogram
from bookie.monitoring.snapshot import LedgerDirectory

DIRECTORY: Final[tuple[Metric[LedgerDirectory], ...]] = (
    gauge(
        "write_cache_bytes",
        "Bytes of entries that are not in entry logs yet, in both halves.",
        "bookie_write_cache_size",
        lambda d: d.statistics.storage.write_cache_bytes + d.statistics.flushes.flushing_bytes,
    ),
    gauge(
        "write_cache_flushing_bytes",
        "Bytes of the half that is being flushed now.",
        "",
        lambda d: d.statistics.flushes.flushing_bytes,
    ),
    gauge(
        "write_cache_limit_bytes",
        "Limit of both halves together.",
        "",
        lambda d: d.statistics.write_cache_limit_bytes,
    ),
    counter(
        "write_cache_hits",
        "Entries read that were in the write cache.",
        "bookie_write_cache_hits",
        lambda d: d.statistics.reads.write_cache_hits,
    ),
    counter(
        "write_cache_misses",
        "Entries read that were not in the write cache.",
        "bookie_write_cache_misses",
        lambda d: d.statistics.reads.write_cache_misses,
    ),
    gauge(
        "read_cache_bytes",
        "Bytes of entries read from entry logs and kept.",
        "bookie_read_cache_size",
        lambda d: d.statistics.storage.read_cache_bytes,
    ),
    counter(
        "read_cache_hits",
        "Entries read that were in the read cache.",
        "bookie_read_cache_hits",
        lambda d: d.statistics.reads.read_cache_hits,
    ),
    counter(
        "read_cache_misses",
        "Entries for which an entry log was read.",
        "bookie_read_cache_misses",
        lambda d: d.statistics.reads.read_cache_misses,
    ),
    counter(
        "read_ahead_entries",
        "Entries read from entry logs together with a requested one.",
        "bookie_readahead_batch_count",
        lambda d: d.statistics.reads.read_ahead_entries,
    ),
    counter(
        "entry_log_read_bytes",
        "Bytes read from entry logs for readers.",
        "bookie_readahead_batch_size",
        lambda d: d.statistics.reads.entry_log_bytes,
    ),
    counter(
        "entries_damaged",
        "Damaged entries found by reads, which were answered with an I/O error.",
        "",
        lambda d: d.statistics.reads.entries_damaged,
    ),
    counter(
        "entries_unverified",
        "Entries read whose stored checksum could not be compared.",
        "",
        lambda d: d.statistics.reads.entries_unverified,
    ),
    histogram(
        "disk_read_seconds",
        "Durations of reads of entry logs that waited for the disk; the others were in the page"
        " cache.",
        "bookie_read_entrylog_time",
        lambda d: d.statistics.reads.disk_seconds,
    ),
    histogram(
        "checkpoint_seconds",
        "Whole checkpoints: write cache to entry log and index, then the mark.",
        "bookie_flush",
        lambda d: d.statistics.flushes.seconds,
    ),
    histogram(
        "checkpoint_bytes",
        "Bytes of frames written by one checkpoint.",
        "bookie_flush_size",
        lambda d: d.statistics.flushes.nbytes,
    ),
    histogram(
        "checkpoint_entry_log_seconds",
        "The part of a checkpoint that writes and syncs entry logs.",
        "bookie_flush_entrylog",
        lambda d: d.statistics.flushes.entry_log_seconds,
    ),
    histogram(
        "checkpoint_index_seconds",
        "The part of a checkpoint that writes the index.",
        "bookie_flush_locations_index",
        lambda d: d.statistics.flushes.index_seconds,
    ),
    counter(
        "flushed_entries",
        "Entries written to entry logs.",
        "",
        lambda d: d.statistics.storage.entries_flushed,
    ),
    histogram(
        "throttled_seconds",
        "Time that a connection waited because the write cache was full.",
        "bookie_throttled_write, throttled_write_requests",
        lambda d: d.statistics.flushes.throttled_seconds,
    ),
    gauge(
        "throttled",
        "Connections that wait for capacity in the write cache now.",
        "",
        lambda d: d.statistics.flushes.throttled_now,
    ),
    gauge(
        "ledgers",
        "Ledgers in the index; counted seldom, and missing before the first count.",
        "bookie_ledgers_count, bookie_ACTIVE_LEDGER_TOTAL",
        lambda d: d.ledgers,
    ),
    gauge(
        "ledger_states",
        "Ledgers whose state is in memory.",
        "",
        lambda d: d.statistics.storage.states,
    ),
    gauge(
        "entry_logs",
        "Entry logs in the index.",
        "bookie_ACTIVE_ENTRY_LOG_TOTAL",
        lambda d: d.statistics.storage.entry_logs,
    ),
    gauge(
        "entry_logs_missing",
        "Entry logs that the index refers to but whose files are missing: damage.",
        "",
        lambda d: d.statistics.storage.entry_logs_missing,
    ),
    gauge(
        "entry_logs_stray",
        "Entry logs that were not in the index at a start, kept under another name for an"
        " operator.",
        "",
        lambda d: d.statistics.storage.entry_logs_stray,
    ),
    counter(
        "entry_log_written_bytes",
        "Bytes written to entry logs.",
        "",
        lambda d: d.statistics.storage.entry_log_bytes_written,
    ),
    histogram(
        "garbage_round_seconds",
        "Durations of whole rounds of garbage collection, most of which is waiting.",
        "bookie_gc_THREAD_RUNTIME",
        lambda d: d.statistics.garbage.seconds,
    ),
    counter(
        "ledgers_deleted",
        "Ledgers that were removed here because their metadata was deleted.",
        "bookie_gc_DELETED_LEDGER_TOTAL",
        lambda d: d.statistics.garbage.ledgers_deleted,
    ),
    counter(
        "garbage_questions_failed",
        "Ledgers that were kept because the metadata store did not answer.",
        "",
        lambda d: d.statistics.garbage.asks_failed,
    ),
    counter(
        "entry_logs_removed",
        "Entry logs that were removed.",
        "",
        lambda d: d.statistics.garbage.logs_removed,
    ),
    counter(
        "reclaimed_by_deletion_bytes",
        "Bytes freed by removing entry logs without live ledgers.",
        "bookie_gc_RECLAIMED_DELETION_SPACE_BYTES",
        lambda d: d.statistics.compaction.bytes_reclaimed_by_deletion,
    ),
    counter(
        "reclaimed_by_compaction_bytes",
        "Bytes freed by compaction.",
        "bookie_gc_RECLAIMED_COMPACTION_SPACE_BYTES",
        lambda d: d.statistics.compaction.bytes_reclaimed_by_compaction,
    ),
    counter(
        "minor_compactions",
        "Minor compactions.",
        "bookie_gc_MINOR_COMPACTION_TOTAL",
        lambda d: d.statistics.compaction.minor_compactions,
    ),
    counter(
        "major_compactions",
        "Major compactions.",
        "bookie_gc_MAJOR_COMPACTION_TOTAL",
        lambda d: d.statistics.compaction.major_compactions,
    ),
    counter(
        "compactions_ended_early",
        "Compactions that ended before they were done.",
        "",
        lambda d: d.statistics.compaction.compactions_ended_early,
    ),
    counter(
        "compaction_seconds",
        "Time spent compacting.",
        "bookie_gc_COMPACT_RUNTIME",
        lambda d: d.statistics.compaction.compaction_seconds,
    ),
    gauge(
        "compacting",
        "1 while a compaction runs.",
        "",
        lambda d: d.statistics.compaction.is_compacting,
    ),
    counter(
        "entry_logs_compacted",
        "Entry logs removed because their live entries were moved.",
        "",
        lambda d: d.statistics.compaction.logs_compacted,
    ),
    counter(
        "compaction_moved_bytes",
        "Bytes of entries moved to new logs.",
        "",
        lambda d: d.statistics.compaction.bytes_moved,
    ),
    counter(
        "compaction_moved_entries",
        "Entries moved to new logs.",
        "",
        lambda d: d.statistics.compaction.entries_moved,
    ),
    gauge(
        "entry_logs_set_aside",
        "Damaged entry logs that are not compacted; their undamaged entries are still read.",
        "",
        lambda d: d.statistics.compaction.logs_set_aside,
    ),
    counter(
        "scrubbed_bytes",
        "Bytes of entry logs read to find damage.",
        "",
        lambda d: d.statistics.scrub.bytes_read,
    ),
    counter(
        "scrubbed_logs",
        "Entry logs read to their end to find damage.",
        "",
        lambda d: d.statistics.scrub.logs,
    ),
    counter(
        "scrub_damaged_logs",
        "Entry logs that were found damaged.",
        "",
        lambda d: d.statistics.scrub.damaged_logs,
    ),
    gauge(
        "ledgers_in_limbo",
        "Ledgers that may have lost entries: a missing entry is unknown.",
        "",
        lambda d: d.statistics.limbo.ledgers,
    ),
    counter(
        "limbo_ledgers_repaired",
        "Ledgers whose limbo ended because all their entries are here again.",
        "",
        lambda d: d.statistics.limbo.ledgers_repaired,
    ),
    counter(
        "limbo_entries_copied",
        "Entries fetched from other bookies to end limbo.",
        "",
        lambda d: d.statistics.limbo.entries_copied,
    ),
    gauge(
        "entry_log_bytes",
        "Bytes of all sealed entry logs, when they were last measured.",
        "bookie_gc_ENTRY_LOG_SPACE_BYTES",
        lambda d: d.statistics.compaction.log_bytes,
    ),
    gauge(
        "entry_log_live_bytes",
        "Bytes of them that belong to live ledgers.",
        "bookie_gc_ACTIVE_ENTRY_LOG_SPACE_BYTES",
        lambda d: d.statistics.compaction.live_bytes,
    ),
    gauge(
        "ledger_directory_bytes",
        "Size of the ledger directory's file system.",
        "",
        lambda d: d.space.total_bytes,
    ),
    gauge(
        "ledger_directory_free_bytes",
        "Free bytes of that file system.",
        "",
        lambda d: d.space.free_bytes,
    ),
    gauge(
        "ledger_directory_usage_ratio",
        "Used share of that file system, 0 to 1.",
        "bookie_ledger_dir_<path>_usage",
        lambda d: _usage(d.space.total_bytes, d.space.free_bytes),
    ),
    gauge(
        "ledger_directory_state",
        "State of that file system: 0 enough space, 1 nearly full, 2 full. A full one makes the"
        " whole bookie read-only.",
        "",
        lambda d: d.space.state,
    ),
)
"""Metrics of each ledger directory: label `directory`, from 0 in the order of
`ledger_directories`."""


def _usage(total: int | None, free: int | None) -> float | None:
    return None if not total or free is None else 1 - free / total
