"""Notices that the metadata store was put back to an older state, before the bookie registers.

The sign is a ledger on the bookie's disks that is not in the metadata, with an id that the store
has yet to generate. Whatever the metadata shows then, such ledgers were created by a history that
the store has forgotten: they are recorded as a restore (`ledger.metastore.restores`), which keeps
them from garbage collection and the ids from being generated again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from ledger.errors import InvalidArgument, LedgerError
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.restores import Restore, RestoreLog, is_protected

_log = logging.getLogger(__name__)

_SKIPPED_MAX = 1_000_000
"""Ids further behind the counter were chosen by clients, not generated: the counter stays."""
_CHOSEN_MAX = 1000
"""Of those, as many at most are recorded, one by one: a node of ZooKeeper has 1 MB."""


async def _exists(ledgers: LedgerStore, ledger_id: int) -> bool:
    try:
        return await ledgers.exists(ledger_id)
    except InvalidArgument:  # the layout has no place for it: a client stored entries blindly
        return False


async def record_restore(
    ledger_ids: Callable[[int], Iterator[int]],
    ledgers: LedgerStore,
    restores: RestoreLog,
    *,
    bookie_id: str,
    now_ms: int,
) -> int:
    """Records a restore if there was one; returns how many unknown ledgers this bookie holds.

    Args:
        ledger_ids: returns the ids of the ledgers on the disks from an id on, ascending.

    Raises MetadataUnavailable; then nobody knows, and the bookie may not register.
    """
    if next(ledger_ids(0), None) is None:
        return 0
    counter = await ledgers.next_ledger_id()
    generated, chosen = await _unknown(ledger_ids(counter), counter, ledgers)
    known = await restores.read()
    # The document has no room for more; those beyond are collected as if nobody had put it back.
    news = [each for each in chosen if not is_protected(known, each)]
    ranges = [(each, each + 1) for each in news[: max(0, _CHOSEN_MAX - len(known))]]
    if generated:
        ranges.insert(0, (counter, generated[-1] + 1))
    await restores.add(*(Restore(first, end, now_ms, bookie_id) for first, end in ranges))
    if generated:
        await ledgers.next_ledger_id(beyond=generated[-1])
    unknown = generated + chosen
    if unknown:
        _log.error(
            "metadata was put back to an older state bookie=%s ledgers_unknown_to_it=%d first=%d "
            "last=%d: they are kept, and their ids are not used again. Cure: see "
            "`ledgerstream metadata restores`",
            bookie_id, len(unknown), unknown[0], unknown[-1],
        )  # fmt: skip
    return len(unknown)


async def _unknown(
    found: Iterator[int], counter: int, ledgers: LedgerStore
) -> tuple[list[int], list[int]]:
    """Returns the ids up to the last one that the metadata does not list and may have generated,
    and those that clients chose, at most _CHOSEN_MAX of them. Few are looked up, because clients
    can fill a bookie with ledgers that are in no metadata."""
    generated: list[int] = []
    chosen: list[int] = []
    for each in found:
        if each - counter < _SKIPPED_MAX:
            generated.append(each)
        elif not await _exists(ledgers, each):
            chosen.append(each)
            if len(chosen) >= _CHOSEN_MAX:
                break
    while generated and await _exists(ledgers, generated[-1]):
        generated.pop()
    return generated, chosen


class UnbornIds:
    """Which ids have yet to be generated, for garbage collection: of a ledger that is not in the
    metadata, and was in none before, no more need be remembered than if it had never been seen.

    Asking the counter takes an id of it. So that is done once per round at most, and only about
    ids above all that are known to have been generated.
    """

    def __init__(self, ledgers: LedgerStore) -> None:
        self._ledgers = ledgers
        self._generated = -1
        """An id that is known to have been generated."""
        self._counter: int | None = None
        """What the counter said in this round; -1 if it could not be asked."""

    def begin_round(self) -> None:
        """Has the counter asked again if need be."""
        self._counter = None

    def note_existing(self, ledger_id: int) -> None:
        """Notes a ledger that is in the metadata. One far ahead has an id that a client chose."""
        if self._generated < ledger_id < self._generated + _SKIPPED_MAX:
            self._generated = ledger_id

    async def contain(self, ledger_id: int) -> bool:
        """Returns whether the id is one that has yet to be generated. False if that is unknown,
        and for ids so far ahead that a client chose them."""
        if ledger_id <= self._generated:
            return False
        if self._counter is None:
            try:
                self._counter = self._generated = await self._ledgers.next_ledger_id()
            except LedgerError:
                self._counter = -1
        return self._counter >= 0 and 0 < ledger_id - self._counter < _SKIPPED_MAX
