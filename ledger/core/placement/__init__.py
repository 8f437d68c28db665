"""Which bookies hold a ledger, and how far apart they are.

- `topology`: locations, and a cluster's bookies prepared for choosing among them.
- `ensembles`: spreads an ensemble over failure domains.
- `policies`: `PlacementPolicy`: chooses, replaces and grades; the order of reads.
"""
