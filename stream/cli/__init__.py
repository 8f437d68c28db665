"""The sub-commands of `ledgerstream` that work on streams.

command.py: assembles the whole command; arguments.py parses streams and positions.
records.py: append, with inputs.py (records of an input) and appending.py (what is durable).
reading.py: read and tail, with selection.py (which records) and record_text.py (as text or JSON).
namespaces.py, settings.py: namespaces and their policies.
streams.py, trash.py, verify.py, repair.py: streams as a whole; their trash; copies; ends.
connecting.py: connects to a namespace, and explains names that do not exist.
status.py, health.py: the verdict about a cluster.
cursors.py, groups.py, sinks.py: stored positions, consumer groups, committed batches of sinks.
retention.py, janitor.py: what retention drops and why; applying it.
permissions.py: who may do what, and why; audit.py: who has changed what.
canary.py, bench.py: continuous checks; benchmarks.

This file imports nothing: `python -m stream.cli` imports it first, and must be able to name the
extra to install where cyclopts is missing.
"""
