"""Checks and rebuilds of a stopped bookie.

bookie: checks everything that a bookie has on its disks.
directory: checks index and entry logs of one directory against each other.
findings: what the files themselves record about lost entries.
index_rebuild: rebuilds an index from entry logs.
"""
