"""Where entries are stored, and the states of ledgers.

index: the records of runs, states, logs and tombstones.
index_changes: changes by anything but a checkpoint.
key_value: the interface to the store, a sorted map of bytes.
rocksdb: that store on RocksDB.
"""
