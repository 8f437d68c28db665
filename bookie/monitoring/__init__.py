"""What operators see of a bookie over HTTP: metrics, health, state.

- http: opens and serves the port.
- http_app: the paths and their replies.
- http_authentication: the user of a request.
- http_audit: state changes and refusals for the audit log.
- autorecovery_http: those of auto-recovery, which act on the cluster.
- http_bodies: the JSON bodies of requests.
- snapshot: the state of a bookie at one moment.
- report: that state as JSON.
- prometheus: metrics as text.
- bookie_metrics: the metrics of the whole bookie.
- security_metrics: those of encryption, authentication and the audit log.
- healing_metrics: those of auto-recovery in its process.
- directory_metrics: the metrics of each journal and ledger directory.
"""
