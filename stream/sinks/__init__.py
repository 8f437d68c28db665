"""Sinks: batches of closed ledgers become segments of streams, exactly once.

- commit.py: the transaction that commits one batch
- prepared.py: what saves a commit requests to the metadata store
- sinks.py: the calls: commit, look up, discard
"""
