"""Sinks: batches of closed ledgers become segments of streams, exactly once.

- commit.py: the transaction that commits one batch
- sinks.py: the calls: commit, look up, discard
"""
