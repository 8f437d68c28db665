"""The options of the connector: their table, the parsing of their values, and typed results.

options.py has ReadOptions and WriteOptions, security.py how the cluster is reached, table.py every
option with its meaning, and values.py the parsers of single values.
"""
