"""The removal of a copy races with workers that make it again, in every order of their steps.

At each moment: if the metadata names the bookie, then the bookie has every entry.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import pytest
import trio
import trio.testing

from bookie.core.ledger_state import LedgerState as BookieLedgerState
from bookie.core.over_replication import OverReplicationOptions, OverReplicationReport
from bookie.over_replication import OverReplication
from bookie.server.requests import Requests
from bookie.storage.garbage.copy_removal import CopyRemoval
from ledger.core.availability import decode_entries_held
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import LedgerError, MetadataConflict, Status
from ledger.metastore.base import Node
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore, MemoryTree
from ledger.metastore.restores import RestoreLog
from ledger.metastore.underreplication import UnderreplicationStore
from ledger.wire.messages import (
    AddRequest,
    ListEntriesRequest,
    ListEntriesResponse,
    Request,
    ResponseBody,
)
from tests.bookie.core.test_caches import KEY, make_entry
from tests.bookie.storage.simulated_storage import SimulatedStorage
from tests.effort import IS_NIGHT

SAMPLE = 150
LEDGER, ENTRIES, HERE = 7, 2, "here:1"
CLOSED = LedgerMetadata(
    ledger_id=LEDGER,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=1,
    fragments=(Fragment(0, ("a:1", "c:1")),),
    state=LedgerState.CLOSED,
    last_entry_id=ENTRIES - 1,
    length=2,
    digest_type=DigestType.CRC32C,
    password=b"",
)
OPTIONS = OverReplicationOptions(interval_s=1, age_s=0, asks_per_s_max=1e6, removals_per_s_max=1e6)


class Turns:
    """Lets one actor at a time make one step, in the order that `choices` gives; first comes first
    beyond them."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = choices
        self._waiting: dict[str, trio.Event] = {}
        self.made: list[tuple[int, int]] = []
        """Each choice, and out of how many."""

    async def turn(self, who: str) -> None:
        self._waiting[who] = granted = trio.Event()
        await granted.wait()

    async def run(
        self,
        actors: dict[str, Callable[[], Awaitable[object]]],
        judge: Callable[[], Awaitable[None]],
    ) -> None:
        running = len(actors)

        async def act(who: str) -> None:
            nonlocal running
            await self.turn(who)
            await actors[who]()
            running -= 1

        async with trio.open_nursery() as nursery:
            for who in actors:
                nursery.start_soon(act, who)
            while True:
                while len(self._waiting) < running:  # noqa: ASYNC110 - a journal may be waited for
                    await trio.sleep(0.001)
                await judge()
                ready = sorted(self._waiting)
                if not ready:
                    return
                at = len(self.made)
                choice = self._choices[at] % len(ready) if at < len(self._choices) else 0
                self.made.append((choice, len(ready)))
                self._waiting.pop(ready[choice]).set()


class SteppedStore(MemoryStore):
    """Each request is a step of its actor."""

    def stepped(self, turns: Turns, who: str) -> SteppedStore:
        self._turns, self._who = turns, who
        return self

    async def get(self, path: str) -> Node:
        await self._turns.turn(self._who)
        return await super().get(path)

    async def create(self, path: str, data: bytes, *, is_ephemeral: bool = False) -> None:
        await self._turns.turn(self._who)
        await super().create(path, data, is_ephemeral=is_ephemeral)

    async def put(self, path: str, data: bytes, version: int = -1) -> int:
        await self._turns.turn(self._who)
        found = await super().put(path, data, version)
        await self._turns.turn(self._who)  # others see it before its reply arrives
        return found

    async def delete(self, path: str, version: int = -1) -> None:
        await self._turns.turn(self._who)
        await super().delete(path, version)


