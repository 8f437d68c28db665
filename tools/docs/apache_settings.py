"""Settings of Apache's bookie that ours has none of, and why: for docs/configuration.md.

Whoever adds a setting with one of these names takes it out here; a test asks for that.
"""

from __future__ import annotations

ONE_LOOP = "One loop serves all connections; there are no pools of workers to size."
RESERVE = "What the engine needs to go on is computed, and kept free beside `disk_reserved_bytes`."
ONE_STORAGE = "There is one kind of storage, with one kind of entry log."

WITHOUT: dict[str, str] = {
    "numAddWorkerThreads": ONE_LOOP,
    "numReadWorkerThreads": ONE_LOOP,
    "numHighPriorityWorkerThreads": ONE_LOOP,
    "numLongPollWorkerThreads": ONE_LOOP,
    "numJournalCallbackThreads": "Acknowledgements of a group are sent in one go by the loop.",
    "maxPendingAddRequestsPerThread": "Adds wait in no queue of requests: bytes of the journal's"
    " queue are bounded (`journal_queue_bytes_max`).",
    "maxAddsInProgressLimit": "`journal_queue_bytes_max` bounds what adds cost: bytes.",
    "readWorkerThreadsThrottlingEnabled": "Always so: a peer that does not take its replies is not"
    " read.",
    "serverWriteBufferLowWaterMark": "Fixed: 16 MiB of replies per connection.",
    "serverWriteBufferHighWaterMark": "Fixed: 16 MiB of replies per connection.",
    "maxBatchReadSize": "`frame_bytes_max` bounds it.",
    "journalQueueSize": "Bounded by bytes instead: `journal_queue_bytes_max`.",
    "journalAdaptiveGroupWrites": "Always so: while one group is synced the next one gathers.",
    "journalWriteData": "Without a journal nothing could be acknowledged; with"
    " `journal_sync_data = false` it costs little.",
    "journalPreAllocSizeMB": "A journal file is allocated whole, before it is needed.",
    "journalWriteBufferSizeKB": "Nothing is copied into a buffer: what was received is written.",
    "journalAlignmentSize": "Fixed: 4096 bytes; part of the format.",
    "skipReplayJournalInvalidRecord": "A damaged journal stops the start; a torn end does not.",
    "ledgerStorageClass": ONE_STORAGE,
    "skipListSizeLimit": ONE_STORAGE,
    "pageLimit": ONE_STORAGE,
    "openFileLimit": "Fixed: 200 entry logs are kept open per ledger directory.",
    "entryLogPerLedgerEnabled": ONE_STORAGE,
    "entryLogFilePreallocationEnabled": "Entry logs are written in large pieces, in order.",
    "dbStorage_directIOEntryLogger": "Entry logs leave the page cache as soon as they are synced.",
    "indexDirectories": "The index lies beside its entry logs.",
    "verifyMetadataOnGC": "Always so: a ledger is deleted only if its own key is asked for.",
    "gcOverreplicatedLedgerWaitTime": "What this bookie holds beyond the metadata's ensembles is"
    " kept until the ledger is deleted.",
    "isThrottleByBytes": "Both rates hold; the default bounds bytes.",
    "compactionMaxOutstandingRequests": "A compaction has one slice under way.",
    "useTransactionalCompaction": "Always so: a crash in a compaction leaves the old log in use.",
    "entryLocationCompactionInterval": "RocksDB compacts by itself.",
    "forceAllowCompaction": "A forced collection goes on although compaction is suspended.",
    "readOnlyModeEnabled": "Always so: a bookie on a full disk serves reads.",
    "readOnlyModeOnAnyDiskFullEnabled": "Always so: a ledger's directory follows from its id, so"
    " all are needed.",
    "persistBookieStatusEnabled": "The state follows from the disks; to stay read-only over a start"
    " a bookie has `force_read_only`.",
    "isForceGCAllowWhenNoSpace": "Always so: garbage is collected above all when there is no"
    " space.",
    "minUsableSizeForHighPriorityWrites": RESERVE,
    "minUsableSizeForIndexFileCreation": RESERVE,
    "localScrubInterval": "The scrubber reads all the time, at `scrub_bytes_per_s`.",
    "dataIntegrityChecking": "Always: see [limbo](operations.md#limbo).",
    "httpServerEnabled": "`http_port` 0 is off.",
    "prometheusStatsHttpPort": "Metrics are at `/metrics` of `http_port`.",
    "statsProviderClass": "Metrics are Prometheus's.",
    "enableStatistics": "Counting costs nothing that could be switched off.",
}


def apache_names(setting: str) -> list[str]:
    """The names in a setting's `apache` text."""
    return [name.strip() for name in setting.replace("/", ",").split(",") if name.strip()]


def table() -> str:
    lines = ["| In Apache BookKeeper | Why there is none |\n|---|---|\n"]
    lines += [f"| `{name}` | {WITHOUT[name]} |\n" for name in sorted(WITHOUT, key=str.lower)]
    return "".join(lines)
