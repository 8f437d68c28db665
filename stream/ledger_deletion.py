"""Deletes ledgers that nothing names any more, some at a time."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ledger.client import LedgerClient
from ledger.errors import LedgerError, NoSuchLedger

DELETES_AT_ONCE = 16


async def delete_ledgers(client: LedgerClient, ledger_ids: Iterable[int]) -> int:
    """Deletes ledgers, those already gone too; returns how many there still were.

    Raises the first error, when those under way are done.
    """
    waiting = iter(ledger_ids)
    count = 0
    errors: list[LedgerError] = []

    async def take_turns() -> None:
        nonlocal count
        for ledger_id in waiting:
            try:
                await client.delete_ledger(ledger_id)
                count += 1
            except NoSuchLedger:
                pass
            except LedgerError as error:
                errors.append(error)
            if errors:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(DELETES_AT_ONCE):
            nursery.start_soon(take_turns)
    if errors:
        raise errors[0]
    return count
