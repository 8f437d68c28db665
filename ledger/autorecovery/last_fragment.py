"""The last fragment of an open ledger: recovery ends it, and never while its writer is alive."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ledger.client import LedgerClient
from ledger.core.autorecovery.plan import Hold
from ledger.core.metadata import LedgerMetadata

_log = logging.getLogger(__name__)
_WRITER_PAUSE_S = 2.0
"""Busy writers are gone at once, idle ones after a while."""
_LEFT = "it is open: its last fragment is left to its writer for a while"


async def end_ledger(
    client: LedgerClient,
    metadata: LedgerMetadata,
    version: int,
    *,
    is_unsafe: bool,
    grace_s: float,
    held_since_s: Callable[[str], float | None],
    holds: list[Hold],
) -> bool:
    """Recovers an open ledger whose writer does not complete its last fragment; returns whether it
    did. While the writer is known to be alive it is never recovered.

    Raises MetadataConflict if the metadata, which names the writer, changed since it was read.

    Args:
        version: of the metadata.
        is_unsafe: the fragment names bookies that are lost or being emptied.
        grace_s: how long it is left to a writer that is not known to be alive, in seconds.
        held_since_s: returns since when the ledger is held for a reason.
        holds: gets the reason why it is not recovered now.
    """
    ledgers, ledger_id = client.ledgers, metadata.ledger_id
    if await ledgers.is_writer_alive(metadata):
        if is_unsafe:
            what = "which is alive, replaces the bookie by itself"
            reason = f"it is open, and its writer, {what}"
            holds.append(Hold(reason, first_pause_s=_WRITER_PAUSE_S))
        return False  # the writer records what the end lacks when it leaves it
    if not is_unsafe and not await ledgers.is_writer_gone(metadata):
        return False
    now_s = trio.current_time()
    left_s = grace_s - (now_s - (held_since_s(_LEFT) or now_s))
    if left_s > 0:
        holds.append(Hold(_LEFT, retry_s=left_s))
        return False
    _log.info("recovering ledger=%d cause=its writer is gone", ledger_id)
    if metadata.in_recovery() is not metadata:
        # At this version, because another client may have begun to write a reserved ledger.
        await ledgers.compare_and_put(metadata.in_recovery(), version)
    opened = client.open_ledger(ledger_id, password=metadata.password, recover=True)
    await (await opened).aclose()
    return True
