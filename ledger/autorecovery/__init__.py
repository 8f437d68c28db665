"""Auto-recovery: finds ledgers that lack copies, and makes them. Decisions: `core.autorecovery`.

- `auditor`: one process of the cluster finds ledgers that lack copies, and marks them.
- `cluster_view`: the bookies of the cluster, followed by watches.
- `held_entries`: asks bookies which entries they lack.
- `options`: the settings.
- `service`: all of it in one process, and what it publishes about itself.
- `worker`: heals marked ledgers.
"""
