"""Measures how much of each sealed entry log the index needs, and whether that can be relied on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from bookie.core.compaction import LogUse
from bookie.storage.entry_log.entry_logs import EntryLogs
from bookie.storage.garbage.compaction_index import CompactionIndex, LiveBytes
from bookie.storage.index.index import Index
from bookie.storage.yielding import yield_to_tasks
from ledger.errors import BookieIoError

LEDGERS_PER_STEP = 500


@dataclass(slots=True)
class LogUsage:
    """Logs whose usage is known, and those that are needed but cannot be opened."""

    uses: list[LogUse] = field(default_factory=list)
    unopened: dict[int, str] = field(default_factory=dict)


async def measure_log_usage(
    sealed: Sequence[int],
    index: Index,
    places: CompactionIndex,
    logs: EntryLogs,
    *,
    on_step: Callable[[], None],
) -> LogUsage:
    """Reads the index once, in short steps. A ledger with damaged records there may need any log it
    has entries in: such logs are left out.

    The logs are sealed, so what nothing points into now, nothing ever will. Raises BookieIoError if
    the index cannot be read, and what `on_step` raises.
    """
    live = LiveBytes()
    for _ in places.count_live_bytes(live):
        on_step()
        await yield_to_tasks()
    survey = LogUsage()
    for log_id in sealed:
        if live.damaged_ledgers and await _may_hold(log_id, live.damaged_ledgers, index):
            continue
        needed = live.by_log.get(log_id, 0)
        try:
            survey.uses.append(LogUse(log_id, await logs.size(log_id), needed))
        except OSError as error:
            if needed:
                survey.unopened[log_id] = f"it cannot be opened: {error}"
            else:
                survey.uses.append(LogUse(log_id, 0, 0))
    return survey


async def is_removable(log_id: int, index: Index, logs: EntryLogs) -> bool:
    """Returns whether a log that the index does not need may be removed. One whose ledgers are not
    all known may not, unless an operator removed its file."""
    if not index.is_log_kept(log_id):
        return True
    try:
        await logs.size(log_id)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


async def _may_hold(log_id: int, ledgers: dict[int, None], index: Index) -> bool:
    try:
        every = index.log_ledger_ids(log_id)
        while step := list(islice(every, LEDGERS_PER_STEP)):
            if any(ledger_id in ledgers for ledger_id in step):
                return True
            await yield_to_tasks()
    except BookieIoError:
        return True
    return False
