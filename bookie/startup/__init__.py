"""The checks before a bookie serves.

- preflight: locks the directories and listens.
- descriptors: raises the limit of open files, and divides it.
- cookies: detects emptied and foreign disks.
- directory_layout: reads which ledgers are in each directory.
- directory_repair: repairs a damaged ledger directory.
- change_directories: changes the list of ledger directories of a stopped bookie.
- rename, rename_ledgers: gives a stopped bookie another id, in its directories and the metadata.
- power_loss: detects acknowledged entries that were never synced.
- start_count: detects directories that were put back to an older state.
- restored_metadata: detects metadata that was put back to an older state.
- offline: locks and checks a stopped bookie, for tools.
"""
