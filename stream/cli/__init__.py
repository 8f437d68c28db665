"""The sub-commands of `ledgerstream` that work on streams. `command` assembles the whole command.

This file stays empty: `python -m stream.cli` imports it first, and must be able to name the extra
to install where cyclopts is missing.
"""