class World:
    """A bookie with an old copy of a closed ledger, its remover, and a worker."""

    def __init__(self, simulated: SimulatedStorage, tree: MemoryTree, turns: Turns) -> None:
        self.turns = turns
        self.storage = simulated.storage
        self.requests = Requests(self.storage, long_polls_max=1, space=_no_space)
        own = SteppedStore(tree, lambda: 0).stepped(turns, "remover")
        other = SteppedStore(tree, lambda: 0).stepped(turns, "worker")
        self.judge = MemoryStore(tree, lambda: 0)
        self.ledgers = LedgerStore(other)
        self.marks = UnderreplicationStore(other, "/ledgers", lambda: 0)
        self.plain_ledgers = LedgerStore(self.judge)
        self.report = OverReplicationReport()
        self.remover = OverReplication(
            self.storage,
            HERE,
            ledgers=LedgerStore(own),
            marks=UnderreplicationStore(own, "/ledgers", lambda: 0),
            restores=RestoreLog(own),
            check_cluster=_no_check,
            options=OPTIONS,
        )
        self.outcome = ""
        copies = self.storage.directory_of(LEDGER).garbage.copies
        removing = copies.remove

        async def remove(state: BookieLedgerState) -> None:
            was_leaving, state.is_leaving = state.is_leaving, True
            await removing(state)
            state.is_leaving = was_leaving
            await turns.turn("remover")

        setattr(copies, "remove", remove)  # noqa: B010 - a method

    async def remove(self) -> None:
        directory = self.storage.directory_of(LEDGER)
        await self.remover._remove(directory, LEDGER, self.report)

    async def check(self) -> None:
        metadata, _ = await self.plain_ledgers.read(LEDGER)
        if HERE in metadata.fragments[0].bookies:
            copies = self.storage.directory_of(LEDGER)
            for entry_id in range(ENTRIES):
                try:
                    await copies.read(LEDGER, entry_id)
                except LedgerError as error:
                    raise AssertionError("metadata names a bookie without the entries") from error

    # The worker.

    async def copy(self, *, lists: bool) -> None:
        """As ours: at the version that was read first."""
        metadata, version = await self.ledgers.read(LEDGER)
        if not await self._send(lists=lists):
            return
        try:
            await self.ledgers.compare_and_put(_moved(metadata), version)
        except MetadataConflict:
            self.outcome = "conflict"
        else:
            self.outcome = "named"

    async def copy_as_apache(self) -> None:
        """With the lock and the mark, and as often as the metadata changes meanwhile."""
        async with self.marks.lock(LEDGER, "worker") as is_locked:
            mark = await self.marks.read(LEDGER) if is_locked else None
            if mark is None or not await self._send(lists=False):
                return
            await self.ledgers.update(LEDGER, _moved)
            assert await self.marks.unmark(mark)
            self.outcome = "named"

    async def _send(self, *, lists: bool) -> bool:
        held: list[int] = []
        if lists:
            await self.turns.turn("worker")
            held = await self._list()
        for entry_id in range(ENTRIES):
            if entry_id not in held:
                await self.turns.turn("worker")
                if not self._add(entry_id):
                    self.outcome = "refused"
                    return False
        return True

    async def _list(self) -> list[int]:
        answers: list[ResponseBody] = []
        body = ListEntriesRequest(LEDGER)
        await self.requests.answer(Request(3, 1, body), answers.append, lambda: False, _Owner())
        (answer,) = answers
        if not isinstance(answer, ListEntriesResponse) or answer.status is not Status.OK:
            return []
        ranges = decode_entries_held(answer.availability or b"")
        return [n for first, last in ranges for n in range(first, last + 1)]

    def _add(self, entry_id: int) -> bool:
        """Returns whether the entry was accepted; it is durable at some later time."""
        answers: list[ResponseBody] = []
        entry = make_entry(LEDGER, entry_id, b"x")
        add = AddRequest(LEDGER, entry_id, KEY, entry, is_recovery=True)
        self.requests.answer_nowait(Request(2, 0, add), answers.append, lambda: False)
        return not answers or answers[0].status is Status.OK


class _Owner:
    takes_replies = True

    def takes_beside(self, _: int) -> bool:
        return True

    send_queue_bytes = 0


