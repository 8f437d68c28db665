"""The command line's shared parts (`output`) and the sub-command `ledgerstream ledger`.

Nothing here is imported by the library. Sub-commands are loaded by name when they are called, so
this package stays empty.
"""
