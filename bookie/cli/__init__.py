"""The commands `ledgerstream bookie` and `ledgerstream standalone`.

- bookie: the commands of a bookie, and those that ask running bookies.
- check: checks and repairs the directories of a stopped bookie.
- inspect: prints the content of a bookie's files.
"""
