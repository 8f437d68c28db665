"""Reading ledgers: opening them, fetching entries from replicas, following an open ledger.

- `last_confirmed`: what a reader knows of the last add confirmed; long polls.
- `opener`: opens a ledger, recovers it first if asked to.
- `quorum_lac`: finds entries that are confirmed although the writer did not announce it.
- `read_ahead`: fetches a range of entries ahead of its consumer.
- `reader`: `LedgerReader`, the public class.
- `replica_call`: one request that is sent to replicas in turn, without a task.
- `replica_fetch`: fetches entries from whichever replica returns them.
- `tail`: iterates over entries as they are confirmed.
"""
