"""A thousand bookies in one process: what a large cluster costs, and how fast it heals.

`python -m benchmarks.scale` writes docs/scale.md. The decisions are those of the product:
placement, `core.autorecovery` (who is lost, what an audit concludes, the plan of a ledger, the
order of work, the shares of workers), and the legal changes of metadata. Bookies hold counts
instead of bytes, and time passes as events say.

- `settings`: the cluster, rates and chances that are assumed.
- `cluster`: bookies, ledgers and their metadata.
- `costs`: what each step asks of the metadata store, in requests, and who sent how many when.
- `events`: the clock.
- `writers`: open ledgers whose writers replace a bookie.
- `workers`: replication workers.
- `healing`: one loss from its beginning until all copies are there again.
- `durability`: the chance that a ledger loses all copies.
- `tree`: nodes, bytes and lists of the metadata store.
- `scenarios`: which losses are simulated, and what is kept of each.
- `document`, `plots`: docs/scale.md.
"""
