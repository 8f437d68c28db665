"""A bookie that is to be emptied: accepts no new entries while its copies are made elsewhere.

The node of its decommission decides (`ledger.metastore.decommissions`). While it exists, the bookie
is registered as read-only and refuses ordinary adds as with a full disk, so that busy writers
replace it at once. Some time later it ends the idle connections of writers, once: those look for
another bookie when their connection breaks. Reads and fences continue as before.

Adds of recovery are taken for ledgers that the bookie knows, and refused for others. A recovery
fences a ledger at each bookie of its ensemble before it adds, so it finds the ledger known here. It
may have no other bookie for its last entries, and would fail for as long as the decommission takes;
the few entries that it adds are moved with the ledger, once it is closed. A worker that makes a new
copy has chosen this bookie itself, and chooses another one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import trio

from bookie.disk_monitor import DiskMonitor
from ledger.errors import RetryableError
from ledger.metastore.base import MetadataStore
from ledger.metastore.decommissions import Decommissions

_log = logging.getLogger(__name__)

LEAVE_AFTER_S: Final = 10.0
"""Busy writers have replaced the bookie by then."""
_RETRY_S: Final = 1.0


class Draining:
    """Watches whether one bookie is to be emptied. `run` runs as long as the bookie."""

    def __init__(self, store: MetadataStore, disk_monitor: DiskMonitor) -> None:
        self._decommissions = Decommissions(store)
        self._disk_monitor = disk_monitor

    async def run(
        self,
        bookie_id: str,
        leave_idle_writers: Callable[[], Awaitable[int]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Runs until cancelled; `task_status` is set when it is known for the first time whether
        the bookie is to be emptied."""
        is_known = False
        async with trio.open_nursery() as nursery:
            leaving = trio.CancelScope()

            async def leave(scope: trio.CancelScope) -> None:
                with scope:
                    await trio.sleep(LEAVE_AFTER_S)
                    count = await leave_idle_writers()
                    _log.info("idle writers left bookie=%s connections=%d", bookie_id, count)

            while True:
                try:
                    async with aclosing(self._decommissions.watch_begun(bookie_id)) as states:
                        async for is_begun in states:
                            if is_begun is not self._disk_monitor.is_emptying:
                                self._set(bookie_id, is_begun)
                                leaving.cancel()
                                if is_begun:
                                    leaving = trio.CancelScope()
                                    nursery.start_soon(leave, leaving)
                            if not is_known:
                                is_known = True
                                task_status.started()
                except RetryableError as error:
                    _log.info("decommission unknown bookie=%s cause=%s", bookie_id, error)
                await trio.sleep(_RETRY_S)

    def _set(self, bookie_id: str, is_begun: bool) -> None:
        self._disk_monitor.set_emptying(is_begun)
        if is_begun:
            _log.warning(
                "decommission begun bookie=%s: it takes no new entries. Cure: if that is not "
                "wanted, cancel the decommission",
                bookie_id,
            )
        else:
            _log.info("decommission ended bookie=%s", bookie_id)
