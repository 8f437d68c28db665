"""Another client always acts just before the janitor, and no data is deleted that must be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from ledger.errors import NoSuchNode
from ledger.metastore.base import Change, Node
from stream import Janitor, Namespace, NoSuchStream, Position, StreamExists, encode
from stream.retention.orphans import delete_orphaned_partition
from stream.retention.trash import TOMBSTONE_MS
from stream.store.cursors import cursors_path
from stream.store.groups import groups_path
from stream.store.partitions import PartitionStore
from stream.store.streams import namespace_path, stream_path
from stream.takeover import StreamLedgers
from tests.stream.retention.test_trash import WINDOW_MS, simulate_trash, sweep, write
from tests.stream.whole_streams import read_all, values


class Interloper:
    """A store that runs `act` just before the next transaction.

    With a path, it runs it before the call number `turn` that reads that node, lists its children,
    or is a transaction on it.
    """

    def __init__(
        self,
        namespace: Namespace,
        act: Callable[[], Awaitable[object]],
        path: str | None,
        turn: int,
    ) -> None:
        self._inner = namespace.client.store
        self._act = act
        self._path = path
        self._turn = turn

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def transaction(self, changes: Sequence[Change]) -> None:
        if self._path is None or any(self._path == change.path for change in changes):
            await self._interlope()
        await self._inner.transaction(changes)

    async def children(self, path: str) -> list[str]:
        if path == self._path:
            await self._interlope()
        return await self._inner.children(path)

    async def get(self, path: str) -> Node:
        if path == self._path:
            await self._interlope()
        return await self._inner.get(path)

    async def _interlope(self) -> None:
        self._turn -= 1
        if self._turn == 0:
            await self._act()


@asynccontextmanager
async def interloper(
    namespace: Namespace,
    act: Callable[[], Awaitable[object]],
    path: str | None = None,
    turn: int = 1,
) -> AsyncIterator[None]:
    """Replaces the store of this namespace's client by one on which another client acts first."""
    inner = namespace.client.store
    namespace.client.store = Interloper(namespace, act, path, turn)  # type: ignore[assignment]
    try:
        yield
    finally:
        namespace.client.store = inner


def test_nothing_is_dropped_by_a_policy_that_was_just_changed_or_past_a_cursor_just_moved() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.set_policy(retention_ms=0, retention_cursors=("c",))
        await write(namespace, "s", [b"a"], [b"b"])
        async with namespace.cursor("s", "c") as cursor:
            cursor.advance(Position(2, 0, 0))
        await trio.sleep(1)
        async with interloper(namespace, lambda: namespace.set_cursor("s", "c", Position(1, 0, 0))):
            await sweep(namespace, segments_dropped=0)
        await namespace.set_cursor("s", "c", Position(2, 0, 0))
        async with interloper(namespace, lambda: namespace.set_policy(retention_ms=WINDOW_MS)):
            await sweep(namespace, segments_dropped=0)
        assert len(await read_all(namespace, "s")) == 2
        await namespace.set_policy(retention_ms=0)
        await sweep(namespace, segments_dropped=1)

    simulate_trash(scenario)


def test_an_orphan_is_left_alone_when_ledgers_moved_meanwhile() -> None:
    """A stream is restored under another name while the janitor looks for streams that name its
    ledgers."""

    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a"])
        await namespace.delete_stream("s")
        janitor = Janitor(namespace.client, "n", orphan_age_ms=-1)
        lists = namespace.client.list_ledgers

        async def list_late() -> list[int]:
            await namespace.undelete_stream("s", as_name="back")
            janitor_named.clear()
            return await lists()

        sweep_orphans = janitor._delete_orphans
        janitor_named: set[int] = set()

        async def spied(state: object) -> None:
            nonlocal janitor_named
            janitor_named = state.named  # type: ignore[attr-defined]
            await sweep_orphans(state)  # type: ignore[arg-type]

        janitor._delete_orphans = spied  # type: ignore[method-assign,assignment]
        namespace.client.list_ledgers = list_late  # type: ignore[method-assign]
        assert (await janitor.sweep()).orphans_deleted == 0
        assert values(await read_all(namespace, "back")) == [b"a"]

    simulate_trash(scenario)


def test_restored_partitions_survive_the_end_of_their_deletion() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.create_stream("p", partitions=1)
        await write(namespace, "p#0", [b"a"])
        nodes = PartitionStore(namespace.client.store)
        node, version = await nodes.read("n", "p")
        assert node is not None
        await nodes.put(
            "n", node.deleted(namespace.client.now_ms()), version
        )  # and was interrupted there

        async with interloper(namespace, lambda: namespace.undelete_stream("p")):
            await sweep(namespace)
        assert values(await read_all(namespace, "p#0")) == [b"a"]

    simulate_trash(scenario)


def test_a_slow_deletion_spares_the_partitions_of_a_stream_created_again() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.create_stream("p", partitions=2)

        async def create_again() -> None:
            await Namespace(client, "n").create_stream("p", partitions=2)
            for partition in ("p#0", "p#1"):
                await write(namespace, partition, [b"new"])

        client = namespace.client
        async with interloper(namespace, create_again):
            await namespace.delete_stream("p")
        for partition in ("p#0", "p#1"):
            assert values(await read_all(namespace, partition)) == [b"new"]

    simulate_trash(scenario)


