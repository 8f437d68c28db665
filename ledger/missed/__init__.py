"""What bookies missed: which ledgers lack entries where, recorded for replication workers.

A bookie that was paused or killed for seconds misses entries that others acknowledged. Writers and
recoveries know which, and record it here; nothing is searched for (docs/adr/0033).

- `copies`: records marks in the background, and waits for doubts to end when the client closes
- `recovered`: asks the bookies of a recovered ledger which entries they hold
"""
