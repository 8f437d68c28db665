"""The replies to adds that one journal commit made durable, in one piece."""

from __future__ import annotations

from bookie.core.adds import Run
from ledger.wire import v2

_ACK = v2.ADD_REPLY.pack
_RANGE_ACK = v2.RANGE_ACK.pack


def encode_acks(runs: list[Run], as_ranges: bool) -> bytes:
    """One ack for each entry of `runs`, or for each range of entries. `runs` is not empty."""
    if as_ranges:
        return _encode_range_acks(runs)
    header = v2.ADD_HEADER
    return b"".join(
        [
            _ACK(24, header, 0, state.ledger_id, entry_id)
            for state, first, last in runs
            for entry_id in range(first, last + 1)
        ]
    )


def _encode_range_acks(runs: list[Run]) -> bytes:
    """Neighbouring runs of one ledger become one range ack (docs/wire.md)."""
    header = v2.RANGE_ACK_HEADER
    out: list[bytes] = []
    state, first, last = runs[0]
    for next_state, next_first, next_last in runs[1:]:
        if next_state is state and next_first == last + 1:
            last = next_last
            continue
        out.append(_RANGE_ACK(32, header, 0, state.ledger_id, first, last))
        state, first, last = next_state, next_first, next_last
    out.append(_RANGE_ACK(32, header, 0, state.ledger_id, first, last))
    return b"".join(out)
