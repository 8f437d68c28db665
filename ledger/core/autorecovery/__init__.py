"""Decisions of auto-recovery, without I/O, clocks or tasks.

- `adds_in_flight`: which entries were sent to a target and are not acknowledged.
- `audit`: what the metadata of a ledger says about its copies.
- `backlog`: which marked ledger is healed next, and when one that could not be is tried again.
- `bookies`: the state of each bookie, and which are lost for so long that it counts.
- `copy_plan`: which entry is read next from which bookie, to be copied, and why some cannot be.
- `copy_rate`: the bytes per second of all copies, and the bytes in flight of each bookie.
- `plan`: which copies of a ledger are missing, and where they are to be made.
- `rebalance`: which copies move from full bookies to empty ones.
- `work_sharing`: what one of many workers may ask of the metadata store.
"""
