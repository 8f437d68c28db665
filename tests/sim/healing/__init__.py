"""A cluster that heals itself, under faults: `python -m tests.sim --scenario healing`.

- `run`: one run, drawn from its seed.
- `healers`: the processes of auto-recovery.
- `workload`: what users do, with sizes of ledgers that outlive the faults.
- `faults`: what happens to bookies for long or for good, to the healers, and by operators.
- `oracle`: sees each change of the metadata when it is made.
- `checks`: what must hold when the faults are over.
- `bugs`: bugs to plant, each of which must be found.
"""
