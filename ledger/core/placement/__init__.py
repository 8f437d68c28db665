"""Which bookies hold a ledger.

- `ensembles`: chooses the bookies of an ensemble.
"""
