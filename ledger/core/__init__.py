"""Decisions about ledgers, without I/O, clocks or tasks: writing, reading, recovery.

- `availability`: which entries a bookie holds, should hold, and lacks.
- `audit`: a line of an audit log.
- `authentication`: what a client says to prove who it is, and what a bookie believes.
- `autorecovery`: what copies a ledger lacks, and how they are made.
- `append`: which bookies must acknowledge an entry, and what is confirmed.
- `bookie_backoff`: when a writer may use a bookie again that failed.
- `copies`: the verdict on the copies of an entry.
- `entry`: the bytes of an entry and of a LAC packet, with their digests.
- `lac_hints`: which bookies get the last add confirmed by itself, and when.
- `ledger_claims`: whether the id of a new ledger is free at its bookies.
- `ledger_keys`: passwords that are derived from the secret of the cluster.
- `metadata`: the metadata of a ledger, and the changes it may undergo.
- `metadata_format`: the stored bytes of the metadata.
- `placement`: chooses the bookies of an ensemble, by racks, regions or zones too.
- `quorum`: arithmetic of write sets and quorums.
- `reading`: which replica is asked, and what its answer proves.
- `receipts`: which bookies acknowledged a watched entry, and when.
- `recovery`, `recovery_adds`, `recovery_claims`, `recovery_events`: finds the end of a ledger and
  closes it.
- `repair`: where a ledger ends that was closed at a wrong end.
- `times`: milliseconds as ISO 8601 and back.
- `steady_clock`: a wall clock that does not believe a jump at once.
"""
