"""The connection of a process to its clusters, shared by Spark's tasks.

client_cache.py caches one client per cluster, security.py finds its files and its credentials,
lazy_store.py opens the metadata store on first use, and quickack.py removes a delay of the kernel
at the start of a task.
"""
