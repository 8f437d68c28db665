"""What an append, a tail, a catch-up costs: real processes, real fsync, CPU counted everywhere.

`python -m benchmarks NAME [options] [--json]`; see docs/performance.md for how to read the results.
"""
