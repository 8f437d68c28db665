"""The bookies of the cluster as auto-recovery sees them, followed by watches.

Nothing is asked while nothing changes. After a change of a registration, a cookie or a decommission
all of them are read once, a moment later, so that a restart of many bookies is one look.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio

from ledger.autorecovery.options import AutoRecoveryOptions
from ledger.core.autorecovery.bookies import Bookies, BookieState, LostBookies
from ledger.core.placement.topology import Candidates
from ledger.errors import MetadataUnavailable
from ledger.metastore.base import MetadataStore
from ledger.metastore.bookies import BookieRegistry
from ledger.metastore.decommissions import PATH, Decommission, Decommissions
from ledger.metastore.underreplication import UnderreplicationStore

T = TypeVar("T")

_SETTLE_S = 0.2
_RETRY_S = 1.0


class ClusterView:
    """The bookies of a cluster. `run` follows them; `bookies` is the newest view."""

    def __init__(
        self,
        store: MetadataStore,
        registry: BookieRegistry,
        marks: UnderreplicationStore,
        options: AutoRecoveryOptions,
    ) -> None:
        self._store = store
        self._registry = registry
        self._marks = marks
        self._options = options
        self._decommissions = Decommissions(store)
        self._lost = LostBookies(options.lost_bookie_recovery_delay_s)
        self._moved = trio.Event()
        self._disabled = trio.lowlevel.ParkingLot()
        self._known: list[str] = []
        self._listeners: list[Callable[[set[str]], None]] = []
        self._wanted: list[Callable[[], None]] = []
        self.bookies = Bookies(writable=())
        self.candidates = Candidates({})
        """The bookies that accept new entries, and where they are."""
        self.emptying: dict[str, Decommission] = {}
        """The decommissions that are not completed, by bookie."""
        self.is_enabled = False
        self.is_known = False
        """Whether the bookies were read at least once."""

    @property
    def lost(self) -> list[str]:
        """The bookies with a cookie that are lost, sorted."""
        return sorted(one for one in self._known if self.bookies.state_of(one) is BookieState.LOST)

    def on_change(self, listener: Callable[[set[str]], None]) -> None:
        """Has `listener` called with the bookies whose state changed, whenever some did."""
        self._listeners.append(listener)

    def on_audit_wanted(self, listener: Callable[[], None]) -> None:
        """Has `listener` called whenever an operator asks for an audit."""
        self._wanted.append(listener)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows the bookies until cancelled; started once they were read. Survives outages of
        the metadata store."""
        root = self._registry.root
        async with trio.open_nursery() as nursery:
            for path in (
                f"{root}/available",
                f"{root}/available/readonly",
                f"{root}/cookies",
                PATH,
            ):
                watch = partial(self._store.watch_children, path)
                nursery.start_soon(_follow, watch, self._noticed)
            nursery.start_soon(_follow, self._marks.watch_enabled, self._set_enabled)
            nursery.start_soon(self._follow_delay)
            await self._look()
            task_status.started()
            while True:
                await self._wait()
                await self._look()

    def _noticed(self, _names: object) -> None:
        self._moved.set()

    def _set_enabled(self, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._announce(set())

    async def _follow_delay(self) -> None:
        is_first = True

        def set_delay(delay_s: int | None) -> None:
            nonlocal is_first
            default_s = self._options.lost_bookie_recovery_delay_s
            self._lost.delay_s = default_s if delay_s is None else delay_s
            self._moved.set()
            if not is_first:
                for wanted in self._wanted:
                    wanted()
            is_first = False

        await _follow(self._marks.watch_delay, set_delay)

    async def _wait(self) -> None:
        """Returns after a change, or when a bookie that is waited for is lost."""
        next_loss_s = self._lost.next_loss_s(trio.current_time())
        with trio.move_on_at(math.inf if next_loss_s is None else next_loss_s):
            await self._moved.wait()
            await trio.sleep(_SETTLE_S)
        self._moved = trio.Event()

    async def _look(self) -> None:
        while True:
            try:
                await self._read()
            except MetadataUnavailable:
                await trio.sleep(_RETRY_S)
            else:
                return

    async def _read(self) -> None:
        known = await self._registry.all()
        fresh = await read_bookies(self._registry, self._decommissions)
        emptying = {one.bookie: one for one in await self._decommissions.list()}
        now_s = trio.current_time()
        registered = (*fresh.writable, *fresh.read_only)
        self._lost.observe(known, registered, now_s)
        before, before_known = self.bookies, self._known
        self.candidates = await self._registry.candidates()
        self.emptying = {b: one for b, one in emptying.items() if one.state == "draining"}
        self._known = known
        self.bookies = replace(fresh, awaited=self._lost.awaited(now_s))
        self.is_known = True
        names = {*before_known, *known, *before.writable, *before.read_only, *registered}
        changed = {one for one in names if before.state_of(one) is not self.bookies.state_of(one)}
        self._announce(changed)

    async def wait_enabled(self) -> None:
        """Returns once the bookies are known and auto-recovery is enabled."""
        while not (self.is_known and self.is_enabled):
            await self._disabled.park()

    def _announce(self, changed: set[str]) -> None:
        self._disabled.unpark_all()
        for listener in self._listeners:
            listener(changed)


async def _follow(
    watch: Callable[[], AsyncGenerator[T, None]], on_value: Callable[[T], None]
) -> None:
    """Calls `on_value` for each value, also after outages of the metadata store."""
    while True:
        try:
            async with aclosing(watch()) as values:
                async for value in values:
                    on_value(value)
        except MetadataUnavailable:
            await trio.sleep(_RETRY_S)


async def read_bookies(registry: BookieRegistry, decommissions: Decommissions) -> Bookies:
    """Returns the bookies of a cluster now; those that are down are lost. Raises
    MetadataUnavailable."""
    available = await registry.available()
    read_only = await registry.read_only()
    leaving = await decommissions.names()
    return Bookies(
        writable=frozenset(available) - leaving,
        read_only=frozenset(read_only) | (frozenset(available) & leaving),
        emptying=leaving,
        replacements={
            one.bookie: one.replacement
            for one in await decommissions.list()
            if one.replacement is not None
        },
    )
