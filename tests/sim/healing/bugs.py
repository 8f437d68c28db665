"""Bugs to plant in auto-recovery, so that its simulation itself is tested.

They are put in by patching product classes; the product knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from ledger.autorecovery import worker as worker_module
from ledger.autorecovery.worker import ReplicationWorker
from ledger.core.autorecovery import plan as plan_module
from ledger.core.autorecovery.plan import Move, Plan, with_moved_copy
from ledger.core.availability import fixed_part
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore.base import ANY_VERSION
from ledger.metastore.underreplication import Mark, UnderreplicationStore

Plant = Callable[[ExitStack], None]


def _careless_move(
    stored: LedgerMetadata, first_entry_id: int, old: str, new: str
) -> LedgerMetadata:
    """Changes any fragment, whatever its ensemble."""
    fragments = tuple(
        Fragment(one.first_entry_id, tuple(new if b == old else b for b in one.bookies))
        if one.first_entry_id == first_entry_id
        else one
        for one in stored.fragments
    )
    return replace(stored, fragments=fragments)


def _copied_before_closed(stack: ExitStack) -> None:
    """The last fragment of an open ledger counts as closed after the entries that it has now."""
    ends: dict[int, int] = {}
    heal_some = ReplicationWorker._heal_some
    plan = plan_module.plan

    def closed(metadata: LedgerMetadata) -> LedgerMetadata:
        if metadata.is_closed or metadata.ledger_id not in ends:
            return fixed_part(metadata)
        end = max(ends[metadata.ledger_id], metadata.last_fragment.first_entry_id - 1)
        return replace(metadata, state=LedgerState.CLOSED, last_entry_id=end)

    async def hasty(self: ReplicationWorker, mark: Mark) -> int | None:
        metadata = await self._client.ledger_metadata(mark.ledger_id)
        if not metadata.is_closed:
            reader = await self._client.open_ledger(
                mark.ledger_id, password=metadata.password, recover=False
            )
            ends[mark.ledger_id] = reader.last_add_confirmed
            await reader.aclose()
        return await heal_some(self, mark)

    def planned(metadata: LedgerMetadata, *rest: Any) -> Plan:
        return plan(closed(metadata), *rest)

    _replace(stack, ReplicationWorker, "_heal_some", hasty)
    _replace(stack, worker_module, "fixed_part", closed)
    _replace(stack, worker_module, "plan", planned)
    _replace(stack, worker_module, "with_moved_copy", _careless_move)


def _last_fragment_replaced(stack: ExitStack) -> None:
    """The last fragment of an open ledger gets other bookies, as if it had no entries."""
    plan = plan_module.plan

    def planned(metadata: LedgerMetadata, *rest: Any) -> Plan:
        return plan(fixed_part(metadata), *rest)

    _replace(stack, worker_module, "plan", planned)
    _replace(stack, worker_module, "with_moved_copy", _careless_move)


def _counted_twice(stack: ExitStack) -> None:
    """A copy moves to a bookie that returned, and is in the ensemble already."""
    plan = plan_module.plan

    def planned(metadata: LedgerMetadata, *rest: Any) -> Plan:
        found = plan(metadata, *rest)
        for number, move in enumerate(found.moves):
            others = [b for b in metadata.fragments[move.number].bookies if b != move.old]
            if others:
                found.moves[number] = replace(move, new=others[0])
        return found

    _replace(stack, worker_module, "plan", planned)
    _replace(stack, worker_module, "with_moved_copy", _careless_move)


def _deleted_replicated(stack: ExitStack) -> None:
    """The mark of a deleted ledger stays for the next look."""

    async def faithful(self: ReplicationWorker, ledger_id: int) -> None:
        self.statistics.ledgers_deleted += 1
        self.backlog.healed(ledger_id)

    _replace(stack, ReplicationWorker, "_deleted", faithful)


def _named_before_copied(stack: ExitStack) -> None:
    """Metadata names the new bookie, which gets its copy afterwards."""
    move_copy = ReplicationWorker._move

    async def eager(self: ReplicationWorker, fixed: LedgerMetadata, move: Move, holds: Any) -> bool:
        await self._client.ledgers.update(
            fixed.ledger_id,
            lambda stored: with_moved_copy(stored, move.first_entry_id, move.old, move.new),
        )
        await move_copy(self, fixed, move, holds)
        return False

    _replace(stack, ReplicationWorker, "_move", eager)


def _unmarked_blindly(stack: ExitStack) -> None:
    """A mark is deleted although another process has added to it."""
    unmark = UnderreplicationStore.unmark

    async def blind(self: UnderreplicationStore, mark: Mark, **settings: Any) -> bool:
        return await unmark(self, replace(mark, version=ANY_VERSION), **settings)

    _replace(stack, UnderreplicationStore, "unmark", blind)


def _moved_in_part(stack: ExitStack) -> None:
    """Metadata names the new bookie although some entries could not be copied."""
    move_copy = ReplicationWorker._move

    async def careless(
        self: ReplicationWorker, fixed: LedgerMetadata, move: Move, holds: list[Any]
    ) -> bool:
        before = len(holds)
        return await move_copy(self, fixed, move, holds) or len(holds) > before

    _replace(stack, ReplicationWorker, "_move", careless)


def _loss_forgotten(stack: ExitStack) -> None:
    """A copy that was stopped, because its bookie returned, counts as healed."""
    heal_some = ReplicationWorker._heal_some

    async def content(self: ReplicationWorker, mark: Mark) -> int | None:
        stopped = self.statistics.copies_stopped
        version = await heal_some(self, mark)
        if version is None and self.statistics.copies_stopped > stopped:
            _, version = await self._client.ledgers.read(mark.ledger_id)
        return version

    _replace(stack, ReplicationWorker, "_heal_some", content)


BUGS: dict[str, Plant] = {
    "copied-before-closed": _copied_before_closed,
    "copy-counted-twice": _counted_twice,
    "deleted-ledger-replicated": _deleted_replicated,
    "last-fragment-replaced": _last_fragment_replaced,
    "mark-deleted-blindly": _unmarked_blindly,
    "moved-in-part": _moved_in_part,
    "named-before-copied": _named_before_copied,
    "stopped-copy-counts": _loss_forgotten,
}


@contextmanager
def bug_planted(name: str | None) -> Iterator[None]:
    """The product with the bug `name`, or as it is."""
    with ExitStack() as stack:
        if name is not None:
            BUGS[name](stack)
        yield


def _replace(stack: ExitStack, owner: object, attribute: str, new: object) -> None:
    stack.enter_context(mock.patch.object(owner, attribute, new))
