"""The checks before a bookie serves.

- preflight: locks the directories and listens.
- cookies: detects emptied and foreign disks.
- power_loss: detects acknowledged entries that were never synced.
- offline: locks and checks a stopped bookie, for tools.
"""
