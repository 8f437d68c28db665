"""Measures appends, tails and catch-up reads: real processes, real fsync, CPU of all processes.

`python -m benchmarks NAME [options] [--json]`; docs/performance.md explains the results.
"""
