"""Decisions of auto-recovery, without I/O, clocks or tasks.

- `bookies`: the state of each bookie, and which are lost for so long that it counts.
- `plan`: which copies of a ledger are missing, and where they are to be made.
- `backlog`: which marked ledger is healed next, and when one that could not be is tried again.
"""