async def _no_space() -> tuple[int, int]:
    return 0, 0


async def _no_check() -> None:
    return


def _moved(metadata: LedgerMetadata) -> LedgerMetadata:
    return replace(metadata, fragments=(Fragment(0, (HERE, "c:1")),))


@asynccontextmanager
async def _world(choices: Sequence[int], *, is_marked: bool) -> AsyncIterator[World]:
    simulated, tree, turns = SimulatedStorage(), MemoryTree(), Turns(choices)
    async with MemoryStore(tree, lambda: 0) as store, simulated.running():
        await store.create("/ledgers/LAYOUT", _LAYOUT)
        await LedgerStore(store).create(CLOSED)
        if is_marked:
            await UnderreplicationStore(store, "/ledgers", lambda: 0).mark(LEDGER, ["a:1"])
        for entry_id in range(ENTRIES):
            simulated.add(LEDGER, entry_id, b"x")
        await simulated.settle()
        await simulated.storage.checkpoint()
        world = World(simulated, tree, turns)
        for ledgers in (world.ledgers, world.remover._ledgers):
            ledgers._layout = await LedgerStore(store).layout()
        yield world


_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


async def _orders(
    worker: Callable[[World], Awaitable[None]], *, is_marked: bool = False
) -> tuple[int, set[tuple[str, int]]]:
    """Returns the number of orders that were tried, and the outcomes of worker and remover. Raises
    AssertionError at a violation. Every order at night, a sample of them with each change."""
    outcomes: set[tuple[str, int]] = set()
    choices, count, rng = [0] * 100, 0, random.Random(5)
    while count < SAMPLE or IS_NIGHT:
        async with _world(choices, is_marked=is_marked) as world:

            async def work(world: World = world) -> None:
                await worker(world)

            await world.turns.run({"remover": world.remove, "worker": work}, world.check)
            outcomes.add((world.outcome, world.report.copies_removed))
        count += 1
        choices = _next(world.turns.made) if IS_NIGHT else rng.choices((0, 1), k=100)
        if not choices:
            break
    return count, outcomes


def _next(made: list[tuple[int, int]]) -> list[int]:
    """Returns the choices after those that were made; empty if they were the last."""
    while made and made[-1][0] + 1 == made[-1][1]:
        made.pop()
    return [choice for choice, _ in made[:-1]] + [made[-1][0] + 1] if made else []


WORKERS: dict[str, Callable[[World], Awaitable[None]]] = {
    "copies what is not listed": lambda world: world.copy(lists=True),
    "copies everything": lambda world: world.copy(lists=False),
}


@pytest.mark.parametrize("worker", WORKERS)
async def test_a_worker_that_ignores_the_lock_never_names_a_bookie_without_the_entries(
    worker: str, autojump_clock: trio.testing.MockClock
) -> None:
    count, outcomes = await _orders(WORKERS[worker])
    assert count >= SAMPLE
    assert {("named", 0), ("named", 1), ("conflict", 1), ("refused", 1)} <= outcomes


async def test_a_worker_of_apache_never_names_a_bookie_without_the_entries(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It repeats its change of the metadata, so only lock and mark keep it away."""
    count, outcomes = await _orders(lambda world: world.copy_as_apache(), is_marked=True)
    assert count >= SAMPLE
    assert outcomes == {("named", 0), ("", 0)}


# Each step is needed: without it, some order of the others is a violation.


def _without_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def only_read(self: OverReplication, ledger_id: int) -> bool:
        metadata, _ = await self._ledgers.read(ledger_id)
        return HERE not in metadata.fragments[0].bookies

    monkeypatch.setattr(OverReplication, "_write_again", only_read)


def _without_refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CopyRemoval, "refusing", lambda self, state: nullcontext())


@pytest.mark.parametrize("without", [_without_writing, _without_refusing])
async def test_each_step_is_needed(
    without: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    without(monkeypatch)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True, allow_unwrapped=True):
        await _orders(WORKERS["copies everything"])
