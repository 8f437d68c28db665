"""A bookie does not end when its metadata store hangs: it registers when it can."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import pytest
import trio
import trio.testing

from ledger.errors import MetadataConflict, MetadataUnavailable
from ledger.metastore.base import Change, Delete
from ledger.metastore.bookies import BookieInfo, BookieRegistry
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.registration import TAKEOVER_TIMEOUT_S

INFO = BookieInfo("10.0.0.1", 3181)


def now_ms() -> int:
    return 1_700_000_000_000


class HangingStore(MemoryStore):
    """A store whose changes wait while `flows` is not set, as if it were paused."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree, now_ms)
        self.flows = trio.Event()
        self.flows.set()

    async def transaction(self, changes: Sequence[Change]) -> None:
        await self.flows.wait()
        await super().transaction(changes)


async def test_a_session_lost_before_a_long_pause(autojump_clock: trio.testing.MockClock) -> None:
    tree = MemoryTree()
    store, seen = HangingStore(tree), BookieRegistry(MemoryStore(tree, now_ms))
    async with BookieRegistry(store).register("b1", INFO):
        store.flows = trio.Event()
        store.expire_session()
        await trio.sleep(3 * TAKEOVER_TIMEOUT_S)
        assert await seen.available() == {}
        store.flows.set()
        with trio.fail_after(1):
            async with aclosing(seen.watch_available()) as changes:
                async for bookies in changes:
                    if bookies == {"b1": INFO}:
                        return


class ChangingStore(MemoryStore):
    """A store that applies a late change of our node just before it is taken over."""

    late = 1

    async def transaction(self, changes: Sequence[Change]) -> None:
        if self.late and isinstance(changes[0], Delete):
            self.late -= 1
            raise MetadataConflict("the node has another version")
        await super().transaction(changes)


async def test_our_own_node_that_changes_meanwhile_is_not_taken_for_anothers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tree = MemoryTree()
    async with (
        BookieRegistry(MemoryStore(tree, now_ms)).register("b1", INFO),
        BookieRegistry(ChangingStore(tree, now_ms)).register("b1", INFO),
    ):
        assert trio.current_time() < TAKEOVER_TIMEOUT_S


class LeavingStore(MemoryStore):
    """A store that fails once, when a bookie that changed its state removes its old one."""

    outages = 1

    async def transaction(self, changes: Sequence[Change]) -> None:
        is_leaving = len(changes) == 1 and isinstance(changes[0], Delete)
        if is_leaving and self.outages:
            self.outages -= 1
            raise MetadataUnavailable("the store is out of reach")
        await super().transaction(changes)


async def test_a_change_of_state_that_was_interrupted_is_completed_when_retried() -> None:
    registry = BookieRegistry(LeavingStore(MemoryTree(), now_ms))
    async with registry.register("b1", INFO) as registration:
        with pytest.raises(MetadataUnavailable):
            await registration.set_read_only(True)
        assert list(await registry.available()) == ["b1"]
        await registration.set_read_only(True)
        assert list(await registry.available()) == []
        assert list(await registry.read_only()) == ["b1"]
