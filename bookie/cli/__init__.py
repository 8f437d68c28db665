"""The commands `ledgerstream bookie` and `ledgerstream standalone`.

- bookie: the commands of a bookie, and those that ask running bookies.
- check: checks and repairs the directories of a stopped bookie.
- directories: changes the list of its ledger directories.
- inspect: prints the content of a bookie's files.
"""
