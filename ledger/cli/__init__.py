"""The parts of the command line that all packages share, and `ledgerstream ledger`.

The library imports nothing from here. Sub-commands are imported by name when they are called, so
importing this package must import nothing else.

- `autorecovery`: the sub-command `ledgerstream autorecovery`; `autorecovery_run`: its `run`.
- `contexts`, `context_commands`: saved addresses of clusters; `ledgerstream context`.
- `http_client`: requests to the HTTP servers of bookies.
- `ledgers`: the sub-command `ledgerstream ledger`.
- `lines`: records and entries as lines of a file or of stdin.
- `metadata`: the sub-command `ledgerstream metadata`.
- `output`: where the cluster is, and how results and errors are printed.
- `placement`: the sub-command `ledgerstream ledger check`.
- `security`: the sub-command `ledgerstream security`; `security_check`: its `check`.
- `standard_streams`: stdin, stdout and stderr, which may be closed, full, or not UTF-8.
- `supervised`: for processes that must end with the one that started them.
- `tables`: tables for terminals and pipes.
- `users`: the sub-command `ledgerstream user`.
"""
