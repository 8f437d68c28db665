"""The decisions of the source and the sink, without I/O, clock or Spark.

offsets.py defines the offsets in Spark's checkpoint, admission.py divides the limits of a
micro-batch, planner.py cuts ranges into tasks, entry_index.py finds records in a segment,
filters.py derives bounds from the filters of a query, and cluster_access.py names a cluster and its
files for all of them.
"""