def test_a_name_is_not_forgotten_with_the_cursors_of_the_stream_just_made_under_it() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a"])
        await namespace.delete_stream("s")
        await trio.sleep(TOMBSTONE_MS / 1000)
        store, client = namespace.client.store, namespace.client
        members, stopping = trio.Event(), trio.Event()

        async def consume() -> None:
            async with Namespace(client, "n").consumer("s", "g"):
                members.set()
                await stopping.wait()

        async def create_again() -> None:
            await write(namespace, "s", [b"new"])
            await namespace.set_cursor("s", "c", Position(2, 0, 0))
            nursery.start_soon(consume)
            await members.wait()

        async with trio.open_nursery() as nursery:
            async with interloper(namespace, create_again, cursors_path("n", "s")):
                await sweep(namespace)
            assert [cursor.name for cursor in await namespace.cursors("s")] == ["c", "g"]
            assert await store.children(groups_path("n", "s")) == ["g"]
            stopping.set()

    simulate_trash(scenario)


def test_a_stream_is_deleted_though_a_janitor_purges_it_or_the_policy_changes_meanwhile() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.set_policy(trash_ms=0)
        await write(namespace, "s", [b"a"])
        async with interloper(namespace, lambda: sweep(namespace), namespace_path("n")):
            await namespace.delete_stream("s")
        assert await namespace.client.list_ledgers() == []
        await write(namespace, "s", [b"b"])
        raised = partial(namespace.set_policy, trash_ms=WINDOW_MS)
        async with interloper(namespace, raised, namespace_path("n")):
            await namespace.delete_stream("s")
        await namespace.undelete_stream("s")
        assert values(await read_all(namespace, "s")) == [b"b"]

    simulate_trash(scenario)


def test_a_segment_published_unknown_to_its_writer_is_not_taken_out_of_the_trash() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"a"])
        ledgers = StreamLedgers(namespace.client, namespace.store, "n", "s")
        ledger = await ledgers.make(await namespace.policy())
        await namespace.store.update_stream(
            "n", "s", lambda stream: stream.begun(stream.epoch, ledger.ledger_id, 0)
        )
        await ledger.append(encode([b"sent ahead"], first_sequence=1))
        await namespace.delete_stream("s")
        await namespace.create_stream("s")
        await ledgers.discard(ledger)  # as by a writer that never learned that it was published
        await namespace.undelete_stream("s", as_name="back")
        await write(namespace, "back", [b"b"])
        assert values(await read_all(namespace, "back")) == [b"a", b"sent ahead", b"b"]

    simulate_trash(scenario)


def test_a_writer_suspended_while_its_stream_was_removed_does_not_own_the_next_one() -> None:
    async def sleep_through(namespace: Namespace) -> None:
        async with namespace.writer("s", create=True) as sleeper:
            await sleeper.append(b"a")
            await namespace.delete_stream("s")
            await trio.sleep(max(TOMBSTONE_MS, WINDOW_MS) / 1000)
            await sweep(namespace)
            with pytest.raises(NoSuchNode):
                await namespace.client.store.get(stream_path("n", "s"))
            async with namespace.writer("s", create=True) as writer:
                await writer.append(b"b")
                assert (
                    writer.epoch == sleeper.epoch
                )  # epochs begin again, so they do not distinguish the streams
                with pytest.raises(NoSuchStream):
                    await sleeper.append(b"never")
                await writer.append(b"c")

    async def scenario(namespace: Namespace) -> None:
        with pytest.raises(NoSuchStream):
            await sleep_through(namespace)
        assert values(await read_all(namespace, "s")) == [b"b", b"c"]

    simulate_trash(scenario)


@pytest.mark.parametrize("turn", range(1, 5))
def test_of_restoring_and_creating_again_one_wins(turn: int) -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.create_stream("p", partitions=1)
        await write(namespace, "p#0", [b"old"])
        await namespace.delete_stream("p")
        back = partial(namespace.undelete_stream, "p")
        is_made = True
        async with interloper(namespace, back, stream_path("n", "p#0"), turn):
            try:
                await namespace.create_stream("p", partitions=1)
            except StreamExists:
                is_made = False
        records = values(await read_all(namespace, "p#0"))
        assert records == ([] if is_made else [b"old"])

    simulate_trash(scenario)


def test_half_a_deletion_is_taken_back_though_the_name_was_purged_before() -> None:
    async def scenario(namespace: Namespace) -> None:
        await namespace.set_policy(trash_ms=0)
        await namespace.create_stream("p", partitions=2)
        await namespace.delete_stream("p")
        await namespace.set_policy(trash_ms=WINDOW_MS)
        await namespace.create_stream("p", partitions=2)
        for partition in ("p#0", "p#1"):
            await write(namespace, partition, [partition.encode()])
        nodes = PartitionStore(namespace.client.store)
        node, version = await nodes.read("n", "p")
        assert node is not None
        await nodes.put("n", node.deleted(namespace.client.now_ms()), version)
        assert await delete_orphaned_partition(
            namespace.client, "n", "p#0"
        )  # and was interrupted there
        await namespace.undelete_stream("p")
        for partition in ("p#0", "p#1"):
            assert values(await read_all(namespace, partition)) == [partition.encode()]

    simulate_trash(scenario)
