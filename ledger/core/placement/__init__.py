"""Which bookies hold a ledger, and how far apart they are.

- `topology`: locations, and a cluster's bookies prepared for choosing among them.
- `ensembles`: spreads an ensemble over failure domains.
- `grading`: how well the ledgers of a cluster keep their placement.
- `policies`: `PlacementPolicy`: chooses, replaces and grades; the order of reads.
"""
