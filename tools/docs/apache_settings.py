"""Settings of Apache's bookie without a counterpart, with reasons, for docs/configuration.md.

A setting that gets a counterpart must be removed here; a test checks this.
"""

from __future__ import annotations

ONE_LOOP = "One loop serves all connections; there are no pools of workers to size."
RESERVE = "The engine computes its reserve, and keeps it free besides `disk_reserved_bytes`."
ONE_STORAGE = "There is one kind of storage, with one kind of entry log."

WITHOUT: dict[str, str] = {
    "numAddWorkerThreads": ONE_LOOP,
    "numReadWorkerThreads": ONE_LOOP,
    "numHighPriorityWorkerThreads": ONE_LOOP,
    "numLongPollWorkerThreads": ONE_LOOP,
    "numJournalCallbackThreads": "The loop sends the acknowledgements of a group together.",
    "maxPendingAddRequestsPerThread": "There is no queue of add requests; the bytes of the"
    " journal's queue are bounded (`journal_queue_bytes_max`).",
    "maxAddsInProgressLimit": "`journal_queue_bytes_max` bounds the bytes of adds instead.",
    "readWorkerThreadsThrottlingEnabled": "Always on: requests of a peer that does not read its"
    " responses are not read.",
    "serverWriteBufferLowWaterMark": "Fixed: 16 MiB of responses per connection.",
    "serverWriteBufferHighWaterMark": "Fixed: 16 MiB of responses per connection.",
    "maxBatchReadSize": "`frame_bytes_max` bounds it.",
    "journalQueueSize": "Bounded by bytes instead: `journal_queue_bytes_max`.",
    "journalAdaptiveGroupWrites": "Always on: the next group gathers while one is synced.",
    "journalWriteData": "Without a journal nothing could be acknowledged; with"
    " `journal_sync_data = false` it costs little.",
    "journalPreAllocSizeMB": "A whole journal file is allocated before it is needed.",
    "journalWriteBufferSizeKB": "Received bytes are written directly, without a copy.",
    "journalAlignmentSize": "Fixed: 4096 bytes, a part of the format.",
    "skipReplayJournalInvalidRecord": "A damaged journal prevents the start; a torn end does not.",
    "ledgerStorageClass": ONE_STORAGE,
    "skipListSizeLimit": ONE_STORAGE,
    "pageLimit": ONE_STORAGE,
    "openFileLimit": "Fixed: 200 entry logs are kept open per ledger directory.",
    "entryLogPerLedgerEnabled": ONE_STORAGE,
    "entryLogFilePreallocationEnabled": "Entry logs are written in large pieces, in order.",
    "dbStorage_directIOEntryLogger": "Entry logs leave the page cache as soon as they are synced.",
    "indexDirectories": "The index is stored in the directory of its entry logs.",
    "verifyMetadataOnGC": "Always on: before a ledger is deleted, its own key is checked.",
    "isThrottleByBytes": "Both limits apply; the default bounds bytes.",
    "compactionMaxOutstandingRequests": "A compaction has one slice in flight.",
    "useTransactionalCompaction": "Always on: after a crash in a compaction the old log is used.",
    "entryLocationCompactionInterval": "RocksDB compacts by itself.",
    "forceAllowCompaction": "A forced collection runs even while compaction is suspended.",
    "readOnlyModeEnabled": "Always on: a bookie on a full disk serves reads.",
    "readOnlyModeOnAnyDiskFullEnabled": "Always on: a ledger's directory follows from its id, so"
    " that all directories are needed.",
    "persistBookieStatusEnabled": "The state follows from the disks; `force_read_only` keeps a"
    " bookie read-only after a restart.",
    "isForceGCAllowWhenNoSpace": "Always on: garbage is collected above all when there is no"
    " space.",
    "minUsableSizeForHighPriorityWrites": RESERVE,
    "minUsableSizeForIndexFileCreation": RESERVE,
    "localScrubInterval": "The scrubber reads continuously, at `scrub_bytes_per_s`.",
    "dataIntegrityChecking": "Always on: see [limbo](operations.md#limbo).",
    "httpServerEnabled": "`http_port` 0 is off.",
    "prometheusStatsHttpPort": "Metrics are at `/metrics` of `http_port`.",
    "statsProviderClass": "Metrics have the format of Prometheus.",
    "enableStatistics": "Counters are always on; their cost is negligible.",
}


def apache_names(setting: str) -> list[str]:
    """Returns the names in a setting's `apache` text."""
    return [name.strip() for name in setting.replace("/", ",").split(",") if name.strip()]


def table() -> str:
    lines = ["| In Apache BookKeeper | Why there is none |\n|---|---|\n"]
    lines += [f"| `{name}` | {WITHOUT[name]} |\n" for name in sorted(WITHOUT, key=str.lower)]
    return "".join(lines)
