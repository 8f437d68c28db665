"""A whole cluster on one machine (`ledgerstream standalone`).

- cluster: the layout of its directory, and its processes.
- forks: forks the processes to begin with, which share the memory of their imports.
- supervisor: keeps a child process running.
- zookeeper_server: finds and describes a ZooKeeper server.
- zookeeper_process: runs that server as a child.
"""

BOOKIES_MAX = 64
"""Bookies of one such cluster."""
