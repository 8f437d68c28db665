"""The files that hold the entries, sorted by ledger.

entry_logs: appends, rolls, reads and removes entry logs.
scan: scans the records of a log.
startup_scan: the logs that a start finds, misses, or does not know.
"""
