"""The command ledgerstream, as people and programs meet it: output, errors, exit codes, cost."""
