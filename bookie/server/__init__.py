"""The bookie's server: connections, requests and replies over BookKeeper's wire protocol.

- server: accepts connections and counts them.
- connection: one peer; receives, dispatches and replies.
- ended_connections: frees what connections leave behind.
- peer_watch: ends connections that hold what others need.
- receive_memory: memory of receive buffers, over all connections.
- identity: what the peer of one connection has to encrypt and to prove.
- authentication: the mechanisms, delays after failures, and counts of one bookie.
- auth_session: who the peer of one connection is, by AUTH or its certificate.
- users: the users of the cluster, as the bookie knows them.
- sessions: ends connections with what they rest on.
- tokens: which user a token proves.
- add_intake: adds from the receive buffer to write cache and journal, and their acks.
- throttled_adds: adds that wait for capacity.
- backpressure: limits over all connections.
- audit: who did what, for the audit log.
- access: whether the peer may do what it requests.
- requests: carries out requests other than reads.
- reads: carries out reads.
- key_check: which keys make a ledger known, in a cluster with a secret.
- read_scheduler: shares the disks among the reads of all connections.
- long_polls: tailing reads that wait for an entry.
- deferred_replies: replies that wait for the journal.
- send_queue: replies that wait for a peer.
- error_replies: the reply to each error.
- internal_errors: exceptions that mean a bug, and their log lines.
- request_metrics: counters of requests.
"""
