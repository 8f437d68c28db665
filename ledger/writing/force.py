"""Forces bookies to sync the entries that they acknowledged. Shell of `AppendCore.forced`.

Asks all working bookies of the present ensemble, as Apache's client does, and counts only those
that answer. It advances the last add confirmed of a writer with deferred sync, and nothing else. A
bookie must be forced over the connection on which it acknowledged: over another one it might be a
process that started after a crash, and does not know what the first one never synced.
"""

from __future__ import annotations

from typing import Protocol

import trio

from ledger.connection.connection import BookieConnection
from ledger.core.append import AppendCore
from ledger.core.metadata import LedgerMetadata
from ledger.errors import (
    BookieUnavailable,
    LedgerError,
    NotEnoughBookies,
    Status,
    error_of_status,
)
from ledger.wire.messages import ForceLedgerRequest
from ledger.writing.send_loop import SendLoop

_LOOK_AGAIN_S = 0.25


class ForcedWriter(Protocol):
    """The writer, as seen from here."""

    metadata: LedgerMetadata
    ledger_id: int
    error: LedgerError | None
    core: AppendCore
    connections: list[BookieConnection | None]

    def confirmed_moved(self) -> None: ...


async def force(writer: ForcedWriter, loop: SendLoop) -> None:
    """Returns when every entry acknowledged before the call is synced on its ack quorum.

    Raises NotEnoughBookies if that is not reached within the ensemble change timeout. Returns
    early if the writer fails meanwhile, which the caller checks.
    """
    core = writer.core
    target = core.last_add_acknowledged
    give_up_at = trio.current_time() + loop.options.ensemble_change_timeout_s
    is_durable = core.is_sync_deferred and core.last_add_confirmed >= target
    while not is_durable and writer.error is None:
        fragment, marks = writer.metadata.last_fragment, core.marks()
        asked = {i: b for i, b in enumerate(fragment.bookies) if i not in core.failed}
        errors = await _ask(writer, asked, loop)
        if writer.metadata.last_fragment != fragment:
            # The ensemble was changed, and entries acknowledged before were forced for that.
            is_durable = core.is_sync_deferred and core.last_add_confirmed >= target
            continue
        before = core.last_add_confirmed
        durable = core.forced(marks, [i for i in asked if i not in errors])
        if core.is_sync_deferred:
            is_durable = durable >= target
        else:
            # Entries were acknowledged as synced: this checks that the bookies can sync.
            is_durable = not errors and core.can_continue_without_failed()
        if core.last_add_confirmed > before:
            writer.confirmed_moved()
        if not is_durable and trio.current_time() >= give_up_at:
            said = "; ".join(f"{asked[i]}: {error}" for i, error in errors.items())
            raise NotEnoughBookies(
                f"ledger {writer.ledger_id}: entries after {core.last_add_confirmed} are not "
                f"synced on {core.ack_quorum} bookies each: {len(asked) - len(errors)} of "
                f"{core.ensemble_size} were forced in "
                f"{loop.options.ensemble_change_timeout_s:g} s ({said})"
            )
        if not is_durable:
            await trio.sleep(_LOOK_AGAIN_S)


async def _ask(
    writer: ForcedWriter, asked: dict[int, str], loop: SendLoop
) -> dict[int, LedgerError]:
    """Forces the bookies; returns the errors of those that failed, by index."""
    errors: dict[int, LedgerError] = {}
    request = ForceLedgerRequest(writer.ledger_id)
    timeout_s = loop.options.add_timeout_s

    async def ask(index: int, bookie: str, connection: BookieConnection | None) -> None:
        try:
            if not writer.core.is_sync_deferred:
                # What it acknowledged is durable, whichever process acknowledged it.
                answer = await loop.pool.call(bookie, request, timeout_s=timeout_s)
            elif connection is not None:
                answer = await connection.call(request, timeout_s)
            else:
                raise BookieUnavailable(f"bookie {bookie} was lost")
        except LedgerError as error:
            errors[index] = error
            return
        if answer.status is not Status.OK:
            errors[index] = error_of_status(answer.status, f"force at {bookie}")

    async with trio.open_nursery() as nursery:
        for index, bookie in asked.items():
            nursery.start_soon(ask, index, bookie, writer.connections[index])
    return errors
