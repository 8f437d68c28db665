"""Retention: drops old segments, keeps them in the trash, merges small ones, and deletes ledgers.

Must never delete a ledger that a reader, a restore or a commit can still need.

- clock_check.py: whether the janitor's clock can be right
- janitor.py: sweeps a namespace again and again
- ledger_deletion.py: deletes ledgers, a bounded number at a time
- orphans.py: partitions that no stream counts
- paged_ledgers.py: which ledgers the pages of streams name
- partition_sizes.py: `retention_bytes` over all partitions of a stream
- partitioned_trash.py: restores partitioned streams
- policies.py: settings of namespaces, and what a change would drop
- reclaim.py: applies retention to a stream, truncates and deletes streams
- segment_merger.py: when segments of a namespace are merged, in the background
- segment_merging.py: small segments, copied to one ledger
- trash.py: deleted streams, restored or purged
- trash_listing.py: what can be restored, and until when
"""
