"""Frees the space of deleted ledgers.

collector: rounds of garbage collection.
compactor: moves live entries out of mostly dead logs.
compaction_index: what compaction reads and moves in the index.
compaction_log: the entry log that takes what compaction keeps.
copy_removal: removes entries of ledgers whose copies are elsewhere.
log_usage: how much of each log is needed.
"""
