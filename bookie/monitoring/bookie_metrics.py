"""The metrics of a bookie and its journals; `directory_metrics` has those of its directories.

`bookie.monitoring.prometheus` exports the tables, and docs/metrics.md is generated from them. The
numbers are read from plain statistics on request; no code here may run on a hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie.core.metrics import Kind, Metric, Number, counter, gauge, histogram
from bookie.monitoring.security_metrics import SECURITY
from bookie.monitoring.snapshot import JournalDirectory, Snapshot
from bookie.storage.journal.metrics import JournalStatistics

PREFIX: Final = "ledgerstream_bookie_"


def _journal(read: Callable[[JournalStatistics], Number]) -> Callable[[JournalDirectory], Number]:
    return lambda journal: read(journal.statistics)


BOOKIE: Final[tuple[Metric[Snapshot], ...]] = (
    gauge(
        "server_status",
        "1: takes adds; 0: read-only; -1: not registered.",
        "bookie_SERVER_STATUS",
        lambda b: b.status,
    ),
    gauge(
        "emptying",
        "1: the bookie is being decommissioned, its copies are moved away; 0: it is not.",
        "",
        lambda b: b.is_emptying,
    ),
    gauge(
        "copies_unneeded",
        "Copies of closed ledgers whose metadata names other bookies, that were found and are still"
        " here.",
        "",
        lambda b: b.copies_unneeded,
    ),
    counter(
        "copies_removed",
        "Such copies that were removed.",
        "",
        lambda b: b.over_replication.copies_removed,
    ),
    counter(
        "copies_asked",
        "Ledgers whose metadata was read to find such copies.",
        "",
        lambda b: b.over_replication.ledgers_asked,
    ),
    counter(
        "copies_asks_failed",
        "Of these, ledgers that were kept because metadata or index could not be read.",
        "",
        lambda b: b.over_replication.asks_failed,
    ),
    counter(
        "copies_kept",
        "Times that such a copy was kept because its ledger is being copied, lacks copies, or"
        " changed meanwhile.",
        "",
        lambda b: (
            b.over_replication.copies_locked
            + b.over_replication.copies_lacking
            + b.over_replication.copies_changed
        ),
    ),
    counter(
        "copies_passes",
        "Passes over all ledgers that looked for such copies.",
        "",
        lambda b: b.over_replication_passes,
    ),
    gauge("uptime_seconds", "Since the process began to start.", "", lambda b: b.started_s_ago),
    counter(
        "adds",
        "Entries accepted; each is acknowledged when it is durable.",
        "bookkeeper_server_ADD_ENTRY_count, bookie_BOOKIE_ADD_ENTRY_count",
        lambda b: b.server.requests.adds,
    ),
    counter(
        "add_bytes",
        "Bytes of the frames of accepted entries.",
        "bookie_WRITE_BYTES",
        lambda b: b.server.requests.add_bytes,
    ),
    counter(
        "reads",
        "Entries returned to readers.",
        "bookkeeper_server_READ_ENTRY_count, bookie_BOOKIE_READ_ENTRY_count",
        lambda b: b.server.requests.reads,
    ),
    counter(
        "read_bytes",
        "Bytes of these entries.",
        "bookie_READ_BYTES",
        lambda b: b.server.requests.read_bytes,
    ),
    counter("read_batches", "Batch reads answered.", "", lambda b: b.server.requests.read_batches),
    Metric(
        "requests_total",
        Kind.COUNTER,
        "Requests that were answered, with any status; an add that is not refused is counted"
        " when it is accepted. A read that fences is a `fence`, one that names the LAC it knows"
        " a `long_poll`.",
        "bookkeeper_server_READ_ENTRY_FENCE_REQUEST, READ_ENTRY_LONG_POLL_REQUEST,"
        " WRITE_LAC_REQUEST, READ_LAC_REQUEST, FORCE_LEDGER_REQUEST, GET_BOOKIE_INFO_REQUEST,"
        " GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST",
        lambda b: {(operation,): n for operation, n in b.server.requests.answered.items()},
        ("operation",),
    ),
    Metric(
        "refused_total",
        Kind.COUNTER,
        "Requests that were answered with another status than OK; `no_such_entry` is normal at"
        " the end of a ledger, `io_error` never.",
        "bookkeeper_server_ADD_ENTRY, READ_ENTRY (success=false)",
        lambda b: b.server.requests.refused,
        ("operation", "status"),
    ),
    Metric(
        "waits_total",
        Kind.COUNTER,
        "How often a connection was not read for a while, by what it waited for: the write"
        " cache, the journal, replies that the peer does not take, reads that wait for a disk,"
        " memory for frames.",
        "bookkeeper_server_ADD_ENTRY_BLOCKED, READ_ENTRY_BLOCKED",
        lambda b: {(wait.value,): count for wait, count in b.server.requests.waits.items()},
        ("reason",),
    ),
    gauge(
        "reads_waiting",
        "Requests that wait for a disk now, in all ledger directories; limit: `reads_waiting_max`.",
        "bookkeeper_server_READ_ENTRY_IN_PROGRESS",
        lambda b: b.server.reads_waiting,
    ),
    histogram(
        "read_wait_seconds",
        "Durations of requests that needed a disk, from the request on; `_count` is their number.",
        "bookkeeper_server_READ_ENTRY_REQUEST, bookkeeper_server_BookieReadThreadPool_total_tasks",
        lambda b: b.server.reads_waited_seconds,
    ),
    histogram(
        "read_work_seconds",
        "Durations of the same requests from their turn on; the difference to"
        " `read_wait_seconds` is the time in the queue.",
        "bookie_read_entry",
        lambda b: b.server.reads_worked_seconds,
    ),
    gauge(
        "long_polls",
        "Tailing reads that wait for a newer LAC now; limit: `long_polls_max`.",
        "",
        lambda b: b.server.long_polls,
    ),
    gauge(
        "held_add_bytes",
        "Adds that were received and wait for capacity in write cache or journal.",
        "bookkeeper_server_BookieWriteThreadPool_queue",
        lambda b: b.server.held_add_bytes,
    ),
    gauge(
        "reply_bytes",
        "Replies that peers have not taken yet; limit: `replies_bytes_max`.",
        "",
        lambda b: b.server.reply_bytes,
    ),
    counter(
        "peers_dropped",
        "Connections closed because the peer sent no request within `first_request_wait_ms_max`, or"
        " no rest of a frame within `frame_wait_ms_max`, or took no replies within"
        " `reply_wait_ms_max`, or sooner while memory for frames or replies is short.",
        "",
        lambda b: b.server.peers_dropped,
    ),
    Metric(
        "reads_queued",
        Kind.GAUGE,
        "Requests in the queue of each ledger directory, without those in progress; limit:"
        " `reads_waiting_per_directory_max`.",
        "bookkeeper_server_BookieReadThreadPool_queue",
        lambda b: {
            (str(number),): count
            for number, count in enumerate(b.server.reads_waiting_by_directory)
        },
        ("directory",),
    ),
    gauge("connections", "Open now.", "", lambda b: b.server.connections),
    gauge(
        "tasks",
        "Tasks of the process: a few of its own, and some of each connection while it is open.",
        "",
        lambda b: b.tasks,
    ),
    counter(
        "connections_accepted", "Connections accepted.", "", lambda b: b.server.connections_accepted
    ),
    counter(
        "connections_refused",
        "Connections refused because of `connections_max` or `connections_per_peer_max`.",
        "",
        lambda b: b.server.connections_refused,
    ),
    counter(
        "connections_replaced",
        "Connections closed for a newer one, because they had sent no valid request, or were idle.",
        "",
        lambda b: b.server.connections_replaced,
    ),
    gauge(
        "connections_unproven",
        "Connections over which no valid request has come yet.",
        "",
        lambda b: b.server.connections_unproven,
    ),
    gauge(
        "receive_buffer_bytes",
        "Receive buffers, beyond 64 KiB of each connection; limit: `receive_bytes_max`.",
        "",
        lambda b: b.server.receive_bytes,
    ),
    counter(
        "protocol_errors",
        "Connections closed because the peer broke the protocol.",
        "",
        lambda b: b.server.protocol_errors,
    ),
    *SECURITY,
    counter(
        "chunks",
        "Pieces received; adds divided by chunks shows how well clients batch.",
        "",
        lambda b: b.server.chunks,
    ),
    counter(
        "garbage_rounds_put_off",
        "Rounds of garbage collection that were aborted because the metadata was unavailable.",
        "",
        lambda b: b.collections_put_off,
    ),
    gauge(
        "journal_sync_data",
        "1: adds are acknowledged after their sync; 0: from the page cache.",
        "",
        lambda b: b.syncs_data,
    ),
    gauge(
        "ledger_directories",
        "Ledger directories of this bookie.",
        "bookie_ledger_num_dirs",
        lambda b: len(b.directories),
    ),
)
"""Metrics of the whole bookie."""

JOURNAL: Final[tuple[Metric[JournalDirectory], ...]] = (
    gauge(
        "journal_queue_bytes",
        "Bytes of frames that are not durable yet.",
        "bookie_journal_JOURNAL_MEMORY_USED",
        _journal(lambda j: j.queued_bytes),
    ),
    gauge(
        "journal_queue_entries",
        "Frames that are not durable yet: the adds in progress.",
        "bookie_journal_JOURNAL_QUEUE_SIZE, bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
        _journal(lambda j: j.queued_entries),
    ),
    histogram(
        "journal_add_seconds",
        "Time from the first frame of a group to its acknowledgement: the latency of adds in"
        " the bookie, once per group.",
        "bookie_journal_JOURNAL_ADD_ENTRY, bookkeeper_server_ADD_ENTRY_REQUEST",
        _journal(lambda j: j.add_seconds),
    ),
    histogram(
        "journal_sync_seconds",
        "Durations of one write and its sync.",
        "bookie_journal_JOURNAL_SYNC, JOURNAL_FLUSH_LATENCY",
        _journal(lambda j: j.sync_seconds),
    ),
    histogram(
        "journal_group_entries",
        "Frames that share one write and one sync.",
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES",
        _journal(lambda j: j.group_entries),
    ),
    histogram(
        "journal_group_bytes",
        "Bytes of a group with header and padding.",
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES",
        _journal(lambda j: j.group_bytes),
    ),
    Metric(
        "journal_flushes_total",
        Kind.COUNTER,
        "Groups by the trigger of their write.",
        "bookie_journal_JOURNAL_NUM_FLUSH_MAX_WAIT, _MAX_OUTSTANDING_BYTES, _EMPTY_QUEUE",
        lambda j: {(why.value,): count for why, count in j.statistics.flushes.items()},
        ("trigger",),
    ),
    counter(
        "journal_entries",
        "Frames made durable: adds, fences, explicit LACs.",
        "bookie_journal_JOURNAL_ADD_ENTRY_count",
        _journal(lambda j: j.entries),
    ),
    counter(
        "journal_written_bytes",
        "Bytes written, with headers and padding.",
        "bookie_journal_JOURNAL_WRITE_BYTES",
        _journal(lambda j: j.bytes),
    ),
    counter(
        "journal_syncs",
        "Syncs of journal files, those at the start of a file included.",
        "bookie_journal_JOURNAL_SYNC_count",
        _journal(lambda j: j.syncs),
    ),
    counter(
        "journal_late_groups",
        "Groups acknowledged before their sync (`journal_sync_data = false`).",
        "",
        _journal(lambda j: j.late_groups),
    ),
    counter(
        "journal_loop_groups",
        "Groups written and synced in the event loop (`journal_loop_write_ms_max`).",
        "",
        _journal(lambda j: j.loop_groups),
    ),
    gauge(
        "journal_unsynced_bytes",
        "Bytes that were written but not synced: a power loss could lose them.",
        "",
        _journal(lambda j: j.unsynced_bytes),
    ),
    counter("journal_rolls", "Journal files that were full.", "", _journal(lambda j: j.rolls)),
    histogram(
        "journal_file_creation_seconds",
        "Time that a group waited for the next journal file.",
        "bookie_journal_JOURNAL_CREATION_LATENCY",
        _journal(lambda j: j.file_creation_seconds),
    ),
    gauge(
        "journal_directory_bytes",
        "Size of the journal directory's file system.",
        "",
        lambda j: j.space.total_bytes,
    ),
    gauge(
        "journal_directory_free_bytes",
        "Free bytes of that file system.",
        "",
        lambda j: j.space.free_bytes,
    ),
    gauge(
        "journal_directory_state",
        "State of that file system: 0 enough space, 1 nearly full, 2 full. A full one makes the"
        " whole bookie read-only.",
        "",
        lambda j: j.space.state,
    ),
)
"""Metrics of each journal: label `journal`, from 0 in the order of `journal_directories`."""
