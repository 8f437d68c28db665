"""Writing ledgers: sending entries to an ensemble, and replacing bookies that fail.

- `creator`: creates ledgers, and chooses their bookies.
- `ensemble_change`: replaces failed bookies, one change at a time per ledger.
- `ensemble_sender`: the base of the writer: connections, unconfirmed frames, acks.
- `explicit_lac`: the last add confirmed, where no add carries it.
- `force`: syncs entries that were acknowledged before they were synced.
- `frames`: the frames of adds, their heads and payloads.
- `idle_replacement`: the ensembles of idle writers that lost a bookie.
- `overload_retry`: sends adds again that an overloaded bookie refused.
- `receipts`: which bookies acknowledged one entry.
- `send_loop`: the tasks that serve all writers of a client.
- `trailing_acks`: the last acks of a ledger that is being closed.
- `writer`: `LedgerWriter`, the public class.
"""
