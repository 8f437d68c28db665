"""Calls of many tasks share a visit of the thread, and each gets a result of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from ledger.errors import MetadataConflict, MetadataUnavailable, NodeExists, NoSuchNode
from ledger.metastore.base import Create, Put
from ledger.metastore.sqlite.batching import TOGETHER_MAX, CallBatcher, Work
from ledger.metastore.sqlite.store import SqliteStore, open_sqlite
from ledger.runtime.background import open_background


class Disk:
    """A disk that executes a group of calls when `let` is released, and records group sizes."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.let = trio.Semaphore(0)

    async def visit(self, works: Sequence[Work]) -> list[object]:
        self.groups.append(len(works))
        await self.let.acquire()
        return [_outcome(work) for work in works]


def _outcome(work: Work) -> object:
    try:
        return work()
    except MetadataConflict as error:
        return error


@asynccontextmanager
async def lane_on(disk: Disk) -> AsyncIterator[CallBatcher]:
    lane = CallBatcher(disk.visit)
    async with open_background() as nursery:
        nursery.start_soon(lane.run)
        yield lane


async def test_calls_made_during_a_visit_share_the_next_one() -> None:
    disk = Disk()
    done: list[int] = []
    async with lane_on(disk) as lane, trio.open_nursery() as nursery:

        async def do(number: int) -> None:
            done.append(await lane.do(lambda: number))

        nursery.start_soon(do, 0)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(1, TOGETHER_MAX + 3):
            nursery.start_soon(do, number)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            disk.let.release()
    assert disk.groups == [1, TOGETHER_MAX, 2]
    assert sorted(done) == list(range(TOGETHER_MAX + 3))


async def test_a_refused_call_does_not_affect_others() -> None:
    disk = Disk()

    def refuse() -> None:
        raise MetadataConflict("no")

    async with lane_on(disk) as lane, trio.open_nursery() as nursery:
        for _ in range(2):  # in one group or two, depending on the scheduler
            disk.let.release()
        nursery.start_soon(lane.do, lambda: 1)
        with pytest.raises(MetadataConflict):
            await lane.do(refuse)


async def test_a_change_cancelled_in_time_is_not_made() -> None:
    disk = Disk()
    made: list[int] = []
    async with lane_on(disk) as lane, trio.open_nursery() as nursery:
        nursery.start_soon(lane.do, lambda: made.append(1))
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await lane.do(lambda: made.append(2))
        assert scope.cancelled_caught
        disk.let.release()
    assert made == [1]


async def test_a_change_cancelled_too_late_is_waited_for() -> None:
    disk = Disk()
    made: list[int] = []
    async with lane_on(disk) as lane, trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def do() -> None:
            with scope:
                await lane.do(lambda: made.append(1))

        nursery.start_soon(do)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not made
        disk.let.release()
    assert made == [1]


async def test_calls_that_wait_at_the_end_get_an_error() -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        async with lane_on(disk) as lane:

            async def do() -> None:
                with pytest.raises(MetadataUnavailable):
                    await lane.do(lambda: None)

            for _ in range(3):
                nursery.start_soon(do)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(MetadataUnavailable):
            await lane.do(lambda: None)


@asynccontextmanager
async def a_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_sqlite(f"{tmp_path}/c.db") as store:
        yield store


async def test_many_changes_at_once_are_each_made_or_refused(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await store.create("/taken", b"")
        outcomes: dict[str, str] = {}

        async def change(name: str, *changes: Create | Put) -> None:
            try:
                await store.transaction(changes)
                outcomes[name] = "done"
            except (NodeExists, NoSuchNode, MetadataConflict) as error:
                outcomes[name] = type(error).__name__

        ids: list[int] = []

        async def take_id() -> None:
            ids.append(await store.next_id("/ids"))

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(change, f"new-{number}", Create(f"/new/{number}", b"x"))
                nursery.start_soon(take_id)
            nursery.start_soon(change, "twice", Create("/half", b""), Create("/taken", b""))
            nursery.start_soon(change, "stale", Put("/taken", b"y", 7))
        assert [outcomes[f"new-{number}"] for number in range(50)] == ["done"] * 50
        assert (outcomes["twice"], outcomes["stale"]) == ("NodeExists", "MetadataConflict")
        assert len(await store.children("/new")) == 50
        assert sorted(ids) == list(range(50))
        with pytest.raises(NoSuchNode):
            await store.get("/half")
        assert (await store.get("/taken")).version == 0


async def test_exactly_one_of_several_puts_of_a_version_succeeds(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await store.create("/n", b"")
        won: list[int] = []

        async def put(number: int) -> None:
            try:
                await store.put("/n", b"%d" % number, 0)
                won.append(number)
            except MetadataConflict:
                pass

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(put, number)
        assert len(won) == 1
        assert (await store.get("/n")).data == b"%d" % won[0]


async def test_many_reads_at_once_are_each_answered(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        for number in range(20):
            await store.create(f"/n/{number}", b"%d" % number)
        found: dict[int, bytes | None] = {}

        async def get(number: int) -> None:
            try:
                found[number] = (await store.get(f"/n/{number}")).data
            except NoSuchNode:
                found[number] = None

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(get, number)
        assert found == {n: b"%d" % n if n < 20 else None for n in range(40)}


async def test_a_task_reads_its_own_change(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store, trio.open_nursery() as nursery:

        async def make_and_read(number: int) -> None:
            path = f"/n/{number}"
            await store.create(path, b"0")
            for version in range(10):
                assert (await store.get(path)).version == version
                assert await store.put(path, b"%d" % version, version) == version + 1

        for number in range(10):
            nursery.start_soon(make_and_read, number)


async def test_watches_of_many_nodes_each_see_the_changes_of_their_node(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store, a_store(tmp_path) as other:
        count = 1200  # more than are read in one group
        arrivals = trio.lowlevel.ParkingLot()
        seen: dict[int, list[bytes | None]] = {number: [] for number in range(count)}

        async def follow(number: int) -> None:
            async with aclosing(store.watch(f"/n/{number}")) as nodes:
                async for node in nodes:
                    seen[number].append(None if node is None else node.data)
                    arrivals.unpark_all()

        async def until(number: int, value: bytes | None) -> None:
            while not seen[number] or seen[number][-1] != value:
                await arrivals.park()

        async with trio.open_nursery() as nursery:
            for number in range(0, count, 2):
                await other.create(f"/n/{number}", b"old")
            for number in range(count):
                nursery.start_soon(follow, number)
            with trio.fail_after(20):
                for number in range(count):
                    await until(number, None if number % 2 else b"old")
                await other.put("/n/0", b"new")
                await other.delete("/n/2")
                await other.create("/n/1", b"made")
                await other.delete("/n/4")
                await other.create("/n/4", b"again")
                await until(0, b"new")
                await until(2, None)
                await until(1, b"made")
                await until(4, b"again")
            nursery.cancel_scope.cancel()
        assert all(len(seen[number]) == 1 for number in range(5, count))


async def test_an_error_of_one_caller_does_not_affect_others(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await store.create("/n", b"")
        raised: list[BaseException] = []

        async def failing() -> None:
            try:
                await store.put("/n", "text")  # type: ignore[arg-type]
            except TypeError as error:
                raised.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(failing)
            for number in range(10):
                nursery.start_soon(store.create, f"/m/{number}", b"")
        assert len(raised) == 1
        assert len(await store.children("/m")) == 10
        assert (await store.get("/n")).version == 0
