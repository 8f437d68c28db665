"""Settings of how a bookie reads, which are fields of `BookieConfig`."""

from __future__ import annotations

from ledger.runtime.config import setting

KIB = 1024
MIB = 1024 * KIB

READ_CACHE_BYTES = setting(
    64 * MIB,
    unit="bytes",
    apache="dbStorage_readAheadCacheMaxSizeMb",
    reason="Entries read ahead from entry logs, of all ledger directories together.",
)
READ_AHEAD_BYTES = setting(
    256 * KIB,
    unit="bytes",
    apache="dbStorage_readAheadCacheBatchBytesSize",
    reason="Read at once after a miss, since readers go on in order; less when so many of them"
    " go on that they would push each other's out of the read cache.",
)
READ_AHEAD_ENTRIES_MAX = setting(
    4096,
    unit="entries",
    apache="dbStorage_readAheadCacheBatchSize",
    reason="And so many at most: each small one costs 40 bytes beside its own.",
)
INDEX_CACHE_BYTES = setting(
    64 * MIB,
    unit="bytes",
    apache="dbStorage_rocksDB_blockCacheSize",
    reason="Parts of the indexes of all ledger directories together. One record stands for a run"
    " of entries: a million ledgers of an entry each have 90 MB of them, others far less.",
)
