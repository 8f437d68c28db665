"""Changes the id of a bookie in the metadata of all ledgers, and in the marks of those that lack
copies. Which ledgers may be changed is decided in `bookie.core.renaming`.

Reads and changes are paced. Others may change the same ledgers meanwhile: each change compares the
version that was read, and passes are repeated until one finds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from bookie.core.renaming import Hold, held_by, names_bookie, renamed
from ledger.core.metadata import LedgerMetadata
from ledger.errors import FinalError, MetadataConflict, MetadataCorrupt, NoSuchLedger
from ledger.metastore.ledgers import CLIENT_TAG, UPDATE_TRIES_MAX, LedgerStore
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.runtime.concurrency import map_bounded

READS_PER_S_MAX: Final = 2000.0
CHANGES_PER_S_MAX: Final = 500.0
_PER_STEP: Final = 100
_PASSES_MAX: Final = 10
_WAIT_S: Final = 30.0
"""How long a ledger is waited for that is being recovered."""
_LOOK_AGAIN_S: Final = 1.0
_SHOWN_MAX: Final = 5

_log = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]
"""Gets what is counted, how many are done, and of how many."""


class RenameRefused(FinalError):
    """The bookie was not renamed, or not completely."""


class LedgerRename:
    """The ledgers of the rename of `old` to `new`.

    Args:
        has_begun: whether ledgers may name `new` already.
        includes_open: changes also open ledgers whose writers or recovering clients cannot be
            known to be gone; they are fenced.

    The methods raise RenameRefused, MetadataConflict, MetadataUnavailable.
    """

    def __init__(
        self,
        ledgers: LedgerStore,
        marks: UnderreplicationStore,
        old: str,
        new: str,
        *,
        has_begun: bool,
        includes_open: bool,
        on_progress: OnProgress,
    ) -> None:
        self._ledgers = ledgers
        self._marks = marks
        self._old = old
        self._new = new
        self._has_begun = has_begun
        self._includes_open = includes_open
        self._on_progress = on_progress
        self._marked: frozenset[int] = frozenset()

    async def find(self) -> list[int]:
        """Returns the ledgers that name the old id, by a pass over all. Raises RenameRefused if one
        of them may not be changed, also after a while."""
        named: list[int] = []
        held: dict[int, str] = {}
        waited_for: list[int] = []

        async def look(ledger_id: int) -> None:
            is_named, why, is_passing = await self._look_at(ledger_id)
            if is_named:
                named.append(ledger_id)
            if why:
                held[ledger_id] = why
                if is_passing:
                    waited_for.append(ledger_id)

        await self._pass("ledgers read", await self._ledgers.list(), look, READS_PER_S_MAX)
        give_up_s = trio.current_time() + _WAIT_S
        while held and len(waited_for) == len(held) and trio.current_time() < give_up_s:
            await trio.sleep(_LOOK_AGAIN_S)
            again, waited_for[:] = [*held], []
            held.clear()
            named[:] = [one for one in named if one not in again]
            await map_bounded(again, look)
        if held:
            raise self._refused(held)
        return sorted(named)

    async def _look_at(self, ledger_id: int) -> tuple[bool, str, bool]:
        """Returns whether a ledger names the old id, why it may not be changed ("" if it may), and
        whether that may pass within a while."""
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except NoSuchLedger:
            return False, "", False
        except MetadataCorrupt as error:
            return False, f"it may name the bookie, and its metadata cannot be read: {error}", False
        if not self._has_begun and names_bookie(metadata, self._new):
            return (
                False,
                f"it names {self._new}, so there was such a bookie. Cure: take another id, or "
                "wait until auto-recovery has healed the ledger",
                False,
            )
        if not names_bookie(metadata, self._old):
            return False, "", False
        hold = await self._hold_of(metadata)
        if hold is None:
            return True, "", False
        # What appears while the rename is in progress was chosen by a client before it knew that
        # the bookie is down, and will be replaced by it.
        return True, hold.value, self._has_begun or hold is Hold.IN_RECOVERY

    async def _hold_of(self, metadata: LedgerMetadata) -> Hold | None:
        hold = held_by(
            metadata,
            self._old,
            names_writer=CLIENT_TAG in metadata.custom,
            is_writer_alive=await self._ledgers.is_writer_alive(metadata),
        )
        if self._includes_open and hold in (Hold.IN_RECOVERY, Hold.WRITER_UNKNOWN):
            return None
        return hold

    def _refused(self, held: dict[int, str]) -> RenameRefused:
        shown = "; ".join(f"ledger {one}: {held[one]}" for one in sorted(held)[:_SHOWN_MAX])
        more = f"; and {len(held) - _SHOWN_MAX} more ledgers" if len(held) > _SHOWN_MAX else ""
        state = (
            f"the rename of bookie {self._old} to {self._new} is not complete, repeat the command"
            if self._has_begun
            else f"bookie {self._old} is not renamed, nothing was changed"
        )
        return RenameRefused(f"{state}: {shown}{more}")

    async def change(self, named: list[int]) -> int:
        """Changes the ledgers that were found, and those that are found later, until a pass finds
        none; then the marks. Returns how many ledgers were changed."""
        self._has_begun = True
        changed: set[int] = set()

        async def change(ledger_id: int) -> None:
            if await self._change(ledger_id):
                changed.add(ledger_id)

        for _ in range(_PASSES_MAX):
            self._marked = frozenset(await self._marks.list())
            await self._pass("ledgers changed", named, change, CHANGES_PER_S_MAX)
            named = await self.find()
            if not named:
                await self._change_marks()
                return len(changed)
        raise RenameRefused(
            f"{len(named)} ledgers still name bookie {self._old} after {_PASSES_MAX} passes: "
            "others change them. Cure: stop what changes them, and repeat the command"
        )

    async def _change(self, ledger_id: int) -> bool:
        if ledger_id in self._marked:
            await self._add_to_mark(ledger_id)
        for _ in range(UPDATE_TRIES_MAX):
            try:
                metadata, version = await self._ledgers.read(ledger_id)
                if not names_bookie(metadata, self._old):
                    return False
                if await self._hold_of(metadata) is not None:
                    return False  # the next pass waits for it
                await self._ledgers.compare_and_put(
                    renamed(metadata, self._old, self._new), version
                )
            except MetadataConflict:
                continue
            except NoSuchLedger:
                return False
            return True
        raise MetadataConflict(
            f"ledger {ledger_id}: others changed the metadata first {UPDATE_TRIES_MAX} times"
        )

    async def _pass(
        self,
        what: str,
        ids: Sequence[int],
        work: Callable[[int], Awaitable[None]],
        per_s_max: float,
    ) -> None:
        begun_s = trio.current_time()
        for begin in range(0, len(ids), _PER_STEP):
            step = ids[begin : begin + _PER_STEP]
            await map_bounded(step, work)
            done = begin + len(step)
            self._on_progress(what, done, len(ids))
            await trio.sleep_until(begun_s + done / per_s_max)

    async def _add_to_mark(self, ledger_id: int) -> None:
        """Has a mark that names the old id name the new one as well. That comes before the change
        of the metadata: a worker must not find in between that nothing is missing."""
        try:
            mark = await self._marks.read(ledger_id)
            if mark is not None and self._old in mark.replicas:
                await self._marks.mark(ledger_id, [self._new])
        except MetadataCorrupt as error:
            _log.warning("mark not changed ledger=%d cause=%s", ledger_id, error)

    async def _change_marks(self) -> None:
        """Changes marks that were made since, by clients that knew the old id only."""
        marked = await self._marks.list()
        await self._pass("marks read", marked, self._add_to_mark, CHANGES_PER_S_MAX)
