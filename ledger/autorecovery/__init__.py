"""Auto-recovery: finds ledgers that lack copies, and makes them. Decisions: `core.autorecovery`.

- `auditor`: one process of the cluster finds ledgers that lack copies, and marks them.
- `cluster_view`: the bookies of the cluster, followed by watches.
- `copier`: copies entries of ledgers to one bookie, within limits that all copies share.
- `decommissioning`: what a decommission would do, how far it is, and what holds it up.
- `last_fragment`: recovers an open ledger whose writer is gone.
- `missing_entries`: asks bookies which entries they lack.
- `ledger_copy`, `copy_reads`: one copy of entries of one ledger, and the reads of its sources.
- `options`: the settings.
- `published`: what auto-recovery publishes about itself.
- `rebalancing`: moves copies from full bookies to empty ones.
- `service`: all of it in one process.
- `worker`: heals marked ledgers.
- `worker_share`: what one worker asks of the metadata store, among all of them.
"""
