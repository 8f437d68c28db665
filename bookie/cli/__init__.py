"""The commands `ledgerstream bookie` and `ledgerstream standalone`.

- bookie: the commands of a bookie, and those that ask running bookies.
- check: checks and repairs the directories of a stopped bookie.
- decommission: empties a bookie, or replaces it by another one.
- directories: changes the list of its ledger directories.
- inspect, inspect_commands: prints the content of a bookie's files, and its commands.
- ledger_counts: counts the ledgers and fragments that name each bookie.
- locations: records where bookies are.
- rebalance: moves copies from full bookies to empty ones.
- rename: gives a stopped bookie another id.
- standalone: runs a cluster on this machine.
"""
