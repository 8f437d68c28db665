"""Replay: the journal's frames after the mark, back into write cache and ledger states.

Frames may be replayed twice, and of deleted ledgers; both must do no harm.
"""

from __future__ import annotations

import struct

from bookie.core.caches import WriteCache
from bookie.core.journal_frames import ExplicitLacFrame, FenceFrame, decode_frame
from bookie.core.ledger_state import LedgerState
from bookie.storage.ledger_states import LedgerStates

_add_of = struct.Struct(">8x20sqqq").unpack_from


def replay_frame(frame: memoryview, cache: WriteCache, states: LedgerStates) -> None:
    """Raises FrameCorrupt or InvalidArgument for what is no frame: the bookie must not start."""
    own = decode_frame(frame)
    if own is not None:
        state = _state_of(states, own.ledger_id, own.master_key)
        if not state.is_deleted:
            _replay_own(own, state)
            states.changed(state)
        return
    master_key, ledger_id, _, lac = _add_of(frame)
    state = _state_of(states, ledger_id, master_key)
    if not state.is_deleted:
        cache.put_frame(frame)
        state.advance_lac(lac)


def _replay_own(own: FenceFrame | ExplicitLacFrame, state: LedgerState) -> None:
    match own:
        case FenceFrame():
            state.fence()
            state.is_fence_durable = True
        case ExplicitLacFrame():
            state.set_explicit_lac(own.lac, own.packet)


def _state_of(states: LedgerStates, ledger_id: int, master_key: bytes) -> LedgerState:
    return states.get(ledger_id) or states.create(ledger_id, master_key)
