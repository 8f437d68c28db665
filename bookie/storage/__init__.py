"""The storage of a bookie: whatever was acknowledged is read back with the same bytes.

bookie_storage: all journals and ledger directories of a bookie.
ledger_storage: the storage engine of one ledger directory.
checkpoint_scheduler: when checkpoints are made, and what waits for them.
checkpoint: makes a checkpoint.
ledger_states: the ledger states in memory.
history: entries over which nothing is stored, and where ledgers end.
entry_reader: reads entries.
entry_listing: lists entries.
scrubber: reads entry logs again to find damage.
integrity_state: the record that a directory may lack entries.
metrics: what operators need to know of one directory.
options: options, statistics and failure of ledger directories.
yielding: yields the event loop to threads and tasks.
"""
