"""Connections to bookies: one request and its response, acks of adds, authentication.

- `addresses`: the host and port of a bookie.
- `authentication`: the AUTH exchange at the beginning of a connection.
- `authorization`: why bookies refuse a client, and the cure.
- `connection`: one connection, from connecting to its first failure.
- `mechanisms`: SCRAM, DIGEST-MD5 and tokens, from the credentials in the options.
- `pending_calls`: requests that wait for their responses.
- `pool`: all connections of a client, with back-off after failures.
- `responses`: dispatches what a connection receives.
"""
