"""Systems that `rate` and `idle` measure in the same way: ours and its peers.

system.py says what a system is, and runs its processes; programs.py finds the programs of peers,
and fetches them into `.peers` (`make peers`); drivers.py is what every client in Python does at the
orders of a benchmark. Then a module per system, with its servers and its client: ledgerstream.py,
redis.py, nats.py, kafka.py and bookkeeper.py, whose client is BookKeeperDriver.java.

Each has three servers, except Redis, and syncs before it acknowledges. Clients in Python speak the
protocols of Redis and NATS themselves, so that no library's cost is counted for the peer.
"""
