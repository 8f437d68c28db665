"""The metrics of encryption, authentication and the audit log of a bookie."""

from __future__ import annotations

from typing import Final

from bookie.core.metrics import Metric, counter, gauge
from bookie.monitoring.snapshot import Snapshot

SECURITY: Final[tuple[Metric[Snapshot], ...]] = (
    gauge(
        "tls_certificate_expires_seconds",
        "When the bookie's certificate expires, in seconds since 1970; 0 without TLS.",
        "",
        lambda b: b.server.tls.certificate_expires_at_s,
    ),
    counter(
        "tls_handshakes",
        "Connections that were encrypted.",
        "",
        lambda b: b.server.tls.handshakes,
    ),
    counter(
        "tls_handshakes_failed",
        "Handshakes of TLS that failed or took longer than `tls_handshake_ms_max`.",
        "",
        lambda b: b.server.tls.handshakes_failed,
    ),
    counter(
        "tls_refused_in_clear",
        "Connections with a request that was refused because it was not encrypted.",
        "",
        lambda b: b.server.tls.refused_in_clear,
    ),
    counter(
        "tls_reloads_failed",
        "Times that changed certificates could not be loaded, so that the old ones stay.",
        "",
        lambda b: b.server.tls.reloads_failed,
    ),
    counter(
        "authentications",
        "Peers that proved who they are.",
        "",
        lambda b: b.server.authentications,
    ),
    counter(
        "authentications_failed",
        "Attempts with a wrong password, token or certificate; the log has the reasons.",
        "",
        lambda b: b.server.authentications_failed,
    ),
    counter(
        "authentications_unseen",
        "Attempts refused without a look, because the peer had failed too often before.",
        "",
        lambda b: b.server.authentications_unseen,
    ),
    counter(
        "sessions_ended",
        "Connections closed because the password, token or certificate that they rested on was"
        " changed, deleted, or has expired.",
        "",
        lambda b: b.server.sessions_ended,
    ),
    counter("audit_lines", "Lines written to the audit log.", "", lambda b: b.audit.written),
    counter(
        "audit_lines_lost",
        "Lines that are not in the audit log, because its file could not be written in time.",
        "",
        lambda b: b.audit.lost,
    ),
    counter(
        "audit_lines_left_out",
        "Refusals without a line of their own, because the peer had too many before.",
        "",
        lambda b: b.audit.left_out,
    ),
)
