"""In which wire version a request is sent."""

from __future__ import annotations

from ledger.wire.messages import AddRequest, BatchReadRequest, ReadRequest, RequestBody


def version_for(body: RequestBody) -> int:
    """Returns the wire version in which a request is sent, unless all are sent over v3."""
    if isinstance(body, ReadRequest):
        # v2 has no request id: the response to a plain read of the same entry would be taken for
        # that of the fencing read, before the fence is durable.
        is_long_poll = body.previous_lac is not None or body.is_piggyback
        return 3 if is_long_poll or body.is_fencing else 2
    if isinstance(body, BatchReadRequest):
        return 2
    if isinstance(body, AddRequest):
        # Nor does v2 distinguish a recovery's add from that of a writer of this client.
        return 3 if body.is_deferred_sync or body.is_recovery else 2
    return 3
