"""Attackers of real bookies: hostile frames, TLS records and HTTP requests, beside neighbours that
must never be affected. `python -m tests.hostile` runs a campaign.

frames, http_requests, tls_session: hostile bytes; attacks: what is sent over one connection;
attacker: a process that attacks; tally: what it counts; bookies: the processes that are attacked;
neighbour: a client that is entitled to what it does; campaign: all of it, and the verdict.
"""
