"""The decisions of a bookie, without I/O, clocks or chance: pure objects that the shells call.

adds: takes ADD frames from a received chunk into the write cache.
audit_rate: how many refusals of a peer the audit log has.
buffer_pool: reuses receive buffers.
caches: the write cache and the read cache.
capacity: flags that say whether a bookie can take more.
compaction: which entry logs to rewrite, when, and how fast.
directories: which ledger directory a ledger is in, when the list has changed.
descriptors: how many connections and files may be open.
disk_space: how full the disks are, and what is therefore accepted.
duty_cycle: how long background work runs and pauses.
entry_log: the layout of entry logs.
failed_attempts: how long a peer waits that has failed to authenticate.
fair_queue: takes items of many owners in turn.
garbage: which entry logs and tombstones may be removed.
integrity: the report of a check, and what can be verified of an entry.
integrity_state: the record that an index may lack entries.
journal: the layout of journal files and groups, and when to commit and sync.
journal_frames: the frames in a journal group.
journal_scan: reads journal files, and distinguishes a torn tail from damage.
ledger_state: the key, fence, limbo and LAC of a ledger.
loop_writes: whether a journal writes a group in the event loop.
long_polls: the deadlines of parked long polls.
marks: the mark file, and the map from ledgers to journals and directories.
metrics: metrics and histograms.
peers: which connections are accepted, and which are ended.
renaming: which ledgers may name a bookie by another id.
read_ahead: how much is read ahead, and what is read again.
sessions: how long a connection stays that of its user.
"""
