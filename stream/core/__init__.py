"""Decisions about streams, without I/O: state machines and sums over metadata.

Must never read a clock, a random number or a file: shells pass them in.

- backoff.py: pauses after conflicts on metadata
- merge_check.py: what is copied into a merged ledger
- merge.py: several streams in one order of time
- names.py: names of namespaces, streams and partitions
- position.py: positions of records, and where readers start
- producers.py: idempotent producers
- receipt.py: receipts of durable records
- retention.py: what a policy drops and purges, and why
- routing.py: partitions of keys
- segment_merging.py: which small segments are merged, and the stream afterwards
- sinks.py: batches of ledgers that become segments
- stream_patterns.py: streams selected by name or pattern
- takeover.py: takeover and roll of a stream
- token_bucket.py: the quota of a writer
- trash.py: transitions into the trash and out of it
- units.py: durations and sizes as text
"""
