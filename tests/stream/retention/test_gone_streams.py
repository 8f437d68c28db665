"""A stream that is created again never takes a position of the earlier one for one of its own."""

from __future__ import annotations

import pytest
import trio

from stream import Namespace, Position, StreamMetadata, Truncated, create_namespace
from stream.core.metadata.format import decode_stream, encode_stream
from stream.retention.policies import delete_namespace
from stream.retention.trash import TOMBSTONE_MS
from stream.store.gone_streams import PATH
from stream.store.sinks import forget_sink, reset_sink
from tests.stream.retention.test_trash import WINDOW_MS, simulate_trash, sweep, write
from tests.stream.whole_streams import read_all, values


async def gone(namespace: Namespace, stream: str) -> None:
    """Deletes a stream and has the janitor remove all that is left of it."""
    await namespace.delete_stream(stream)
    await trio.sleep((WINDOW_MS + TOMBSTONE_MS) / 1000)
    for _ in range(3):
        await sweep(namespace)
        await trio.sleep(TOMBSTONE_MS / 1000)


async def check_refused(namespace: Namespace, stream: str, position: Position) -> None:
    async with namespace.writer(stream) as writer:
        await writer.append(b"new")
    with pytest.raises(Truncated) as raised:
        async with namespace.reader(stream, start=position) as reader:
            await anext(reader)
    assert raised.value.wanted == position


@pytest.mark.parametrize("stream", ["s", "p#1"])
@pytest.mark.parametrize("how", ["tombstone", "swept", "namespace"])
def test_positions_of_a_stream_that_is_gone_are_refused(how: str, stream: str) -> None:
    async def scenario(namespace: Namespace) -> None:
        async def create() -> None:
            if stream == "p#1":
                await namespace.create_stream("p", partitions=2)
            else:
                await namespace.create_stream("s")

        await create()
        await write(namespace, stream, [b"a"], [b"b"], [b"c"])
        handed_out = [record.position for record in await read_all(namespace, stream)]
        assert [position.segment for position in handed_out] == [1, 2, 3]
        whole = stream.partition("#")[0]
        if how == "tombstone":
            await namespace.delete_stream(whole)
        else:
            await gone(namespace, whole)
        if how == "namespace":
            await delete_namespace(namespace.client, namespace.name)
            await create_namespace(namespace.client, namespace.name)
        await create()
        for position in handed_out:
            await check_refused(namespace, stream, position)
        assert set(values(await read_all(namespace, stream))) == {b"new"}

    simulate_trash(scenario)


def test_a_restored_stream_uses_no_number_of_one_that_came_between() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "s", [b"first"])
        await namespace.delete_stream("s")
        await write(namespace, "s", [b"second"], [b"second"])
        handed_out = [record.position for record in await read_all(namespace, "s")]
        await namespace.delete_stream("s")
        first, second = await namespace.trash()
        await namespace.undelete_stream("s", as_name="other")  # the second one
        await namespace.undelete_stream("s")
        await write(namespace, "s", [b"third"])
        positions = [record.position for record in await read_all(namespace, "s")]
        assert values(await read_all(namespace, "s")) == [b"first", b"third"]
        assert not set(positions) & set(handed_out)
        assert first.stream == second.stream == "s"

    simulate_trash(scenario)


def test_the_number_grows_only_when_a_stream_goes() -> None:
    async def scenario(namespace: Namespace) -> None:
        await write(namespace, "a", [b"1"], [b"2"])
        await write(namespace, "b", [b"1"], [b"2"], [b"3"], [b"4"])
        store = namespace.client.store
        assert (await store.get(PATH)).data == b"1"
        await gone(namespace, "b")
        assert (await store.get(PATH)).data == b"5"
        await gone(namespace, "a")
        assert (await store.get(PATH)).data == b"5"
        await write(namespace, "c", [b"1"])
        assert [record.position.segment for record in await read_all(namespace, "c")] == [5]

    simulate_trash(scenario)


def test_the_node_of_the_number_shows_that_nodes_were_removed() -> None:
    async def scenario(namespace: Namespace) -> None:
        store = namespace.client.store
        await write(namespace, "a", [b"1"], [b"2"])
        versions = [(await store.get(PATH)).version]

        async def check_written() -> None:
            versions.append((await store.get(PATH)).version)
            assert versions[-1] > versions[-2]

        await gone(namespace, "a")
        await check_written()
        await namespace.create_stream("b")
        await gone(namespace, "b")
        await check_written()
        await namespace.create_stream("p", partitions=1)
        await namespace.delete_stream("p")
        await trio.sleep((WINDOW_MS + TOMBSTONE_MS) / 1000)
        await sweep(namespace)  # of the partition
        await check_written()
        await reset_sink(store, "k", 1, 0)
        await forget_sink(store, "k")
        await check_written()

    simulate_trash(scenario)


def test_metadata_written_before_is_read_as_it_was() -> None:
    old = StreamMetadata(name="s", created_ms=5)
    assert decode_stream("s", encode_stream(old)).next_segment == 1
