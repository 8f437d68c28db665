"""Partitioned streams: several streams under one name.

- partitions.py: created, grown, measured, truncated and deleted as one
- writer.py: routes records to the partitions
- writers.py: the writers of the partitions, opened on demand
"""
